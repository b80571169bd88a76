"""The hybrid of CapsNMT and RNMT: the decoder reads the capsules' vector *and* an attention context.

The paper's abstract announces "new hybrid architectures intended to combine the strength of CapsNMT and the RNMT model"
and its text never describes them: this is our reading (docs/SYSTEMS.md). From CapsNMT: encoder, capsule layer and
W_c [c_1 … c_M] in the first layer's input (Eq. 5). From RNMT+ (Chen et al. 2018, Figure 1): multi-head additive
attention from the first decoder layer, whose context is fed to the rest of the layers and to the softmax.
`attend: states` looks at all encoder states, as RNMT+ does; `attend: capsules` at the M capsules, in linear time.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from capsnmt.config import StrictModel
from capsnmt.models.capsnmt import CapsNMTConfig, CapsuleLayer
from capsnmt.models.contract import Memory, State, TranslationModel
from capsnmt.models.layers import BiLSTMEncoder, SublayerNorm, Tying, build_embeddings, unidirectional_lstm
from capsnmt.models.rnmt import MultiHeadAdditiveAttention


class HybridConfig(StrictModel):
    """CapsNMT's base sizes by default: "Except when otherwise mentioned, NMT systems had 4 layers encoders …"."""

    system: Literal["hybrid"] = "hybrid"
    width: int = Field(512, ge=2, multiple_of=2)  # d
    encoder_layers: int = Field(4, ge=1)
    decoder_layers: int = Field(3, ge=1)
    num_capsules: int = Field(6, ge=1)  # M
    num_iterations: int = Field(3, ge=1)  # T
    capsule_form: Literal["paper", "found"] = "paper"  # Deviation: `found` is what won in docs/ROUTING.md
    attend: Literal["states", "capsules"] = "states"
    num_heads: int = Field(4, ge=1)
    dropout: float = Field(0.3, ge=0.0, lt=1.0)
    tie_embeddings: Tying = "all"  # kept for folders that do not say; recipes have none: docs/ROUTING.md

    @model_validator(mode="after")
    def _heads_divide_width(self) -> HybridConfig:
        if self.width % self.num_heads:
            raise ValueError(f"width {self.width} is not a multiple of num_heads {self.num_heads}")
        return self


def capsule_settings(config: HybridConfig) -> CapsNMTConfig:
    """All that a capsule layer reads, in full: a default of CapsNMT that changes must not change hybrids."""
    found = config.capsule_form == "found"
    return CapsNMTConfig(
        width=config.width,
        num_iterations=config.num_iterations,
        share_iteration_weights=False,  # the paper's three strategies, all on
        position_aware=True,
        separable_scoring=True,
        scaled_scores=True,
        score_scale=1.0,
        capsule_norm=True,
        capsule_residual=found,
        transform="shared" if found else "per_parent",
        rank=64,  # of transform="low_rank"
        nonlinearity="squash",
        mean_of_children=False,
        balanced=False,
        position_prior=False,
        windows=1.0 if found else 0.0,
        detach_agreement=False,
        agreement=True,
    )


class Hybrid(TranslationModel):
    """Encoder (Eq. 1), one capsule layer (Eq. 7-14 with the three strategies), decoder with two contexts."""

    def __init__(self, config: HybridConfig, *, source_size: int, target_size: int) -> None:
        super().__init__()
        self.config = config
        d, M = config.width, config.num_capsules
        self.source_embedding, self.target_embedding, self.output = build_embeddings(
            source_size=source_size, target_size=target_size, width=d, tie=config.tie_embeddings
        )
        self.encoder = BiLSTMEncoder(width=d, num_layers=config.encoder_layers, dropout=config.dropout)
        self.capsules = CapsuleLayer(capsule_settings(config), M)
        self.W_c = nn.Linear(M * d, d, bias=False)
        self.attention = MultiHeadAdditiveAttention(width=d, num_heads=config.num_heads, dropout=config.dropout)
        # The first layer reads u_t of Eq. 5, the others the layer below and the attention context side by side.
        self.decoder = nn.ModuleList(
            unidirectional_lstm(d if layer == 0 else 2 * d, d) for layer in range(config.decoder_layers)
        )
        self.residuals = nn.ModuleList(SublayerNorm(d, config.dropout) for _ in range(config.decoder_layers))
        self.readout = nn.Linear(2 * d, d)  # [s; context] to the width of the table that W_o may share
        self.dropout = nn.Dropout(config.dropout)

    def states(self, src: Tensor, src_mask: Tensor) -> Tensor:
        """H = [h_1, …, h_L], the primary capsules: (batch, src_len, dim)."""
        h: Tensor = self.encoder(self.dropout(self.source_embedding(src)), src_mask)
        return h

    def routing(self, src: Tensor, src_mask: Tensor) -> Tensor:
        """Which word went to which capsule, (batch, iterations, src_len, M)."""
        return torch.stack(self.capsules(self.states(src, src_mask), src_mask).coefficients, dim=1)

    def encode(self, src: Tensor, src_mask: Tensor) -> Memory:
        """W_c [c_1, …, c_M] (batch, dim), and keys and values of what is attended over."""
        h = self.states(src, src_mask)
        C = self.dropout(self.capsules(h, src_mask).capsules)  # (batch, M, dim)
        memory = {"context": self.W_c(C.flatten(1))}
        if self.config.attend == "capsules":
            return memory | self.attention.remember(C)
        return memory | self.attention.remember(h) | {"mask": src_mask}

    def start(self, memory: Memory) -> State:
        """Zeros, of constant size: (batch, layers, dim)."""
        context = memory["context"]
        zeros = context.new_zeros(context.size(0), len(self.decoder), self.config.width)
        return {"hidden": zeros, "cell": zeros}

    def decode(self, tgt_in: Tensor, memory: Memory, state: State) -> tuple[Tensor, State]:
        """The first layer reads the capsules' context, the others and the softmax that of attention, too."""
        y = self.dropout(self.target_embedding(tgt_in))  # the previous word: (batch, tgt_len, dim)
        x = memory["context"][:, None] + y  # Eq. 5
        inputs, hidden, cell = x, [], []
        for layer, (lstm, residual) in enumerate(zip(self.decoder, self.residuals, strict=True)):
            start = tuple(state[name][:, layer].contiguous()[None] for name in ("hidden", "cell"))  # (1, batch, dim)
            s, (h, c) = lstm(inputs, start)
            x = residual(x, s)
            if layer == 0:
                # Deviation from RNMT+'s text, not from its Figure 1: the first layer reads no earlier context (it has
                # the capsules'), so all target positions ask at once and the LSTMs stay fused.
                contexts = self.attention(x, memory)  # (batch, tgt_len, dim)
            inputs = torch.cat([x, contexts], dim=-1)  # (batch, tgt_len, 2·dim): the next layer's, or the softmax's
            hidden.append(h[0])
            cell.append(c[0])
        new_state = {"hidden": torch.stack(hidden, dim=1), "cell": torch.stack(cell, dim=1)}
        return self.output(self.readout(inputs)), new_state
