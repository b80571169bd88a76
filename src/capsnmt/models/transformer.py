"""The Transformer (Vaswani et al. 2017, "Attention Is All You Need"): the paper's quadratic-time rival and teacher.

Its memory grows with the source and its state with the target: the contract is not shaped for LSTMs alone.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from capsnmt.config import StrictModel
from capsnmt.models.contract import Memory, State, TranslationModel
from capsnmt.models.layers import Attention, Tying, build_embeddings, feed_forward, sinusoidal_positions


class TransformerConfig(StrictModel):
    """The published base model by default; post-norm as published."""

    system: Literal["transformer"] = "transformer"
    width: int = Field(512, ge=2, multiple_of=2)  # d_model
    inner_width: int = Field(2048, ge=1)  # d_ff
    num_heads: int = Field(8, ge=1)  # h
    encoder_layers: int = Field(6, ge=1)  # N
    decoder_layers: int = Field(6, ge=1)
    norm: Literal["post", "pre"] = "post"
    dropout: float = Field(0.1, ge=0.0, lt=1.0)
    tie_embeddings: Tying = "all"

    @model_validator(mode="after")
    def _heads_divide_width(self) -> TransformerConfig:
        if self.width % self.num_heads:
            raise ValueError(f"width {self.width} is not a multiple of num_heads {self.num_heads}")
        return self


class Sublayer(nn.Module):
    """Residual connection and layer norm: LN(x + f(x)) as published, or x + f(LN(x)) when pre-norm."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.pre = config.norm == "pre"
        self.norm = nn.LayerNorm(config.width)
        self.dropout = nn.Dropout(config.dropout)

    def before(self, x: Tensor) -> Tensor:
        """What the sub-layer reads."""
        return self.norm(x) if self.pre else x

    def after(self, x: Tensor, y: Tensor) -> Tensor:
        """x and the sub-layer's output y → the next x."""
        x = x + self.dropout(y)
        return x if self.pre else self.norm(x)


class EncoderLayer(nn.Module):
    """Self-attention and a feed-forward network (§3.1)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention = Attention(width=config.width, num_heads=config.num_heads, dropout=config.dropout)
        self.attention_sublayer = Sublayer(config)
        self.feed_forward = feed_forward(config.width, config.inner_width, config.width)
        self.feed_forward_sublayer = Sublayer(config)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """x (batch, src_len, dim), mask (batch, 1, 1, src_len)."""
        y = self.attention_sublayer.before(x)
        x = self.attention_sublayer.after(x, self.attention(y, *self.attention.keys_and_values(y), mask))
        y = self.feed_forward_sublayer.before(x)
        return self.feed_forward_sublayer.after(x, self.feed_forward(y))


class DecoderLayer(nn.Module):
    """Masked self-attention with its cache, attention over the source, feed-forward (§3.1)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention = Attention(width=config.width, num_heads=config.num_heads, dropout=config.dropout)
        self.attention_sublayer = Sublayer(config)
        self.source_attention = Attention(width=config.width, num_heads=config.num_heads, dropout=config.dropout)
        self.source_sublayer = Sublayer(config)
        self.feed_forward = feed_forward(config.width, config.inner_width, config.width)
        self.feed_forward_sublayer = Sublayer(config)

    def forward(
        self, x: Tensor, source: tuple[Tensor, Tensor], source_mask: Tensor, cache: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """x (batch, new_len, dim) after the cached positions; returns the next x and the grown cache."""
        y = self.attention_sublayer.before(x)
        new = self.attention.keys_and_values(y)
        keys, values = (torch.cat(pair, dim=2) for pair in zip(cache, new, strict=True))
        causal = torch.ones(x.size(1), keys.size(2), dtype=torch.bool, device=x.device)
        causal = causal.tril(keys.size(2) - x.size(1))  # (new_len, all_len): each position sees itself and the past
        x = self.attention_sublayer.after(x, self.attention(y, keys, values, causal))
        y = self.source_sublayer.before(x)
        x = self.source_sublayer.after(x, self.source_attention(y, *source, source_mask))
        y = self.feed_forward_sublayer.before(x)
        return self.feed_forward_sublayer.after(x, self.feed_forward(y)), (keys, values)


class Transformer(TranslationModel):
    """Encoder and decoder stacks with sinusoidal positions."""

    def __init__(self, config: TransformerConfig, *, source_size: int, target_size: int) -> None:
        super().__init__()
        self.config = config
        self.source_embedding, self.target_embedding, self.output = build_embeddings(
            source_size=source_size, target_size=target_size, width=config.width, tie=config.tie_embeddings
        )
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        # Pre-norm leaves the sum of all sub-layers unnormalised, so each stack ends in a layer norm of its own.
        pre = config.norm == "pre"
        self.encoder_norm = nn.LayerNorm(config.width) if pre else nn.Identity()
        self.decoder_norm = nn.LayerNorm(config.width) if pre else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)

    def _positioned(self, embedded: Tensor, start: int) -> Tensor:
        positions = sinusoidal_positions(embedded.size(1), embedded.size(2), device=embedded.device, start=start)
        placed: Tensor = self.dropout(embedded + positions)
        return placed

    def encode(self, src: Tensor, src_mask: Tensor) -> Memory:
        """Keys and values of every decoder layer (batch, heads, src_len, dim/heads), and the mask."""
        x = self._positioned(self.source_embedding(src), start=0)
        for encoder_layer in self.encoder:
            x = encoder_layer(x, src_mask[:, None, None])
        x = self.encoder_norm(x)
        memory = {"mask": src_mask}
        for number, decoder_layer in enumerate(self.decoder):
            assert isinstance(decoder_layer, DecoderLayer)
            memory[f"key{number}"], memory[f"value{number}"] = decoder_layer.source_attention.keys_and_values(x)
        return memory

    def start(self, memory: Memory) -> State:
        """Empty caches (batch, heads, 0, dim/heads)."""
        return {name: tensor[:, :, :0] for name, tensor in memory.items() if name != "mask"}

    def decode(self, tgt_in: Tensor, memory: Memory, state: State) -> tuple[Tensor, State]:
        """Section 3.1: self-attention over all earlier positions, attention over the source, feed-forward."""
        x = self._positioned(self.target_embedding(tgt_in), start=state["key0"].size(2))
        source_mask = memory["mask"][:, None, None]  # (batch, 1, 1, src_len)
        new_state = {}
        for number, decoder_layer in enumerate(self.decoder):
            names = f"key{number}", f"value{number}"
            source, cache = tuple(memory[name] for name in names), tuple(state[name] for name in names)
            x, (new_state[names[0]], new_state[names[1]]) = decoder_layer(x, source, source_mask, cache)
        return self.output(self.decoder_norm(x)), new_state
