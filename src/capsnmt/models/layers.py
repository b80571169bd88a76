"""Parts that several systems share: embeddings, the BiLSTM encoder and the LSTM decoder of the paper, positions."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from capsnmt.models.contract import Memory, State

Tying = Literal["all", "target", "none"]
Attending = Literal["first", "all"]  # layers of an LSTMDecoder


class ScaledEmbedding(nn.Embedding):
    """Embeddings times √d, so that a table shared with the softmax has unit variance as an input (Vaswani §3.4)."""

    def __init__(self, vocabulary_size: int, width: int) -> None:
        super().__init__(vocabulary_size, width)
        nn.init.normal_(self.weight, std=width**-0.5)

    def forward(self, ids: Tensor) -> Tensor:
        """(…) ids → (…, dim)."""
        return super().forward(ids) * math.sqrt(self.embedding_dim)


def build_embeddings(
    *, source_size: int, target_size: int, width: int, tie: Tying, output_width: int | None = None
) -> tuple[ScaledEmbedding, ScaledEmbedding, nn.Linear]:
    """Source embedding, target embedding and output layer W_o, sharing weights as `tie` says.

    `output_width` is the width of what W_o reads, where it is not the embeddings' own.
    """
    output_width = width if output_width is None else output_width
    if tie != "none" and output_width != width:
        raise ValueError(
            f"tie_embeddings: {tie} needs embeddings as wide as what the output layer reads, but they are {width} and "
            f"{output_width} wide; set tie_embeddings: none"
        )
    if tie == "all" and source_size != target_size:
        raise ValueError(
            f"tie_embeddings: all needs one joint vocabulary, but the sizes are {source_size} and {target_size}; "
            "set text.subwords.joint: true or tie_embeddings: target"
        )
    target = ScaledEmbedding(target_size, width)
    source = target if tie == "all" else ScaledEmbedding(source_size, width)
    output = nn.Linear(output_width, target_size, bias=False)
    if tie == "none":
        nn.init.normal_(output.weight, std=output_width**-0.5)
    else:
        output.weight = target.weight
    return source, target, output


def sinusoidal_positions(length: int, width: int, *, device: torch.device, start: int = 0) -> Tensor:
    """Sine and cosine of different frequencies (Vaswani §3.5) → (length, dim)."""
    positions = torch.arange(start, start + length, device=device, dtype=torch.float32)[:, None]
    frequencies = torch.exp(torch.arange(0, width, 2, device=device) * (-math.log(10_000.0) / width))
    angles = positions * frequencies  # (length, dim/2)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


class SublayerNorm(nn.Module):
    """Residual connection around a sub-layer, followed by layer normalisation: LN(x + dropout(sublayer(x)))."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, sublayer_output: Tensor) -> Tensor:
        """Both (batch, len, dim)."""
        normed: Tensor = self.norm(x + self.dropout(sublayer_output))
        return normed


def unidirectional_lstm(input_width: int, hidden_width: int) -> nn.LSTM:
    """A batch-first LSTM whose forget gates start open (bias 1), so that gradients reach the first words early on."""
    lstm = nn.LSTM(input_width, hidden_width, batch_first=True)
    with torch.no_grad():
        lstm.get_parameter("bias_ih_l0")[hidden_width : 2 * hidden_width].fill_(1.0)
    return lstm


class _ReverseRows(torch.autograd.Function):
    """Gathers each row's own reversed order. It is its own inverse: the gradient is the same gather, not a scatter."""

    @staticmethod
    def forward(ctx, x: Tensor, index: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(index)
        return torch.gather(x, 1, index.expand(-1, -1, x.size(-1)))

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]
        (index,) = ctx.saved_tensors
        return torch.gather(gradient, 1, index.expand(-1, -1, gradient.size(-1))), None


def reverse_rows(x: Tensor, index: Tensor) -> Tensor:
    """x (batch, src_len, dim) with each row in the order of its `reversal_index`."""
    reversed_rows: Tensor = _ReverseRows.apply(x, index)  # type: ignore[no-untyped-call]
    return reversed_rows


def reversal_index(src_mask: Tensor) -> Tensor:
    """For a row of n tokens: n-1 … 0, then the padding in place → (batch, src_len, 1)."""
    lengths = src_mask.sum(dim=1, keepdim=True)  # (batch, 1)
    positions = torch.arange(src_mask.size(1), device=src_mask.device)[None]  # (1, src_len)
    return torch.where(src_mask, lengths - 1 - positions, positions)[..., None]


