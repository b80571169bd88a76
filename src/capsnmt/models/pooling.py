"""Attention pooling: CapsNMT's frame with M learned queries in the place of the capsule layer.

Not a system of the paper: the control that tells what routing's iterations add to M weighted sums. Each query weighs
all words by itself (a softmax over the children), where capsules compete for each word (a softmax over the parents).
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from capsnmt.config import StrictModel
from capsnmt.models.contract import Memory, State, TranslationModel
from capsnmt.models.layers import Attending, BiLSTMEncoder, LSTMDecoder, Tying, build_embeddings, sinusoidal_positions
from capsnmt.models.routing import gather_children, mean_of, windows


class AttentionPoolingConfig(StrictModel):
    """The paper's base sizes by default."""

    system: Literal["pooling"] = "pooling"
    width: int = Field(512, ge=2, multiple_of=2)  # d
    encoder_layers: int = Field(4, ge=1)
    decoder_layers: int = Field(3, ge=1)
    num_queries: int = Field(6, ge=1)  # M
    position_aware: bool = True  # positions are added to the children, as in CapsNMT
    parent_positions: bool = False  # and to the M vectors, as in CapsNMT; without, attention cannot tell them apart
    transform: Literal["per_parent", "shared"] = "per_parent"  # W_j, or one W for all queries; see CapsNMT
    windows: float = Field(0.0, ge=0.0)  # what the same switch gives to CapsNMT
    residual: bool = False  # what capsule_residual gives to CapsNMT
    attention: Literal["none", "vectors"] = "none"  # the decoder also attends over the M vectors
    num_heads: int = Field(4, ge=1)  # of that attention
    attending: Attending = "first"  # which layers of the decoder attend
    dropout: float = Field(0.3, ge=0.0, lt=1.0)
    tie_embeddings: Tying = "all"  # kept for folders that do not say; recipes have none: docs/ROUTING.md


class AttentionPooling(TranslationModel):
    """Encoder (Eq. 1), M weighted sums of ReLU(h_i W_j), decoder (Eq. 5) and softmax (Eq. 6)."""

    def __init__(self, config: AttentionPoolingConfig, *, source_size: int, target_size: int) -> None:
        super().__init__()
        self.config = config
        d, M = config.width, config.num_queries
        self.source_embedding, self.target_embedding, self.output = build_embeddings(
            source_size=source_size, target_size=target_size, width=d, tie=config.tie_embeddings
        )
        self.encoder = BiLSTMEncoder(width=d, num_layers=config.encoder_layers, dropout=config.dropout)
        self.key = nn.Linear(d, d)
        self.queries = nn.Parameter(torch.randn(M, d))
        self.W = nn.Parameter(torch.randn(d, d if config.transform == "shared" else M * d) * math.sqrt(2.0 / d))
        self.norm = nn.LayerNorm(d)
        self.W_c = nn.Linear(M * d, d, bias=False)
        self.decoder = LSTMDecoder(
            width=d,
            num_layers=config.decoder_layers,
            dropout=config.dropout,
            num_heads=None if config.attention == "none" else config.num_heads,
            attending=config.attending,
        )
        self.dropout = nn.Dropout(config.dropout)

    def pool(self, h: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Children h (batch, src_len, dim) → M vectors (batch, M, dim) and the weights (batch, src_len, M)."""
        plain_h = h
        if self.config.position_aware:
            h = h + sinusoidal_positions(h.size(1), h.size(2), device=h.device)
        scores = self.key(h) @ self.queries.T / math.sqrt(h.size(2))  # (batch, src_len, M)
        if self.config.windows:
            scores = scores + self.config.windows * windows(mask, len(self.queries))
        alpha = scores.masked_fill(~mask[..., None], -torch.inf).softmax(dim=1)  # over the children
        f = (h @ self.W).relu().view(*h.shape[:2], -1, h.size(2))  # (batch, src_len, M or 1, dim)
        C = gather_children(alpha, f)
        if self.config.parent_positions:
            C = C + sinusoidal_positions(len(self.queries), h.size(2), device=h.device)
        return self.norm(C + mean_of(plain_h, alpha) if self.config.residual else C), alpha

    def encode(self, src: Tensor, src_mask: Tensor) -> Memory:
        """One vector W_c C a sentence, (batch, dim), and what the decoder attends over."""
        C, _ = self.pool(self.encoder(self.dropout(self.source_embedding(src)), src_mask), src_mask)
        C = self.dropout(C)
        memory = {"context": self.W_c(C.flatten(1))}
        return memory if self.config.attention == "none" else memory | self.decoder.remember(C)

    def start(self, memory: Memory) -> State:
        """Zeros, of constant size."""
        return self.decoder.start(memory["context"])

    def decode(self, tgt_in: Tensor, memory: Memory, state: State) -> tuple[Tensor, State]:
        """As CapsNMT decodes, from weighted sums."""
        y = self.dropout(self.target_embedding(tgt_in))  # the previous word: (batch, tgt_len, dim)
        s, state = self.decoder(memory["context"][:, None] + y, state, memory)
        return self.output(s), state
