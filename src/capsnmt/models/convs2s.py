"""ConvS2S (Gehring et al. 2017, "Convolutional Sequence to Sequence Learning"): gated convolutions with attention.

What makes it this system: stacked 1-D convolutions with gated linear units, learned positions, attention in *every*
layer of the decoder, and variance kept in order by scaling, weight normalisation and initialisation instead of layer
norm. The decoder's state is constant: k-1 inputs of each convolution. Its memory, and so the cost of a step, grows
with the source.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field, field_validator
from torch import Tensor, nn

from capsnmt.config import StrictModel
from capsnmt.models.contract import Memory, State, TranslationModel
from capsnmt.models.layers import Tying, build_embeddings, neighbours

SQRT_HALF = math.sqrt(0.5)  # §3.4: the sum of two terms of equal variance keeps that variance


class ConvS2SConfig(StrictModel):
    """The WMT14 English-German model of the paper's section 5.1 by default."""

    system: Literal["convs2s"] = "convs2s"
    embedding_width: int = Field(512, ge=1)  # f
    encoder_layers: tuple[tuple[int, int, int], ...] = ((10, 512, 3), (3, 768, 3), (2, 2048, 1))  # number, d, k
    decoder_layers: tuple[tuple[int, int, int], ...] = ((10, 512, 3), (3, 768, 3), (2, 2048, 1))
    max_positions: int = Field(1024, ge=1)  # Deviation: later tokens share the last position's embedding
    dropout: float = Field(0.2, ge=0.0, lt=1.0)
    tie_embeddings: Tying = "none"

    @field_validator("encoder_layers", "decoder_layers")
    @classmethod
    def _positive(cls, value: tuple[tuple[int, int, int], ...]) -> tuple[tuple[int, int, int], ...]:
        if not value or min(number for group in value for number in group) < 1:
            raise ValueError("give at least one [number of layers, width, kernel], each at least 1")
        return value


class WeightNormLinear(nn.Module):
    """W x + b with W = g · v/‖v‖ for each output (Salimans & Kingma 2016), drawn from N(0, √(gain/inputs)): §3.5."""

    def __init__(self, inputs: int, outputs: int, *, gain: float = 1.0) -> None:
        super().__init__()
        self.v = nn.Parameter(torch.randn(outputs, inputs) * math.sqrt(gain / inputs))
        self.g = nn.Parameter(self.v.detach().norm(dim=1, keepdim=True))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """(…, inputs) → (…, outputs)."""
        return F.linear(x, self.v * (self.g / self.v.norm(dim=1, keepdim=True)), self.bias)


