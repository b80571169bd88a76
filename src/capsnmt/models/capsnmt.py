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
    Attending,
    BiLSTMEncoder,
    LSTMDecoder,
    StartState,
    Tying,
    build_embeddings,
    feed_forward,
    sinusoidal_positions,
)
from capsnmt.models.routing import Routed, dot_product_score, mean_of, places, route, squash, unit, windows


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
    score_scale: float = Field(1.0, gt=0.0)  # Deviation: times the scores; more is sharper
    capsule_norm: bool = True  # layer norm follows the capsule layer as every other sub-layer
    capsule_residual: bool = False  # Deviation: and a residual connection stands around it; see CapsuleLayer.forward
    transform: Literal["per_parent", "low_rank", "shared"] = "per_parent"  # Deviation: W_j of Eq. 8
    rank: int = Field(64, ge=1)  # of a low-rank W_j
    nonlinearity: Literal["squash", "unit", "none"] = "squash"  # Deviation: instead of Eq. 10
    mean_of_children: bool = False  # Deviation: Eq. 7 divided by the sum of its coefficients
    balanced: bool = False  # Deviation: see routing.assign
    position_prior: bool = False  # Deviation: b^0 is learnt from where a child stands
    windows: float = Field(0.0, ge=0.0)  # Deviation: b^0 favours the parent whose part of the sentence a child is in
    detach_agreement: bool = False  # Deviation: no gradient flows through the scores
    agreement: bool = True  # Deviation: off is a control, T = 1 with the weights of all T iterations
    attention: Literal["none", "capsules", "states"] = "none"  # Deviation: what the decoder attends over, if anything
    num_heads: int = Field(4, ge=1)  # of that attention
    attending: Attending = "first"  # which layers of the decoder attend
    start_state: Literal["zeros", "capsules"] = "zeros"  # of the decoder
    dropout: float = Field(0.3, ge=0.0, lt=1.0)
    tie_embeddings: Tying = "all"  # kept for folders that do not say; recipes have none: docs/ROUTING.md

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


NONLINEARITIES = {"squash": squash, "unit": unit, "none": lambda v: v}


class CapsuleLayer(nn.Module):
    """Section 3: aggregates any number of child capsules into M parent capsules."""

    def __init__(self, config: CapsNMTConfig, num_parents: int) -> None:
        super().__init__()
        d, M = config.width, num_parents
        num_thetas = 1 if config.share_iteration_weights else config.num_iterations
        self.config = config
        self.num_parents = M
        # θ^t: the W_j of all parents side by side, so that Eq. 8 is one matrix product.
        if config.transform == "low_rank":
            self.V = nn.Parameter(torch.empty(num_thetas, d, M * config.rank))
            self.W = nn.Parameter(torch.empty(num_thetas, M, config.rank, d))
            nn.init.normal_(self.V, std=math.sqrt(1.0 / d))
            nn.init.normal_(self.W, std=math.sqrt(2.0 / config.rank))
        else:
            self.W = nn.Parameter(torch.empty(num_thetas, d, d if config.transform == "shared" else M * d))
            nn.init.normal_(self.W, std=math.sqrt(2.0 / d))  # He: the variance survives the ReLU
        self.num_iterations = config.num_iterations if config.agreement else 1
        # With one iteration nothing is ever scored, so there is no g.
        self.g = feed_forward(d, d, d) if config.separable_scoring and self.num_iterations > 1 else None
        self.prior = nn.Linear(d, M) if config.position_prior else None
        self.norm = nn.LayerNorm(d) if config.capsule_norm else nn.Identity()

    def forward(self, h: Tensor, mask: Tensor) -> Routed:
        """Children h (batch, src_len, dim) → capsules (batch, M, dim) and the coefficients of every iteration."""
        config, M = self.config, self.num_parents
        b = h.new_zeros(*h.shape[:2], M, dtype=torch.float32)  # b^0_ij = 0: (batch, src_len, M)
        if self.prior is not None:
            b = b + self.prior(relative_positions(mask, h.size(2)))
        if config.windows:
            b = b + config.windows * windows(mask, M)
        parent_positions, plain_h = None, h
        if config.position_aware:
            h = h + sinusoidal_positions(h.size(1), h.size(2), device=h.device)
            parent_positions = sinusoidal_positions(M, h.size(2), device=h.device)
        g_h = None if self.g is None else self.g(h)  # (batch, src_len, dim); children never change, so it is made once

        routed = route(
            lambda t: self.compose(h, t) if config.agreement else self.compose_all(h),
            lambda c, f: self.score(c, f, g_h),
            b=b,
            mask=mask,
            num_iterations=self.num_iterations,
            parent_positions=parent_positions,
            nonlinearity=NONLINEARITIES[config.nonlinearity],
            mean=config.mean_of_children,
            balanced=config.balanced,
            detach=config.detach_agreement,
        )
        c = routed.capsules
        if config.capsule_residual:
            # The residual is the mean of the children that a parent took; they have norm √d, squashed capsules < 1.
            c = c * (math.sqrt(h.size(2)) if config.nonlinearity != "none" else 1.0)
            c = c + mean_of(plain_h, routed.coefficients[-1])
        return Routed(self.norm(c), routed.coefficients)

    def compose(self, h: Tensor, t: int) -> Tensor:
        """Eq. 8: f(h_i, θ_j^t) = ReLU(h_i W_j^t), (batch, src_len, M, dim), or M = 1 of a W that all parents share."""
        theta = min(t, len(self.W) - 1)
        if self.config.transform == "low_rank":
            low = (h @ self.V[theta]).view(*h.shape[:2], self.num_parents, -1)  # (batch, src_len, M, rank)
            return torch.einsum("bimr,mrd->bimd", low, self.W[theta]).relu()
        return (h @ self.W[theta]).relu().view(*h.shape[:2], -1, h.size(2))

    def compose_all(self, h: Tensor) -> Tensor:
        """Without agreement there is one iteration, which has what all of them have to compose with."""
        return torch.stack([self.compose(h, t) for t in range(len(self.W))]).sum(dim=0)

    def score(self, c: Tensor, f: Tensor, g_h: Tensor | None) -> Tensor:
        """Agreement of parents c (batch, M, dim) with children → (batch, src_len, M)."""
        d = c.size(-1)
        # Deviation: squashed capsules have norm < 1 while children have norm √d. Scaling the capsules up to the
        # children's scale and the product down by √d, as attention does, keeps the scores of order 1 at any width.
        if self.config.scaled_scores and self.config.nonlinearity != "none":
            c = c * math.sqrt(d)
        if self.g is not None and g_h is not None:
            agreement: Tensor = g_h @ self.g(c).transpose(1, 2)  # Eq. 14: g(h_i) · g(c_j)
        else:
            agreement = dot_product_score(c, f)  # Eq. 12
        return agreement * (self.config.score_scale / (math.sqrt(d) if self.config.scaled_scores else 1.0))


