"""CapsNMT: a BiLSTM encoder's states are routed by agreement into M capsules; an LSTM writes the translation from them.

Wang et al. 2019, "Towards Linear Time Neural Machine Translation with Capsule Networks". Equations are numbered as in
docs/PAPER.md. Decoding costs O(|S| + |T|): the memory is one vector W_c [c_1 … c_M], whatever the source length.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor, nn

from capsnmt.config import StrictModel
from capsnmt.models.contract import Memory, State, TranslationModel
from capsnmt.models.layers import (
    BiLSTMEncoder,
    LSTMDecoder,
    Tying,
    build_embeddings,
    feed_forward,
    sinusoidal_positions,
)
from capsnmt.models.routing import Routed, dot_product_score, route


class CapsNMTConfig(StrictModel):
    """The paper's base model by default."""

    system: Literal["capsnmt"] = "capsnmt"
    width: int = Field(512, ge=2, multiple_of=2)  # d: "the dimensions of all the hidden states"
    encoder_layers: int = Field(4, ge=1)
    decoder_layers: int = Field(3, ge=1)
    num_capsules: tuple[int, ...] = (6,)  # M of each capsule layer, bottom to top
    num_iterations: int = Field(3, ge=1)  # T
    share_iteration_weights: bool = False  # θ^t = θ for all t
    position_aware: bool = True
    separable_scoring: bool = True  # Eq. 14 instead of Eq. 12
    scaled_scores: bool = True  # Deviation: see CapsuleLayer.score
    capsule_norm: bool = True  # layer norm follows the capsule layer as every other sub-layer
    dropout: float = Field(0.3, ge=0.0, lt=1.0)
    tie_embeddings: Tying = "all"

    @field_validator("num_capsules", mode="before")
    @classmethod
    def _one_layer_may_be_a_number(cls, value: object) -> object:
        return (value,) if isinstance(value, int) else value

    @field_validator("num_capsules")
    @classmethod
    def _every_layer_has_capsules(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or min(value) < 1:
            raise ValueError("num_capsules needs at least one layer with at least one capsule")
        return value


class CapsuleLayer(nn.Module):
    """Section 3: aggregates any number of child capsules into M parent capsules."""

    def __init__(self, config: CapsNMTConfig, num_parents: int) -> None:
        super().__init__()
        d = config.width
        num_thetas = 1 if config.share_iteration_weights else config.num_iterations
        self.config = config
        self.num_parents = num_parents
        # θ^t: the W_j of all parents side by side, so that Eq. 8 is one matrix product.
        self.W = nn.Parameter(torch.empty(num_thetas, d, num_parents * d))
        nn.init.normal_(self.W, std=math.sqrt(2.0 / d))  # He: the variance survives the ReLU
        # With one iteration nothing is ever scored, so there is no g.
        self.g = feed_forward(d, d, d) if config.separable_scoring and config.num_iterations > 1 else None
        self.norm = nn.LayerNorm(d) if config.capsule_norm else nn.Identity()

    def forward(self, h: Tensor, mask: Tensor) -> Routed:
        """Children h (batch, src_len, dim) → capsules (batch, M, dim) and the coefficients of every iteration."""
        parent_positions = None
        if self.config.position_aware:
            h = h + sinusoidal_positions(h.size(1), h.size(2), device=h.device)
            parent_positions = sinusoidal_positions(self.num_parents, h.size(2), device=h.device)
        g_h = None if self.g is None else self.g(h)  # (batch, src_len, dim); children never change, so it is made once

        def compose(t: int) -> Tensor:
            """Eq. 8: f(h_i, θ_j^t) = ReLU(h_i W_j^t)."""
            W = self.W[min(t, len(self.W) - 1)]  # (dim, M * dim)
            return (h @ W).relu().view(*h.shape[:2], self.num_parents, -1)  # (batch, src_len, M, dim)

        routed = route(
            compose,
            lambda c, f: self.score(c, f, g_h),
            mask=mask,
            num_parents=self.num_parents,
            num_iterations=self.config.num_iterations,
            parent_positions=parent_positions,
        )
        return Routed(self.norm(routed.capsules), routed.coefficients)

    def score(self, c: Tensor, f: Tensor, g_h: Tensor | None) -> Tensor:
        """Agreement of parents c (batch, M, dim) with children → (batch, src_len, M)."""
        d = c.size(-1)
        # Deviation: squashed capsules have norm < 1 while children have norm √d. Scaling the capsules up to the
        # children's scale and the product down by √d, as attention does, keeps the scores of order 1 at any width.
        if self.config.scaled_scores:
            c = c * math.sqrt(d)
        if self.g is not None and g_h is not None:
            agreement: Tensor = g_h @ self.g(c).transpose(1, 2)  # Eq. 14: g(h_i) · g(c_j)
        else:
            agreement = dot_product_score(c, f)  # Eq. 12
        return agreement / math.sqrt(d) if self.config.scaled_scores else agreement


class CapsNMT(TranslationModel):
    """Encoder (Eq. 1), capsule layers (Eq. 7-14), decoder (Eq. 5) and softmax (Eq. 6)."""

    def __init__(self, config: CapsNMTConfig, *, source_size: int, target_size: int) -> None:
        super().__init__()
        d = config.width
        self.source_embedding, self.target_embedding, self.output = build_embeddings(
            source_size=source_size, target_size=target_size, width=d, tie=config.tie_embeddings
        )
        self.encoder = BiLSTMEncoder(width=d, num_layers=config.encoder_layers, dropout=config.dropout)
        self.capsules = nn.ModuleList(CapsuleLayer(config, M) for M in config.num_capsules)
        self.W_c = nn.Linear(config.num_capsules[-1] * d, d, bias=False)
        self.decoder = LSTMDecoder(width=d, num_layers=config.decoder_layers, dropout=config.dropout)
        self.dropout = nn.Dropout(config.dropout)

    def routed(self, src: Tensor, src_mask: Tensor) -> list[Routed]:
        """Every capsule layer's capsules and coefficients: what analysis looks at."""
        children = self.encoder(self.dropout(self.source_embedding(src)), src_mask)  # H: (batch, src_len, dim)
        mask, layers = src_mask, []
        for capsule_layer in self.capsules:
            layers.append(capsule_layer(children, mask))
            children = layers[-1].capsules  # (batch, M, dim)
            mask = src_mask.new_ones(children.shape[:2])
        return layers

    def encode(self, src: Tensor, src_mask: Tensor) -> Memory:
        """One vector W_c [c_1, …, c_M] a sentence, (batch, dim): Eq. 5 says that it is calculated in advance."""
        C = self.routed(src, src_mask)[-1].capsules  # Eq. 13
        return {"context": self.W_c(self.dropout(C).flatten(1))}

    def start(self, memory: Memory) -> State:
        """Zeros, of constant size."""
        return self.decoder.start(memory["context"])

    def _decode(self, tgt_in: Tensor, memory: Memory, state: State) -> tuple[Tensor, State]:
        y = self.dropout(self.target_embedding(tgt_in))  # y_t of Eq. 5 is the *previous* word: (batch, tgt_len, dim)
        u = memory["context"][:, None] + y  # Eq. 5
        s, state = self.decoder(u, state)
        return self.output(s), state  # Eq. 6 before the softmax

    def step(self, ids: Tensor, memory: Memory, state: State) -> tuple[Tensor, State]:
        """One token of each hypothesis, (batch,)."""
        logits, state = self._decode(ids[:, None], memory, state)
        return logits[:, 0], state

    def forward(self, src: Tensor, src_mask: Tensor, tgt_in: Tensor) -> Tensor:
        """All target positions at once → (batch, tgt_len, vocabulary)."""
        memory = self.encode(src, src_mask)
        logits, _ = self._decode(tgt_in, memory, self.start(memory))
        return logits
