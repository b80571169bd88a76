"""Our label smoothing against torch's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from capsnmt.training.loss import label_smoothed_loss


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_label_smoothing_is_torchs(smoothing):
    logits, targets = 3 * torch.randn(4, 6, 23), torch.randint(23, (4, 6))
    mask = torch.arange(6)[None] < torch.tensor([[6], [1], [4], [3]])
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    found = label_smoothed_loss(ours, targets, mask, smoothing)
    ignored = targets.masked_fill(~mask, -100)
    expected = F.cross_entropy(theirs.flatten(0, 1), ignored.flatten(), reduction="sum", label_smoothing=smoothing)
    torch.testing.assert_close(found.smoothed, expected)
    torch.testing.assert_close(found.nll, F.cross_entropy(logits.flatten(0, 1), ignored.flatten(), reduction="sum"))
    found.smoothed.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, theirs.grad)
