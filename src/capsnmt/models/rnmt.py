"""RNMT+ (Chen et al. 2018, "The Best of Both Worlds"): the recurrent system with the Transformer's training aids.

What makes it this system: layer norm for each gate *inside* the LSTM cells and no tanh on their output, bidirectional
layers all the way up the encoder and a projection on top, multi-head additive attention from the first decoder layer,
whose context goes to all layers and to the softmax. Cells with layer norm have no fused kernel: time is a loop here.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.jit import is_tracing  # type: ignore[attr-defined]

from capsnmt.config import StrictModel
from capsnmt.models.contract import Memory, State, TranslationModel
from capsnmt.models.layers import Tying, build_embeddings, reversal_index, reverse_rows


class RNMTConfig(StrictModel):
    """The published model by default."""

    system: Literal["rnmt"] = "rnmt"
    width: int = Field(1024, ge=1)  # of embeddings, of each direction of the encoder, and of the decoder
    encoder_layers: int = Field(6, ge=1)
    decoder_layers: int = Field(8, ge=1)
    num_heads: int = Field(4, ge=1)
    dropout: float = Field(0.3, ge=0.0, lt=1.0)
    tie_embeddings: Tying = "none"

    @model_validator(mode="after")
    def _heads_divide_width(self) -> RNMTConfig:
        if self.width % self.num_heads:
            raise ValueError(f"width {self.width} is not a multiple of num_heads {self.num_heads}")
        return self


class LayerNormLSTM(nn.Module):
    """An LSTM layer with layer norm on each gate: LN(W x + U h) for i, f, o and g, and h = σ(o) · c without a tanh."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.W = nn.Linear(inputs, 4 * width, bias=False)  # for all times at once
        self.U = nn.Linear(width, 4 * width, bias=False)
        self.scale = nn.Parameter(torch.ones(4, width))
        bias = torch.zeros(4, width)
        bias[1] = 1.0  # forget gates start open
        self.bias = nn.Parameter(bias)

    def forward(
        self, gates: Tensor, h: Tensor, c: Tensor, *, any_length: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """W x of all times (batch, len, 4·width), start h and c (batch, width) → outputs (batch, len, width), h, c.

        A trace keeps as many turns of the loop as its example has. That is right for a step of decoding, which has one;
        where a trace must read `any_length`, a script keeps the loop itself.
        """
        keep_loop = any_length and is_tracing()  # type: ignore[no-untyped-call]
        run = torch.jit.script(unroll) if keep_loop else unroll
        outputs, h, c = run(gates, h, c, self.U.weight, self.scale, self.bias, self.U.in_features)
        return outputs, h, c


def unroll(
    gates: Tensor, h: Tensor, c: Tensor, U: Tensor, scale: Tensor, bias: Tensor, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The loop over time of `LayerNormLSTM`."""
    outputs = []
    for gates_t in gates.unbind(1):
        gate = (gates_t + F.linear(h, U)).view(-1, 4, width)  # (batch, 4, width)
        i, f, o, g = torch.addcmul(bias, F.layer_norm(gate, (width,)), scale).unbind(1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c
        outputs.append(h)
    return torch.stack(outputs, dim=1), h, c


class MultiHeadAdditiveAttention(nn.Module):
    """Bahdanau's v · tanh(W q + U k) in several heads; the values are the vectors themselves, each head its part."""

    def __init__(self, *, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query, self.key = nn.Linear(width, width, bias=False), nn.Linear(width, width)
        self.v = nn.Parameter(torch.randn(num_heads, width // num_heads) * (num_heads / width) ** 0.5)
        self.dropout = nn.Dropout(dropout)

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.num_heads, -1).transpose(1, 2)  # (batch, heads, len, dim/heads)

    def remember(self, vectors: Tensor) -> Memory:
        """Keys and values of `vectors` (batch, len, dim), each (batch, heads, len, dim/heads): made once."""
        return {"keys": self._heads(self.key(vectors)), "values": self._heads(vectors)}

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        """Contexts of the queries x (batch, tgt_len, dim); memory's mask (batch, len), if any, is True to be seen."""
        q = self._heads(self.query(x))[:, :, :, None]  # (batch, heads, tgt_len, 1, dim/heads)
        seen = (q + memory["keys"][:, :, None]).tanh()  # (batch, heads, tgt_len, len, dim/heads)
        scores = (seen @ self.v[:, None, :, None])[..., 0]  # (batch, heads, tgt_len, len)
        if "mask" in memory:
            scores = scores.masked_fill(~memory["mask"][:, None, None], -torch.inf)
        attended: Tensor = self.dropout(scores.softmax(dim=-1)) @ memory["values"]  # (batch, heads, tgt_len, dim/heads)
        return attended.transpose(1, 2).flatten(2)


class BidirectionalLayer(nn.Module):
    """Two directions side by side, (batch, src_len, 2·width)."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.forward_lstm, self.backward_lstm = LayerNormLSTM(inputs, width), LayerNormLSTM(inputs, width)

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        """x (batch, src_len, inputs), `reversal_index` of the source."""
        directions = []
        for lstm, sequence in ((self.forward_lstm, x), (self.backward_lstm, reverse_rows(x, index))):
            gates = lstm.W(sequence)
            zeros = torch.zeros_like(gates[:, 0, : gates.size(2) // 4])  # (batch, width)
            directions.append(lstm(gates, zeros, zeros, any_length=True)[0])
        return torch.cat([directions[0], reverse_rows(directions[1], index)], dim=-1)


class RNMT(TranslationModel):
    """Section 3.1 and Figure 1."""

    def __init__(self, config: RNMTConfig, *, source_size: int, target_size: int) -> None:
        super().__init__()
        self.config = config
        d = config.width
        untied = config.tie_embeddings == "none"
        self.source_embedding, self.target_embedding, self.output = build_embeddings(
            source_size=source_size,
            target_size=target_size,
            width=d,
            tie=config.tie_embeddings,
            output_width=2 * d if untied else d,
        )
        self.encoder = nn.ModuleList(
            BidirectionalLayer(d if layer == 0 else 2 * d, d) for layer in range(config.encoder_layers)
        )
        self.projection = nn.Linear(2 * d, d)
        self.attention = MultiHeadAdditiveAttention(width=d, num_heads=config.num_heads, dropout=config.dropout)
        self.decoder = nn.ModuleList(LayerNormLSTM(2 * d, d) for _ in range(config.decoder_layers))
        # Deviation: the softmax reads [s; c], which a table of width d cannot be; tied, a projection comes before it.
        self.readout = nn.Identity() if untied else nn.Linear(2 * d, d)
        self.dropout = nn.Dropout(config.dropout)

    def encode(self, src: Tensor, src_mask: Tensor) -> Memory:
        """Keys and values of the projected states (batch, heads, src_len, dim/heads), and the mask."""
        index = reversal_index(src_mask)
        x = self.dropout(self.source_embedding(src))
        for layer, bidirectional in enumerate(self.encoder):
            h = self.dropout(bidirectional(x, index))
            x = x + h if layer >= 2 else h  # residual connections from the third layer on
        return {**self.attention.remember(self.projection(x)), "mask": src_mask}

    def start(self, memory: Memory) -> State:
        """Zeros: hidden and cell (batch, layers, dim), and the context that the first layer reads, (batch, dim)."""
        values = memory["values"]
        zeros = values.new_zeros(values.size(0), len(self.decoder), self.config.width)
        return {"hidden": zeros, "cell": zeros, "context": zeros[:, 0]}

    def _attending_layer(self, y: Tensor, memory: Memory, state: State) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The first layer at t reads the context of t-1 and asks for that of t → states, contexts, last h and c."""
        lstm, d = self.decoder[0], self.config.width
        assert isinstance(lstm, LayerNormLSTM)
        gates = F.linear(y, lstm.W.weight[:, :d])  # what of W [y; context] is known for all times
        h, c, context = state["hidden"][:, 0], state["cell"][:, 0], state["context"]
        states, contexts = [], []
        for gates_t in gates.unbind(1):
            gates_t = gates_t + F.linear(context, lstm.W.weight[:, d:])
            s, h, c = lstm(gates_t[:, None], h, c)
            context = self.attention(s, memory)[:, 0]
            states.append(s[:, 0])
            contexts.append(context)
        return torch.stack(states, dim=1), torch.stack(contexts, dim=1), h, c

    def decode(self, tgt_in: Tensor, memory: Memory, state: State) -> tuple[Tensor, State]:
        """The first layer attends, its context goes to all layers above and to the softmax."""
        y = self.dropout(self.target_embedding(tgt_in))  # (batch, tgt_len, dim)
        x, contexts, h, c = self._attending_layer(y, memory, state)
        x = self.dropout(x)
        hidden, cell = [h], [c]
        for layer, lstm in enumerate(self.decoder[1:], start=1):
            assert isinstance(lstm, LayerNormLSTM)
            gates = lstm.W(torch.cat([x, contexts], dim=-1))
            s, h, c = lstm(gates, state["hidden"][:, layer], state["cell"][:, layer])
            s = self.dropout(s)
            x = x + s if layer >= 2 else s
            hidden.append(h)
            cell.append(c)
        logits = self.output(self.readout(torch.cat([x, contexts], dim=-1)))
        new_state = {"hidden": torch.stack(hidden, dim=1), "cell": torch.stack(cell, dim=1), "context": contexts[:, -1]}
        return logits, new_state
