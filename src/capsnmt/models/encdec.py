"""Enc-Dec: the last states of a stacked LSTM that read the source backwards start a stacked LSTM that writes.

Sutskever et al. 2014, "Sequence to Sequence Learning with Neural Networks", and the system without attention of Luong
et al. 2015, "Effective Approaches to Attention-based Neural Machine Translation" (base + reverse + dropout). What makes
it this system: all that the decoder ever learns of the source are h and c of every encoder layer after the last word,
its start state; no attention, no context at later steps, no residual connections. O(|S| + |T|), memory of one size.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from capsnmt.config import StrictModel
from capsnmt.models.contract import Memory, State, TranslationModel
from capsnmt.models.layers import Tying, build_embeddings, reversal_index, reverse_rows, unidirectional_lstm


class EncDecConfig(StrictModel):
    """Luong et al.'s system by default; Sutskever et al.'s has no dropout and larger vocabularies."""

    system: Literal["encdec"] = "encdec"
    width: int = Field(1000, ge=1)  # cells of a layer, and dimensions of a word
    num_layers: int = Field(4, ge=1)  # of the encoder and of the decoder, layer by layer its start state
    reverse_source: bool = True
    dropout: float = Field(0.2, ge=0.0, lt=1.0)
    tie_embeddings: Tying = "none"


def encoder_lstm(width: int) -> nn.LSTM:
    """An LSTM whose biases are the weights of one more input, which is 1 at words and 0 at padding.

    With padding in front of the sentence and no other bias, every gate's input is 0 there, and so c = σ(0) tanh(0) = 0:
    the state is exactly the start state when the first word comes, whatever the length of the padding.
    """
    # Deviation: Sutskever et al.'s LSTM, Graves', has peephole connections; torch's fused one has none.
    lstm = nn.LSTM(width + 1, width, bias=False, batch_first=True)
    with torch.no_grad():
        lstm.get_parameter("weight_ih_l0")[width : 2 * width, -1].fill_(1.0)  # open forget gates, as everywhere
    return lstm


class EncDec(TranslationModel):
    """Two stacks of LSTMs and a softmax."""

    def __init__(self, config: EncDecConfig, *, source_size: int, target_size: int) -> None:
        super().__init__()
        self.config = config
        d = config.width
        self.source_embedding, self.target_embedding, self.output = build_embeddings(
            source_size=source_size, target_size=target_size, width=d, tie=config.tie_embeddings
        )
        self.encoder = nn.ModuleList(encoder_lstm(d) for _ in range(config.num_layers))
        self.decoder = nn.ModuleList(unidirectional_lstm(d, d) for _ in range(config.num_layers))
        # Where Zaremba et al. 2014, whom Luong et al. follow, drop: words, between layers, before the softmax.
        self.dropout = nn.Dropout(config.dropout)

    def encode(self, src: Tensor, src_mask: Tensor) -> Memory:
        """v, the state after the last word read: hidden and cell, each (batch, layers, dim)."""
        x = self.dropout(self.source_embedding(src))
        if not self.config.reverse_source:
            x = reverse_rows(x, reversal_index(src_mask))  # which the flip below undoes
        is_word = src_mask[..., None].to(x.dtype)  # (batch, src_len, 1)
        # To flip a right-padded batch is to reverse every sentence and to put its padding in front: the last state of
        # each row is that of its last word. The sentence's </s> comes first then, and <s> starts the target.
        x, is_word = (x * is_word).flip(1), is_word.flip(1)
        hidden, cell = [], []
        for lstm in self.encoder:
            x, (h, c) = lstm(torch.cat([x, is_word], dim=-1))
            x = self.dropout(x)
            hidden.append(h[0])
            cell.append(c[0])
        return {"hidden": torch.stack(hidden, dim=1), "cell": torch.stack(cell, dim=1)}

    def start(self, memory: Memory) -> State:
        """The encoder's last states, layer by layer."""
        return dict(memory)

    def decode(self, tgt_in: Tensor, memory: Memory, state: State) -> tuple[Tensor, State]:
        """The stack that writes; of the source it knows its state alone: the memory has done its work in `start`."""
        x = self.dropout(self.target_embedding(tgt_in))  # the previous word: (batch, tgt_len, dim)
        hidden, cell = [], []
        for layer, lstm in enumerate(self.decoder):
            start = tuple(state[name][:, layer].contiguous()[None] for name in ("hidden", "cell"))  # (1, batch, dim)
            x, (h, c) = lstm(x, start)
            x = self.dropout(x)
            hidden.append(h[0])
            cell.append(c[0])
        return self.output(x), {"hidden": torch.stack(hidden, dim=1), "cell": torch.stack(cell, dim=1)}