def relative_positions(mask: Tensor, width: int) -> Tensor:
    """Sinusoids of where each token stands in its own sentence, from 0 to 100 → (batch, src_len, dim)."""
    place = places(mask) * 100.0  # (batch, src_len)
    frequencies = torch.exp(torch.arange(0, width, 2, device=mask.device) * (-math.log(10_000.0) / width))
    angles = place[..., None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class CapsNMT(TranslationModel):
    """Encoder (Eq. 1), capsule layers (Eq. 7-14), decoder (Eq. 5) and softmax (Eq. 6)."""

    def __init__(self, config: CapsNMTConfig, *, source_size: int, target_size: int) -> None:
        super().__init__()
        d = config.width
        self.config = config
        self.source_embedding, self.target_embedding, self.output = build_embeddings(
            source_size=source_size, target_size=target_size, width=d, tie=config.tie_embeddings
        )
        self.encoder = BiLSTMEncoder(width=d, num_layers=config.encoder_layers, dropout=config.dropout)
        self.capsules = nn.ModuleList(CapsuleLayer(config, M) for M in config.num_capsules)
        self.W_c = nn.Linear(config.num_capsules[-1] * d, d, bias=False)
        self.decoder = LSTMDecoder(
            width=d,
            num_layers=config.decoder_layers,
            dropout=config.dropout,
            num_heads=None if config.attention == "none" else config.num_heads,
            attending=config.attending,
        )
        self.starter = StartState(d, config.decoder_layers) if config.start_state == "capsules" else None
        self.dropout = nn.Dropout(config.dropout)

    def states(self, src: Tensor, src_mask: Tensor) -> Tensor:
        """H = [h_1, …, h_L], the primary capsules: (batch, src_len, dim)."""
        h: Tensor = self.encoder(self.dropout(self.source_embedding(src)), src_mask)
        return h

    def routed(self, h: Tensor, src_mask: Tensor) -> list[Routed]:
        """Every capsule layer's capsules and coefficients."""
        mask, layers = src_mask, []
        for capsule_layer in self.capsules:
            layers.append(capsule_layer(h, mask))
            h = layers[-1].capsules  # (batch, M, dim)
            mask = src_mask.new_ones(h.shape[:2])
        return layers

    def routing(self, src: Tensor, src_mask: Tensor) -> Tensor:
        """What analysis looks at: which word went to which capsule, (batch, iterations, src_len, M)."""
        return torch.stack(self.routed(self.states(src, src_mask), src_mask)[0].coefficients, dim=1)

    def encode(self, src: Tensor, src_mask: Tensor) -> Memory:
        """One vector W_c [c_1, …, c_M] a sentence, (batch, dim): Eq. 5 says that it is calculated in advance."""
        h = self.states(src, src_mask)
        C = self.dropout(self.routed(h, src_mask)[-1].capsules)  # Eq. 13
        memory = {"context": self.W_c(C.flatten(1))}
        if self.config.attention == "capsules":  # M of them, whatever the source length
            memory |= self.decoder.remember(C)
        if self.config.attention == "states":
            memory |= self.decoder.remember(h, src_mask)
        return memory

    def start(self, memory: Memory) -> State:
        """Zeros, or made from the capsules; of constant size."""
        return self.decoder.start(memory["context"]) if self.starter is None else self.starter(memory["context"])

    def decode(self, tgt_in: Tensor, memory: Memory, state: State) -> tuple[Tensor, State]:
        """Eq. 5 and 6: u_t for all positions, the decoder's layers, the softmax."""
        y = self.dropout(self.target_embedding(tgt_in))  # y_t of Eq. 5 is the *previous* word: (batch, tgt_len, dim)
        u = memory["context"][:, None] + y  # Eq. 5
        s, state = self.decoder(u, state, memory)
        return self.output(s), state  # Eq. 6 before the softmax
