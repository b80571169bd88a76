"""GNMT: deep LSTM stacks with residual connections, and attention from the bottom of the decoder to all of it.

Wu et al. 2016, "Google's Neural Machine Translation System: Bridging the Gap between Human and Machine Translation".
What makes it this system: only the bottom encoder layer is bidirectional; residual connections begin at the third
layer; the bottom decoder layer's previous output asks for the context a_i, which *all* decoder layers then read. Only
the bottom layer has to wait for it, so training runs the other seven over all positions at once. O(|S||T|).

Deviation: its second stage, refinement by reinforcement learning (its section 5), is not here.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from capsnmt.config import StrictModel
from capsnmt.models.contract import Memory, State, TranslationModel
from capsnmt.models.layers import (
    AdditiveAttention,
    Tying,
    build_embeddings,
    reversal_index,
    reverse_rows,
    unidirectional_lstm,
)

FIRST_RESIDUAL_LAYER = 3  # counted from the bottom, from 1


class GNMTConfig(StrictModel):
    """The paper's sizes by default."""

    system: Literal["gnmt"] = "gnmt"
    width: int = Field(1024, ge=1)  # nodes of a layer, of a word and of the attention network
    encoder_layers: int = Field(8, ge=2)  # the bottom one is bidirectional
    decoder_layers: int = Field(8, ge=1)
    dropout: float = Field(0.2, ge=0.0, lt=1.0)
    tie_embeddings: Tying = "none"


class GNMT(TranslationModel):
    """Encoder and decoder stacks (its section 3)."""

    def __init__(self, config: GNMTConfig, *, source_size: int, target_size: int) -> None:
        super().__init__()
        self.config = config
        d = config.width
        self.source_embedding, self.target_embedding, self.output = build_embeddings(
            source_size=source_size, target_size=target_size, width=d, tie=config.tie_embeddings
        )
        self.forward_lstm, self.backward_lstm = (unidirectional_lstm(d, d) for _ in range(2))
        widths = [2 * d] + [d] * (config.encoder_layers - 2)
        self.encoder = nn.ModuleList(unidirectional_lstm(width, d) for width in widths)  # layers 2 to 8
        self.attention = AdditiveAttention(query_width=d, memory_width=d, hidden_width=d)
        self.bottom = nn.LSTMCell(2 * d, d)
        nn.init.ones_(self.bottom.bias_ih[d : 2 * d])  # open forget gates, as everywhere
        self.decoder = nn.ModuleList(unidirectional_lstm(2 * d, d) for _ in range(config.decoder_layers - 1))
        self.dropout = nn.Dropout(config.dropout)  # of what a layer reads. Deviation: the paper gives a rate alone

    def encode(self, src: Tensor, src_mask: Tensor) -> Memory:
        """The top layer's outputs x_t (batch, src_len, dim), their part of the attention network, the mask."""
        x, index = self.dropout(self.source_embedding(src)), reversal_index(src_mask)
        x_forward, _ = self.forward_lstm(x)
        x_backward, _ = self.backward_lstm(reverse_rows(x, index))
        x = torch.cat([x_forward, reverse_rows(x_backward, index)], dim=-1)  # (batch, src_len, 2 dim)
        for number, lstm in enumerate(self.encoder, start=2):
            m, _ = lstm(self.dropout(x))
            x = x + m if number >= FIRST_RESIDUAL_LAYER else m  # (batch, src_len, dim)
        return self.attention.remember(x, src_mask)

    def start(self, memory: Memory) -> State:
        """Zeros (batch, layers, dim), and what attention each source position has had: (batch, src_len).

        `coverage` is what the paper's coverage penalty Σ_j log(min(coverage_j, 1)) reads; padding counts as covered.
        """
        values = memory["values"]
        # Deviation: the paper does not say how a decoder starts.
        zeros = values.new_zeros(values.size(0), self.config.decoder_layers, self.config.width)
        return {"hidden": zeros, "cell": zeros, "coverage": (~memory["mask"]).to(values.dtype)}

    def _bottom(self, y: Tensor, memory: Memory, state: State) -> tuple[Tensor, Tensor, State]:
        """The bottom layer's outputs and the contexts a_i, both (batch, tgt_len, dim); its state and the coverage."""
        h, c, coverage = state["hidden"][:, 0], state["cell"][:, 0], state["coverage"]
        outputs, contexts = [], []
        for y_i in y.unbind(1):
            a, p = self.attention(h, memory)  # h: the output of the past step
            h, c = self.bottom(self.dropout(torch.cat([y_i, a], dim=-1)), (h, c))
            coverage = coverage + p
            outputs.append(h)
            contexts.append(a)
        end = {"hidden": h, "cell": c, "coverage": coverage}
        return torch.stack(outputs, dim=1), torch.stack(contexts, dim=1), end

    def decode(self, tgt_in: Tensor, memory: Memory, state: State) -> tuple[Tensor, State]:
        """Section 3: the bottom layer attends, its context goes to all layers above."""
        y = self.target_embedding(tgt_in)  # the previous word: (batch, tgt_len, dim)
        x, a, bottom = self._bottom(y, memory, state)
        hidden, cell = [bottom["hidden"]], [bottom["cell"]]
        for layer, lstm in enumerate(self.decoder, start=1):
            start = tuple(state[name][:, layer].contiguous()[None] for name in ("hidden", "cell"))  # (1, batch, dim)
            m, (h, c) = lstm(self.dropout(torch.cat([x, a], dim=-1)), start)
            x = x + m if layer + 1 >= FIRST_RESIDUAL_LAYER else m
            hidden.append(h[0])
            cell.append(c[0])
        stacked = {"hidden": torch.stack(hidden, dim=1), "cell": torch.stack(cell, dim=1)}
        return self.output(x), stacked | {"coverage": bottom["coverage"]}
