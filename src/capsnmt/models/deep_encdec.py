"""Deep Enc-Dec: 9 + 7 LSTM layers without attention, joined by fast-forward connections.

Zhou et al. 2016, "Deep Recurrent Models with Fast-Forward Connections for Neural Machine Translation", its Deep-ED.
What makes it this system: a layer also reads half of f, the *input* part of the gates of the layer below, which has
passed no nonlinearity and no recurrence, so that a linear path leads from the words to the top; two columns of encoder
layers whose direction alternates from layer to layer; and one fixed vector of four parts that every decoder step reads.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from capsnmt.config import StrictModel
from capsnmt.models.contract import Memory, State, TranslationModel
from capsnmt.models.layers import (
    Tying,
    build_embeddings,
    last_of,
    masked_max,
    reversal_index,
    reverse_rows,
    unidirectional_lstm,
)


class DeepEncDecConfig(StrictModel):
    """The paper's Deep-ED by default."""

    system: Literal["deep_encdec"] = "deep_encdec"
    width: int = Field(512, ge=1)  # memory cells of a layer
    embedding_width: int = Field(256, ge=1)
    encoder_layers: int = Field(9, ge=1)  # n_e, of each of the two columns
    decoder_layers: int = Field(7, ge=1)  # n_d
    dropout: float = Field(0.1, ge=0.0, lt=1.0)  # p_d of Dr(h)
    tie_embeddings: Tying = "none"


class FastForwardLSTM(nn.Module):
    """One layer: f_t = W_f x_t, the input part of its four gates, and h_t = LSTM(f_t, h_{t-1}).

    torch's LSTM keeps f to itself, so it is computed once more from the same weights where somebody reads it.
    """

    # Deviation: no peephole connections θ from the cell to the gates; torch's fused LSTM has none.

    def __init__(self, input_width: int, width: int) -> None:
        super().__init__()
        self.lstm = unidirectional_lstm(input_width, width)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """x (batch, len, dim) → h (batch, len, width) and the last (h, c)."""
        h, end = self.lstm(x, state)
        return h, end

    def half_f(self, x: Tensor) -> Tensor:
        """Half(f): its first half, in the paper's order candidate and input gate, (batch, len, 2 width)."""
        W_i, _, W_z, _ = self.lstm.get_parameter("weight_ih_l0").chunk(4)  # torch's order: input, forget, candidate, …
        return F.linear(x, torch.cat([W_z, W_i]))

    def f(self, x: Tensor) -> Tensor:
        """All of f, (batch, len, 4 width)."""
        return F.linear(x, self.lstm.get_parameter("weight_ih_l0"))


def stack(input_width: int, width: int, num_layers: int) -> nn.ModuleList:
    """Layers that read [Half(f), h] of the layer below: 2 + 1 widths."""
    widths = [input_width] + [3 * width] * (num_layers - 1)
    return nn.ModuleList(FastForwardLSTM(each, width) for each in widths)


class DeepEncDec(TranslationModel):
    """Interleaved bidirectional encoder, interface and decoder (its section 3)."""

    def __init__(self, config: DeepEncDecConfig, *, source_size: int, target_size: int) -> None:
        super().__init__()
        self.config = config
        d = config.width
        self.source_embedding, self.target_embedding, self.output = build_embeddings(
            source_size=source_size,
            target_size=target_size,
            width=config.embedding_width,
            output_width=d,
            tie=config.tie_embeddings,
        )
        self.column_1, self.column_2 = (stack(config.embedding_width, d, config.encoder_layers) for _ in range(2))
        self.decoder = stack(10 * d + config.embedding_width, d, config.decoder_layers)
        self.dropout = nn.Dropout(config.dropout)

    def _above(self, layer: FastForwardLSTM, x: Tensor, h: Tensor) -> Tensor:
        """What the next layer reads: [Half(f), Dr(h)], (batch, len, 3 dim)."""
        return torch.cat([layer.half_f(x), self.dropout(h)], dim=-1)

    def _column(self, layers: nn.ModuleList, x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """The top layer's h and f, in the order in which it reads: each layer reads against the one below."""
        *lower, top = layers
        assert isinstance(top, FastForwardLSTM)
        for layer in lower:
            assert isinstance(layer, FastForwardLSTM)
            h, _ = layer(x)
            x = reverse_rows(self._above(layer, x, h), index)
        h, _ = top(x)
        return h, top.f(x)

    def encode(self, src: Tensor, src_mask: Tensor) -> Memory:
        """e of four parts, (batch, 10 dim): the last h of column a1, the maxima over time of h of a2 and of both f."""
        x, index = self.source_embedding(src), reversal_index(src_mask)
        h_1, f_1 = self._column(self.column_1, x, index)
        h_2, f_2 = self._column(self.column_2, reverse_rows(x, index), index)
        maxima = [masked_max(each, src_mask) for each in (h_2, f_1, f_2)]
        return {"context": torch.cat([last_of(h_1, src_mask), *maxima], dim=-1)}

    def start(self, memory: Memory) -> State:
        """Zeros, each (batch, layers, dim)."""
        context = memory["context"]
        zeros = context.new_zeros(context.size(0), self.config.decoder_layers, self.config.width)
        return {"hidden": zeros, "cell": zeros}

    def decode(self, tgt_in: Tensor, memory: Memory, state: State) -> tuple[Tensor, State]:
        """x_t = [c_t, y_{t-1}] for the first layer, [Half(f), h] of the layer below for the others."""
        y = self.target_embedding(tgt_in)  # the previous word: (batch, tgt_len, embedding)
        c = memory["context"][:, None].expand(-1, y.size(1), -1)
        x = torch.cat([c, y], dim=-1)  # x_t = [c_t, y_{t-1}]
        hidden, cell = [], []
        for number, layer in enumerate(self.decoder):
            assert isinstance(layer, FastForwardLSTM)
            start = tuple(state[name][:, number].contiguous()[None] for name in ("hidden", "cell"))  # (1, batch, dim)
            h, end = layer(x, start)
            x = self._above(layer, x, h) if number + 1 < len(self.decoder) else self.dropout(h)
            hidden.append(end[0][0])
            cell.append(end[1][0])
        return self.output(x), {"hidden": torch.stack(hidden, dim=1), "cell": torch.stack(cell, dim=1)}
