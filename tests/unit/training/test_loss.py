"""The loss against loops, and its sum over a batch against the sum over its sentences."""

from __future__ import annotations

import math

import pytest
import torch

from capsnmt.data.batches import pad_batch
from capsnmt.text.subwords import EOS
from capsnmt.training.loss import label_smoothed_loss
from capsnmt.training.validation import batch_loss

CPU = torch.device("cpu")
SOURCES = [[5, 6, 7, EOS], [8, EOS], [9, 10, 11, 12, 13, 14, EOS]]
TARGETS = [[20, 21, EOS], [22, 23, 24, 25, 26, EOS], [27, EOS]]


def slow_loss(logits, targets, mask, smoothing):
    """−Σ_k q(k) log p(k) with q(k) = (1 − ε)[k = y] + ε/V, token by token."""
    smoothed = nll = 0.0
    for row_logits, row_targets, row_mask in zip(logits.tolist(), targets.tolist(), mask.tolist(), strict=True):
        for scores, y, real in zip(row_logits, row_targets, row_mask, strict=True):
            if real:
                normaliser = math.log(sum(map(math.exp, scores)))
                log_p = [score - normaliser for score in scores]
                V = len(scores)
                smoothed -= sum(((1 - smoothing) * (k == y) + smoothing / V) * log_p[k] for k in range(V))
                nll -= log_p[y]
    return smoothed, nll


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
def test_label_smoothed_loss_is_its_formula(smoothing):
    logits, targets = torch.randn(3, 5, 11), torch.randint(11, (3, 5))
    mask = torch.arange(5)[None] < torch.tensor([[5], [2], [3]])
    found = label_smoothed_loss(logits, targets, mask, smoothing)
    smoothed, nll = slow_loss(logits, targets, mask, smoothing)
    assert found.smoothed.item() == pytest.approx(smoothed, rel=1e-5)
    assert found.nll.item() == pytest.approx(nll, rel=1e-5)


def test_padding_counts_neither_in_the_loss_nor_in_its_gradient():
    logits, targets = torch.randn(2, 4, 7, requires_grad=True), torch.randint(7, (2, 4))
    mask = torch.arange(4)[None] < torch.tensor([[4], [2]])
    sums = label_smoothed_loss(logits, targets, mask, 0.1)
    sums.smoothed.backward()
    assert (logits.grad[~mask] == 0).all()
    assert (logits.grad[mask] != 0).any()
    other_targets = torch.where(mask, targets, (targets + 1) % 7)
    other_logits = torch.where(mask[..., None], logits.detach(), torch.randn(2, 4, 7))
    assert torch.equal(label_smoothed_loss(other_logits, other_targets, mask, 0.1).smoothed, sums.smoothed)


def test_bf16_logits_are_summed_in_fp32():
    logits, targets = torch.randn(4, 30, 50), torch.randint(50, (4, 30))
    mask = torch.ones(4, 30, dtype=torch.bool)
    sums = label_smoothed_loss(logits.bfloat16(), targets, mask, 0.1)
    assert sums.smoothed.dtype is torch.float32
    rounded = label_smoothed_loss(logits.bfloat16().float(), targets, mask, 0.1)
    assert torch.equal(sums.smoothed, rounded.smoothed)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_batched_loss_is_the_sum_of_unpadded_losses(model, smoothing):
    together = batch_loss(model, pad_batch(SOURCES, TARGETS), CPU, smoothing)
    alone = [
        batch_loss(model, pad_batch([source], [target]), CPU, smoothing)
        for source, target in zip(SOURCES, TARGETS, strict=True)
    ]
    assert together.smoothed.item() == pytest.approx(sum(sums.smoothed.item() for sums in alone), rel=1e-5)
    assert together.nll.item() == pytest.approx(sum(sums.nll.item() for sums in alone), rel=1e-5)
