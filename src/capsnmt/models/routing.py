"""Dynamic routing by agreement (the paper's section 3 and Algorithm 1) as pure functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Routed(NamedTuple):
    """What routing returns."""

    capsules: Tensor  # C: (batch, M, dim)
    coefficients: list[Tensor]  # α of each iteration: (batch, src_len, M), zero at padding


def squash(v: Tensor) -> Tensor:
    """Eq. 10: keeps the direction of v, brings its norm into [0, 1); the gradient is finite at 0."""
    # ‖v‖²/(1+‖v‖²) · v/‖v‖ = v · ‖v‖/(1+‖v‖²); the small constant keeps the root's derivative finite at v = 0.
    squared_norm = v.square().sum(dim=-1, keepdim=True)
    return v * ((squared_norm + 1e-12).sqrt() / (1.0 + squared_norm))


def unit(v: Tensor) -> Tensor:
    """An alternative to the squash: the direction alone, norm 1."""
    return v * (v.square().sum(dim=-1, keepdim=True) + 1e-12).rsqrt()


def assign(b: Tensor, real: Tensor, *, balanced: bool = False) -> Tensor:
    """Eq. 11: α_ij of a child i sums to 1 over the parents j; padding sends nothing.

    `balanced` gives every parent about the same share of the children: one step of Sinkhorn's algorithm.
    """
    alpha = torch.softmax(b, dim=-1) * real  # (batch, src_len, M)
    if balanced:
        share = alpha.sum(dim=1, keepdim=True) / real.sum(dim=1, keepdim=True)  # (batch, 1, M)
        alpha = torch.softmax(b - (share + 1e-6).log(), dim=-1) * real
    return alpha


def places(mask: Tensor) -> Tensor:
    """Where each token stands in its own sentence, from 0 to 1: (batch, src_len)."""
    return (mask.cumsum(dim=1) - 1) / (mask.sum(dim=1, keepdim=True) - 1).clamp(min=1)


def windows(mask: Tensor, num_parents: int) -> Tensor:
    """Logits by place alone, (batch, src_len, M): parent j stands at j/(M-1) of the sentence, a window away costs 1."""
    parents = torch.arange(num_parents, device=mask.device)
    return -(places(mask)[..., None] * (num_parents - 1) - parents).square()


def route(
    compose: Callable[[int], Tensor],
    score: Callable[[Tensor, Tensor], Tensor],
    *,
    b: Tensor,
    mask: Tensor,
    num_iterations: int,
    parent_positions: Tensor | None = None,
    nonlinearity: Callable[[Tensor], Tensor] = squash,
    mean: bool = False,
    balanced: bool = False,
    detach: bool = False,
) -> Routed:
    """Algorithm 1: children i (batch, src_len) are routed to M parents j in T iterations from the logits b^0.

    compose(t) gives f(h_i, θ_j^t), (batch, src_len, M, dim), or (batch, src_len, 1, dim) if it is the same for every
    parent; score(c, f) gives the agreement that is added to b_ij, (batch, src_len, M). Padding sends nothing. Nothing
    reads the update of b after the last iteration: it is skipped.
    """
    real = mask[..., None].float()  # (batch, src_len, 1)
    coefficients = []
    for t in range(num_iterations):
        alpha = assign(b, real, balanced=balanced)  # Eq. 11
        f = compose(t)  # Eq. 8: (batch, src_len, M, dim)
        v = gather_children(alpha.to(f.dtype), f)  # Eq. 7 and 9
        if mean:
            v = v / (alpha.sum(dim=1)[..., None].to(f.dtype) + 1e-6)
        if parent_positions is not None:  # position-aware routing: (M, dim)
            v = v + parent_positions
        c = nonlinearity(v)  # Eq. 10: (batch, M, dim)
        coefficients.append(alpha)
        if t + 1 < num_iterations:
            agreement = score(c, f)  # Eq. 12, or Eq. 14 when scoring is separable
            b = b + (agreement.detach() if detach else agreement)
    return Routed(c, coefficients)


def gather_children(alpha: Tensor, f: Tensor) -> Tensor:
    """v_j = Σ_i α_ij f_ij: (batch, src_len, M), (batch, src_len, M or 1, dim) → (batch, M, dim)."""
    if f.size(2) == 1:
        return alpha.transpose(1, 2) @ f[:, :, 0]  # one product a sentence instead of M
    return torch.einsum("bim,bimd->bmd", alpha, f)


def mean_of(h: Tensor, alpha: Tensor) -> Tensor:
    """Σ_i α_ij h_i / Σ_i α_ij: (batch, src_len, dim), (batch, src_len, M) → (batch, M, dim)."""
    weights = alpha.to(h.dtype).transpose(1, 2)  # (batch, M, src_len)
    return weights @ h / (weights.sum(dim=2, keepdim=True) + 1e-6)


def dot_product_score(c: Tensor, f: Tensor) -> Tensor:
    """Eq. 12's agreement c_j · f(h_i, θ_j): (batch, M, dim), (batch, src_len, M or 1, dim) → (batch, src_len, M)."""
    if f.size(2) == 1:
        return f[:, :, 0] @ c.transpose(1, 2)
    return torch.einsum("bmd,bimd->bim", c, f)
