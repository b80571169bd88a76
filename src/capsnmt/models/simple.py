"""Simple aggregation: CapsNMT's frame with [max, avg, first, last] in the place of the capsule layer.

The paper's own baseline (its section 2, Eq. 2-4): no routing and no parameters in the aggregation.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from capsnmt.config import StrictModel
from capsnmt.models.contract import Memory, State, TranslationModel
from capsnmt.models.layers import (
    Attending,
    BiLSTMEncoder,
    LSTMDecoder,
    Tying,
    build_embeddings,
    feed_forward,
    last_of,
    masked_max,
    masked_mean,
)


class SimpleAggregationConfig(StrictModel):
    """The paper's base model by default."""

    system: Literal["simple"] = "simple"
    width: int = Field(512, ge=2, multiple_of=2)  # d
    encoder_layers: int = Field(4, ge=1)
    decoder_layers: int = Field(3, ge=1)
    projection_width: int | None = Field(None, ge=1)  # Deviation: inner width of a feed-forward network on C
    projection_residual: bool = False  # Deviation: and a residual connection around it, as around CapsNMT's capsules
    vector_norm: bool = False  # Deviation: layer norm on each vector of C, as on CapsNMT's capsules
    attention: Literal["none", "vectors"] = "none"  # Deviation: the decoder also attends over the four vectors
    num_heads: int = Field(4, ge=1)  # of that attention
    attending: Attending = "first"  # which layers of the decoder attend
    dropout: float = Field(0.3, ge=0.0, lt=1.0)
    tie_embeddings: Tying = "all"  # kept for folders that do not say; recipes have none: docs/ROUTING.md


def aggregate(h: Tensor, mask: Tensor) -> Tensor:
    """Eq. 2-4: H (batch, src_len, dim) → C = [h^max, h^avg, h_1, h_L], (batch, 4, dim)."""
    return torch.stack([masked_max(h, mask), masked_mean(h, mask), h[:, 0], last_of(h, mask)], dim=1)


class SimpleAggregation(TranslationModel):
    """Encoder (Eq. 1), pooling (Eq. 2-4), decoder (Eq. 5) and softmax (Eq. 6)."""

    def __init__(self, config: SimpleAggregationConfig, *, source_size: int, target_size: int) -> None:
        super().__init__()
        self.config = config
        d = config.width
        self.source_embedding, self.target_embedding, self.output = build_embeddings(
            source_size=source_size, target_size=target_size, width=d, tie=config.tie_embeddings
        )
        self.encoder = BiLSTMEncoder(width=d, num_layers=config.encoder_layers, dropout=config.dropout)
        # Deviations, for controls of the routing study: what routing has besides routing.
        inner = config.projection_width
        self.projection = nn.Identity() if inner is None else feed_forward(d, inner, d)
        self.norm = nn.LayerNorm(d) if config.vector_norm else nn.Identity()
        self.W_c = nn.Linear(4 * d, d, bias=False)
        self.decoder = LSTMDecoder(
            width=d,
            num_layers=config.decoder_layers,
            dropout=config.dropout,
            num_heads=None if config.attention == "none" else config.num_heads,
            attending=config.attending,
        )
        self.dropout = nn.Dropout(config.dropout)

    def encode(self, src: Tensor, src_mask: Tensor) -> Memory:
        """One vector W_c C a sentence: (batch, dim)."""
        h = self.encoder(self.dropout(self.source_embedding(src)), src_mask)
        C = aggregate(h, src_mask)  # (batch, 4, dim)
        projected = self.projection(C)
        C = self.dropout(self.norm(C + projected if self.config.projection_residual else projected))
        memory = {"context": self.W_c(C.flatten(1))}
        return memory if self.config.attention == "none" else memory | self.decoder.remember(C)

    def start(self, memory: Memory) -> State:
        """Zeros, of constant size."""
        return self.decoder.start(memory["context"])

    def decode(self, tgt_in: Tensor, memory: Memory, state: State) -> tuple[Tensor, State]:
        """As CapsNMT decodes, from an aggregation."""
        y = self.dropout(self.target_embedding(tgt_in))  # the previous word: (batch, tgt_len, dim)
        s, state = self.decoder(memory["context"][:, None] + y, state, memory)
        return self.output(s), state
