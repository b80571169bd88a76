"""Attention pooling, the routing study's control, against a loop over sentences, queries and children."""

from __future__ import annotations

import math

import pytest
import torch

from capsnmt.models.layers import sinusoidal_positions
from capsnmt.models.pooling import AttentionPooling, AttentionPoolingConfig


def pooled_slowly(model, h, length):
    """One sentence, h (src_len, dim) of which `length` children are real → (M, dim)."""
    config, d, M = model.config, h.size(1), model.config.num_queries
    child_positions = sinusoidal_positions(len(h), d, device=h.device)
    parent_positions = sinusoidal_positions(M, d, device=h.device)
    vectors = []
    for j in range(M):
        scores, messages = [], []
        for i in range(length):
            child = h[i] + child_positions[i] if config.position_aware else h[i]
            place = i / max(length - 1, 1) * (M - 1)
            scores.append(model.key(child) @ model.queries[j] / math.sqrt(d) - config.windows * (place - j) ** 2)
            W = model.W if config.transform == "shared" else model.W[:, j * d : (j + 1) * d]
            messages.append((child @ W).relu())
        alpha = torch.stack(scores).softmax(dim=0)
        c = sum(weight * message for weight, message in zip(alpha, messages, strict=True))
        if config.parent_positions:
            c = c + parent_positions[j]
        if config.residual:
            c = c + sum(weight * h[i] for i, weight in enumerate(alpha))
        vectors.append(model.norm(c))
    return torch.stack(vectors)


@pytest.mark.parametrize("transform", ["per_parent", "shared"])
@pytest.mark.parametrize(
    "switches", [{}, {"windows": 0.7}, {"residual": True}, {"parent_positions": True}, {"position_aware": False}]
)
def test_pooling_is_what_a_loop_says(transform, switches):
    torch.manual_seed(5)
    config = AttentionPoolingConfig(width=12, num_queries=3, transform=transform, **switches)
    model = AttentionPooling(config, source_size=20, target_size=20).eval()
    h, lengths = torch.randn(2, 6, 12), [6, 4]
    mask = torch.arange(6)[None] < torch.tensor(lengths)[:, None]
    vectors, alpha = model.pool(h, mask)
    for row, length in enumerate(lengths):
        assert torch.allclose(vectors[row], pooled_slowly(model, h[row], length), atol=1e-5)
    assert torch.allclose(alpha.sum(dim=1), torch.ones(2, 3), atol=1e-6)