class ConvolutionBlock(nn.Module):
    """§3.2: h^l = v(W [h^{l-1}_{i-k/2} … h^{l-1}_{i+k/2}] + b) + h^{l-1}, with v the gated linear unit."""

    def __init__(self, inputs: int, d: int, kernel: int, *, dropout: float) -> None:
        super().__init__()
        self.kernel = kernel
        self.inputs = inputs
        # n_l inputs, 4 for the gates and what dropout leaves: the output has the variance of the input.
        self.convolution = WeightNormLinear(kernel * inputs, 2 * d, gain=4.0 * (1.0 - dropout))
        self.residual = nn.Identity() if inputs == d else WeightNormLinear(inputs, d)
        self.dropout = nn.Dropout(dropout)

    def outputs(self, x: Tensor, window: Tensor) -> Tensor:
        """x and k-1 more inputs than x has positions, (batch, len + k-1, inputs) → (batch, len, d)."""
        # Deviation: layers of kernel 1, "just linear mappings" in the text, are gated too, as in the released code.
        gated = F.glu(self.convolution(neighbours(window, self.kernel)), dim=-1)
        added: Tensor = (gated + self.residual(x)) * SQRT_HALF
        return added

    def unmasked(self, x: Tensor, mask: Tensor) -> Tensor:
        """Looks to both sides; `mask` (batch, len, 1) keeps the padding at zero."""
        before = (self.kernel - 1) // 2
        return self.outputs(x, F.pad(self.dropout(x) * mask, (0, 0, before, self.kernel - 1 - before)))

    def masked(self, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        """Looks back only, into `past` (batch, k-1, inputs) first; returns the next x and the next past."""
        window = torch.cat([past, self.dropout(x)], dim=1)  # (batch, k-1 + len, inputs)
        return self.outputs(x, window), window[:, window.size(1) - (self.kernel - 1) :]


class StepAttention(nn.Module):
    """§3.3: one layer's look at the source."""

    def __init__(self, d: int, f: int) -> None:
        super().__init__()
        self.W_d = WeightNormLinear(d, f)
        # Deviation: c_i, which is f wide, is "simply added" to h_i, which is d wide; a linear layer brings it there.
        self.W_c = WeightNormLinear(f, d)

    def forward(self, h: Tensor, g: Tensor, memory: Memory) -> Tensor:
        """States h (batch, len, d) and target elements g (batch, len, f) → h with its conditional input added."""
        mask = memory["mask"][:, None]  # (batch, 1, src_len)
        scores = (self.W_d(h) + g) @ memory["z"].transpose(1, 2)  # Eq. 1: d_i · z_j, (batch, len, src_len)
        a = scores.masked_fill(~mask, -torch.inf).softmax(dim=-1)
        c = a @ memory["values"]  # Eq. 2
        m = mask.sum(dim=-1, keepdim=True).to(c.dtype)
        c = c * m.sqrt()  # m √(1/m): a mean of m vectors has 1/m of their variance
        added: Tensor = (h + self.W_c(c)) * SQRT_HALF  # Deviation: whether this sum is scaled is not said
        return added


class ConvS2S(TranslationModel):
    """Encoder, decoder with attention in every layer (section 3)."""

    def __init__(self, config: ConvS2SConfig, *, source_size: int, target_size: int) -> None:
        super().__init__()
        self.config = config
        f, kept = config.embedding_width, 1.0 - config.dropout
        self.source_embedding, self.target_embedding, tied = build_embeddings(
            source_size=source_size, target_size=target_size, width=f, tie=config.tie_embeddings
        )
        # "weight normalization for all layers except for lookup tables", which a tied output layer is.
        untied = config.tie_embeddings == "none"
        self.output: nn.Module = WeightNormLinear(f, target_size, gain=kept) if untied else tied
        self.source_positions, self.target_positions = (nn.Embedding(config.max_positions, f) for _ in range(2))
        for table in (self.source_embedding, self.target_embedding):
            nn.init.normal_(table.weight, std=0.1 / math.sqrt(f))  # 0.1 (§3.5) after the table's own √f
        for positions in (self.source_positions, self.target_positions):
            nn.init.normal_(positions.weight, std=0.1)
        self.encoder, encoder_width = self._blocks(config.encoder_layers)
        self.decoder, decoder_width = self._blocks(config.decoder_layers)
        self.attention = nn.ModuleList(
            StepAttention(d, f) for number, d, _ in config.decoder_layers for _ in range(number)
        )
        self.encoder_in, self.decoder_in = (
            WeightNormLinear(f, layers[0][1], gain=kept) for layers in (config.encoder_layers, config.decoder_layers)
        )
        self.encoder_out, self.decoder_out = WeightNormLinear(encoder_width, f), WeightNormLinear(decoder_width, f)
        self.dropout = nn.Dropout(config.dropout)

    def _blocks(self, layers: tuple[tuple[int, int, int], ...]) -> tuple[nn.ModuleList, int]:
        """A stack that starts at the first layer's width, and the width it ends in."""
        blocks, inputs = nn.ModuleList(), layers[0][1]
        for number, d, kernel in layers:
            for _ in range(number):
                blocks.append(ConvolutionBlock(inputs, d, kernel, dropout=self.config.dropout))
                inputs = d
        return blocks, inputs

    def _positioned(self, embedded: Tensor, table: nn.Embedding, positions: Tensor) -> Tensor:
        placed: Tensor = self.dropout(embedded + table(positions.clamp(max=self.config.max_positions - 1)))
        return placed

    def encode(self, src: Tensor, src_mask: Tensor) -> Memory:
        """Keys z and values z + e, (batch, src_len, f), and the mask."""
        e = self._positioned(
            self.source_embedding(src), self.source_positions, torch.arange(src.size(1), device=src.device)
        )
        mask = src_mask[..., None].to(e.dtype)
        x = self.encoder_in(e)
        for block in self.encoder:
            assert isinstance(block, ConvolutionBlock)
            x = block.unmasked(x, mask)
        z: Tensor = self.encoder_out(x)
        if z.requires_grad:  # §3.4: each attention sends a gradient; the source embeddings get e's whole one
            z.register_hook(lambda gradient: gradient / len(self.attention))  # type: ignore[no-untyped-call]
        return {"z": z, "values": z + e, "mask": src_mask}

    def start(self, memory: Memory) -> State:
        """Position 0 and a past of zeros for each layer that looks back, (batch, k-1, inputs)."""
        z = memory["z"]
        state = {"position": torch.zeros_like(z[:, 0, 0], dtype=torch.long)}  # (batch,)
        for number, block in enumerate(self.decoder):
            assert isinstance(block, ConvolutionBlock)
            if block.kernel > 1:
                state[f"past{number}"] = z.new_zeros(z.size(0), block.kernel - 1, block.inputs)
        return state

    def decode(self, tgt_in: Tensor, memory: Memory, state: State) -> tuple[Tensor, State]:
        """Section 3.3: after every convolution a look at the source."""
        positions = state["position"][:, None] + torch.arange(tgt_in.size(1), device=tgt_in.device)
        g = self._positioned(self.target_embedding(tgt_in), self.target_positions, positions)
        new_state = {"position": state["position"] + tgt_in.size(1)}
        h = self.decoder_in(g)
        for number, (block, attention) in enumerate(zip(self.decoder, self.attention, strict=True)):
            assert isinstance(block, ConvolutionBlock)
            name = f"past{number}"
            h, past = block.masked(h, state.get(name, h[:, :0]))
            if name in state:
                new_state[name] = past
            h = attention(h, g, memory)
        return self.output(self.dropout(self.decoder_out(h))), new_state