class BiLSTMEncoder(nn.Module):
    """Eq. 1, stacked: the primary capsules h_1 … h_L.

    Each direction is d/2 wide, so that h_t = [→h_t, ←h_t] is d wide and the residual connection fits.
    Sequences are not packed: right padding cannot reach the forward direction's real positions, and the backward
    direction reads each row reversed by its own length. Packed sequences would miss oneDNN's fused LSTM.
    """

    def __init__(self, *, width: int, num_layers: int, dropout: float) -> None:
        super().__init__()
        self.forward_lstms = nn.ModuleList(unidirectional_lstm(width, width // 2) for _ in range(num_layers))
        self.backward_lstms = nn.ModuleList(unidirectional_lstm(width, width // 2) for _ in range(num_layers))
        self.residuals = nn.ModuleList(SublayerNorm(width, dropout) for _ in range(num_layers))

    def forward(self, x: Tensor, src_mask: Tensor) -> Tensor:
        """Embeddings (batch, src_len, dim) → H (batch, src_len, dim)."""
        index = reversal_index(src_mask)
        for forward_lstm, backward_lstm, residual in zip(
            self.forward_lstms, self.backward_lstms, self.residuals, strict=True
        ):
            h_forward, _ = forward_lstm(x)  # (batch, src_len, dim/2)
            h_backward, _ = backward_lstm(reverse_rows(x, index))
            h = torch.cat([h_forward, reverse_rows(h_backward, index)], dim=-1)  # (batch, src_len, dim)
            x = residual(x, h)
        return x


class Attention(nn.Module):
    """Multi-head attention (Vaswani §3.2.2); keys and values can be made once and kept."""

    def __init__(self, *, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        if width % num_heads:
            raise ValueError(f"width {width} is not a multiple of num_heads {num_heads}")
        self.num_heads = num_heads
        self.dropout = dropout
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        for projection in (self.query, self.key, self.value, self.output):
            nn.init.xavier_uniform_(projection.weight)
            nn.init.zeros_(projection.bias)

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.num_heads, -1).transpose(1, 2)  # (batch, heads, len, dim/heads)

    def keys_and_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x (batch, len, dim) → two of (batch, heads, len, dim/heads)."""
        return self._heads(self.key(x)), self._heads(self.value(x))

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Queries from x (batch, len, dim); mask is True where attention may look, broadcast over heads."""
        dropout = self.dropout if self.training else 0.0
        attended = F.scaled_dot_product_attention(
            self._heads(self.query(x)), keys, values, attn_mask=mask, dropout_p=dropout
        )
        mixed: Tensor = self.output(attended.transpose(1, 2).flatten(2))
        return mixed


class AdditiveAttention(nn.Module):
    """e_j = v · tanh(W s + U h_j), a softmax over the real positions, c = Σ_j α_j h_j (Bahdanau et al. 2015)."""

    def __init__(self, *, query_width: int, memory_width: int, hidden_width: int) -> None:
        super().__init__()
        self.W = nn.Linear(query_width, hidden_width, bias=False)
        self.U = nn.Linear(memory_width, hidden_width, bias=False)
        self.v = nn.Linear(hidden_width, 1, bias=False)

    def remember(self, h: Tensor, mask: Tensor) -> Memory:
        """h (batch, src_len, dim), its keys U h, made once a sentence, and the mask."""
        return {"values": h, "keys": self.U(h), "mask": mask}

    def forward(self, s: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """One query a row, (batch, dim) → c (batch, dim) and α (batch, src_len)."""
        e = self.v(torch.tanh(self.W(s)[:, None] + memory["keys"]))[..., 0]  # (batch, src_len)
        alpha = e.masked_fill(~memory["mask"], -torch.inf).softmax(dim=-1)
        return (alpha[:, None] @ memory["values"])[:, 0], alpha


class LSTMDecoder(nn.Module):
    """Eq. 5, stacked: s_t = LSTM(s_{t-1}, u_t). Start state: zeros (the paper does not say; see docs/PAPER.md).

    With `num_heads` the states of the first layer, or of all, also attend over a set of vectors, the `remember`ed keys
    and values. A query needs no earlier context, so training does all target positions at once; with a fixed number of
    vectors a step still costs the same for any source.
    """

    def __init__(
        self,
        *,
        width: int,
        num_layers: int,
        dropout: float,
        num_heads: int | None = None,
        attending: Attending = "first",
    ) -> None:
        super().__init__()
        self.width = width
        self.lstms = nn.ModuleList(unidirectional_lstm(width, width) for _ in range(num_layers))
        self.residuals = nn.ModuleList(SublayerNorm(width, dropout) for _ in range(num_layers))
        if num_heads is not None:
            self.attention = Attention(width=width, num_heads=num_heads, dropout=dropout)
            self.attention_residual = SublayerNorm(width, dropout)
            above = range(1, num_layers if attending == "all" else 1)
            self.attentions_above = nn.ModuleList(
                Attention(width=width, num_heads=num_heads, dropout=dropout) for _ in above
            )
            self.attention_residuals_above = nn.ModuleList(SublayerNorm(width, dropout) for _ in above)

    def remember(self, vectors: Tensor, mask: Tensor | None = None) -> Memory:
        """What attention reads of `vectors` (batch, len, dim); `mask` (batch, len) if their number differs."""
        memory = {} if mask is None else {"mask": mask}
        for layer, attention in enumerate([self.attention, *self.attentions_above]):
            keys, values = _names(layer)
            memory[keys], memory[values] = attention.keys_and_values(vectors)
        return memory

    def attend(self, layer: int, u: Tensor, memory: Memory) -> Tensor:
        """The states u (batch, tgt_len, dim) of a layer, with what they find in `memory` if that layer attends."""
        keys, values = _names(layer)
        if keys not in memory:
            return u
        attention = self.attention if layer == 0 else self.attentions_above[layer - 1]
        residual = self.attention_residual if layer == 0 else self.attention_residuals_above[layer - 1]
        mask = memory["mask"][:, None, None] if "mask" in memory else None  # (batch, 1, 1, len)
        attended: Tensor = residual(u, attention(u, memory[keys], memory[values], mask))
        return attended

    def start(self, like: Tensor) -> State:
        """Zeros for as many hypotheses as `like` has rows, each (batch, layers, dim)."""
        zeros = like.new_zeros(like.size(0), len(self.lstms), self.width)
        return {"hidden": zeros, "cell": zeros}

    def forward(self, u: Tensor, state: State, memory: Memory) -> tuple[Tensor, State]:
        """Inputs u (batch, tgt_len, dim) → top-most s (batch, tgt_len, dim) and the state after the last of them."""
        hidden, cell = [], []
        for layer, (lstm, residual) in enumerate(zip(self.lstms, self.residuals, strict=True)):
            start = tuple(state[name][:, layer].contiguous()[None] for name in ("hidden", "cell"))  # (1, batch, dim)
            s, (h, c) = lstm(u, start)
            u = self.attend(layer, residual(u, s), memory)
            hidden.append(h[0])
            cell.append(c[0])
        return u, {"hidden": torch.stack(hidden, dim=1), "cell": torch.stack(cell, dim=1)}


def _names(layer: int) -> tuple[str, str]:
    """Of a layer's keys and values in the memory."""
    return ("keys", "values") if layer == 0 else (f"keys_{layer}", f"values_{layer}")


class StartState(nn.Module):
    """The decoder's start state made from the memory's one vector."""

    def __init__(self, width: int, num_layers: int) -> None:
        super().__init__()
        self.num_layers = num_layers
        self.hidden, self.cell = (nn.Linear(width, num_layers * width) for _ in range(2))

    def forward(self, context: Tensor) -> State:
        """context (batch, dim) → hidden and cell, each (batch, layers, dim)."""
        shape = (context.size(0), self.num_layers, context.size(1))
        return {"hidden": self.hidden(context).tanh().view(shape), "cell": self.cell(context).view(shape)}


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean over real positions: (batch, len, dim) → (batch, dim)."""
    weights = mask[..., None].to(x.dtype)
    return (x * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1.0)


def masked_max(x: Tensor, mask: Tensor) -> Tensor:
    """Maximum over real positions: (batch, len, dim) → (batch, dim)."""
    return x.masked_fill(~mask[..., None], torch.finfo(x.dtype).min).amax(dim=1)


def last_of(x: Tensor, mask: Tensor) -> Tensor:
    """The last real position: (batch, len, dim) → (batch, dim)."""
    last = (mask.sum(dim=1) - 1).clamp(min=0)  # (batch,)
    return x.gather(1, last[:, None, None].expand(-1, 1, x.size(-1)))[:, 0]


def feed_forward(width: int, inner_width: int, output_width: int) -> nn.Sequential:
    """Two linear transformations with a ReLU between them, applied to each position separately."""
    return nn.Sequential(nn.Linear(width, inner_width), nn.ReLU(), nn.Linear(inner_width, output_width))


def neighbours(x: Tensor, kernel: int, dilation: int = 1) -> Tensor:
    """What a convolution without padding reads: (batch, (kernel-1)·dilation + len, dim) → (batch, len, kernel·dim).

    A linear layer on it is that convolution. One matrix product then serves a whole sequence and a single step of
    decoding alike, and is what int8 engines are fast at.
    """
    length = x.size(1) - (kernel - 1) * dilation
    return torch.cat([x[:, tap * dilation : tap * dilation + length] for tap in range(kernel)], dim=-1)
