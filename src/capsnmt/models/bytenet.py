"""ByteNet (Kalchbrenner et al. 2016, "Neural Machine Translation in Linear Time"): characters, dilated convolutions.

The decoder stands on top of the encoder: step t reads the encoder's column t, and nothing is compressed or attended
over. So that there are columns enough, the source is unfolded to |t̂| = a|S| + b positions (its Eq. 2); an output that
runs on after them reads zeros. Each block
of the decoder keeps the (k-1)·r inputs that its convolution looks back to: a state of constant size. A step costs the
same for any source and at any position; the memory is one column for each position.
"""

from __future__ import annotations

from typing import Literal, TypeVar

import torch
import torch.nn.functional as F
from pydantic import Field, field_validator
from torch import Tensor, nn

from capsnmt.config import StrictModel
from capsnmt.models.contract import Memory, State, TranslationModel
from capsnmt.models.layers import Tying, build_embeddings, neighbours

Length = TypeVar("Length", int, Tensor)


class ByteNetConfig(StrictModel):
    """The translation model of the paper's section 6 by default."""

    system: Literal["bytenet"] = "bytenet"
    width: int = Field(800, ge=1)  # d; embeddings and the residual stream are 2d wide
    dilations: tuple[int, ...] = (1, 2, 4, 8, 16)  # r of each block of a set
    encoder_sets: int = Field(6, ge=1)  # times the dilations: 30 blocks
    decoder_sets: int = Field(6, ge=1)
    kernel: int = Field(3, ge=2)  # k
    unfold_multiple: int = Field(1, ge=1)  # |S| is rounded up to a multiple of it first; 50 in the paper
    unfold_ratio: float = Field(1.2, ge=1.0)  # a, in hundredths
    unfold_extra: int = Field(0, ge=0)  # b
    dropout: float = Field(0.0, ge=0.0, lt=1.0)
    tie_embeddings: Tying = "none"

    @field_validator("dilations")
    @classmethod
    def _positive(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or min(value) < 1:
            raise ValueError("dilations needs at least one rate, each at least 1")
        return value

    @field_validator("unfold_ratio")
    @classmethod
    def _hundredths(cls, value: float) -> float:
        if round(value, 2) != value:  # `unfolded` computes with whole hundredths
            raise ValueError("unfold_ratio may have two decimals at most")
        return value


class ResidualBlock(nn.Module):
    """Figure 3 (left): x + 1×1(1×k(1×1(x))), layer norm and ReLU before each; 2d wide outside and d inside.

    Layer norm sees one position at a time; batch statistics would tell a masked network about its future.
    """

    def __init__(self, d: int, *, kernel: int, dilation: int, dropout: float) -> None:
        super().__init__()
        self.kernel = kernel
        self.dilation = dilation
        self.reach = (kernel - 1) * dilation  # inputs besides the present one that an output depends on
        self.narrow_norm, self.narrow = nn.LayerNorm(2 * d), nn.Linear(2 * d, d)
        self.convolution_norm, self.convolution = nn.LayerNorm(d), nn.Linear(kernel * d, d)
        self.widen_norm, self.widen = nn.LayerNorm(d), nn.Linear(d, 2 * d)
        self.dropout = nn.Dropout(dropout)

    def inputs(self, x: Tensor) -> Tensor:
        """The stream x (batch, len, 2d) → what the wide convolution reads, (batch, len, d)."""
        h: Tensor = self.convolution_norm(self.narrow(self.narrow_norm(x).relu())).relu()
        return h

    def outputs(self, x: Tensor, window: Tensor) -> Tensor:
        """x and `reach` more inputs than x has positions, (batch, len + reach, d) → the next x."""
        h = self.convolution(neighbours(window, self.kernel, self.dilation))
        added: Tensor = x + self.dropout(self.widen(self.widen_norm(h).relu()))
        return added

    def unmasked(self, x: Tensor, mask: Tensor) -> Tensor:
        """Looks to both sides; `mask` (batch, len, 1) keeps what is no part of the sentence at zero."""
        before = self.reach // 2
        return self.outputs(x, F.pad(self.inputs(x) * mask, (0, 0, before, self.reach - before)))

    def masked(self, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        """Looks back only, into `past` (batch, reach, d) first; returns the next x and the next past."""
        window = torch.cat([past, self.inputs(x)], dim=1)  # (batch, reach + len, d)
        return self.outputs(x, window), window[:, -self.reach :]


class ByteNet(TranslationModel):
    """Encoder, columns, decoder (section 3)."""

    def __init__(self, config: ByteNetConfig, *, source_size: int, target_size: int) -> None:
        super().__init__()
        self.config = config
        d = config.width
        self.source_embedding, self.target_embedding, self.output = build_embeddings(
            source_size=source_size, target_size=target_size, width=2 * d, tie=config.tie_embeddings
        )
        self.encoder, self.decoder = (
            nn.ModuleList(
                ResidualBlock(d, kernel=config.kernel, dilation=dilation, dropout=config.dropout)
                for dilation in config.dilations * num_sets
            )
            for num_sets in (config.encoder_sets, config.decoder_sets)
        )
        # "1×1, ReLU, 1×1, softmax". Deviation: the layer norm before them. The blocks normalise what they read and
        # never what they leave, so the sum of 60 of them would reach the softmax at any size.
        self.head = nn.Sequential(nn.LayerNorm(2 * d), nn.Linear(2 * d, 2 * d), nn.ReLU())
        self.dropout = nn.Dropout(config.dropout)

    def unfolded(self, lengths: Length) -> Length:
        """|t̂| = a|S| + b, rounded down; whole numbers throughout, so that tracing keeps it a function of |S|.

        |S| is rounded up to a multiple first: each sentence's own, so its columns do not depend on its company.
        """
        multiple = self.config.unfold_multiple
        padded = (lengths + multiple - 1) // multiple * multiple
        return padded * round(100 * self.config.unfold_ratio) // 100 + self.config.unfold_extra

    def encode(self, src: Tensor, src_mask: Tensor) -> Memory:
        """One column for each of |t̂| positions, (batch, |t̂|, 2d); zero beyond a sentence's own |t̂|."""
        embedded = self.dropout(self.source_embedding(src)) * src_mask[..., None]
        width = self.unfolded(src.size(1))
        beyond = embedded.new_zeros(src.size(0), width - src.size(1), embedded.size(2))
        x = torch.cat([embedded, beyond], dim=1)  # (batch, |t̂|, 2d)
        lengths = self.unfolded(src_mask.sum(dim=1, keepdim=True))  # (batch, 1)
        mask = (torch.arange(width, device=src.device) < lengths)[..., None].to(x.dtype)  # (batch, |t̂|, 1)
        for block in self.encoder:
            assert isinstance(block, ResidualBlock)
            x = block.unmasked(x, mask)
        return {"columns": x * mask}

    def start(self, memory: Memory) -> State:
        """Position 0 and a past of zeros for each block, (batch, (k-1)·r, d): as if padded on the left."""
        columns = memory["columns"]
        state = {"position": torch.zeros_like(columns[:, 0, 0], dtype=torch.long)}  # (batch,)
        for number, block in enumerate(self.decoder):
            assert isinstance(block, ResidualBlock)
            state[f"past{number}"] = columns.new_zeros(columns.size(0), block.reach, self.config.width)
        return state

    def decode(self, tgt_in: Tensor, memory: Memory, state: State) -> tuple[Tensor, State]:
        """Each target position stands on its column; every block looks back into its past."""
        positions = state["position"][:, None] + torch.arange(tgt_in.size(1), device=tgt_in.device)
        x = self.dropout(self.target_embedding(tgt_in)) + columns_at(memory["columns"], positions)
        new_state = {"position": state["position"] + tgt_in.size(1)}
        for number, block in enumerate(self.decoder):
            assert isinstance(block, ResidualBlock)
            x, new_state[f"past{number}"] = block.masked(x, state[f"past{number}"])
        return self.output(self.dropout(self.head(x))), new_state


def columns_at(columns: Tensor, positions: Tensor) -> Tensor:
    """The columns (batch, |t̂|, dim) of `positions` (batch, len), zeros beyond the last → (batch, len, dim)."""
    index = positions.clamp(max=columns.size(1) - 1)
    found = columns.gather(1, index[..., None].expand(-1, -1, columns.size(2)))
    return found * (positions < columns.size(1))[..., None].to(columns.dtype)
