"""Averaging of checkpoints."""

from __future__ import annotations

import pytest
import torch

from capsnmt.errors import CapsNMTError
from capsnmt.models.weights import save_weights
from capsnmt.training.average import average_weights


def write(path, **weights):
    save_weights(weights, path)
    return path


def test_the_average_is_the_mean(tmp_path):
    tensors = [torch.randn(4, 3) for _ in range(3)]
    paths = [write(tmp_path / f"{i}.safetensors", a=tensor, b=tensor[0] * 2) for i, tensor in enumerate(tensors)]
    found = average_weights(paths)
    assert found.keys() == {"a", "b"}
    assert torch.allclose(found["a"], torch.stack(tensors).mean(dim=0))
    assert torch.allclose(found["b"], torch.stack(tensors)[:, 0].mean(dim=0) * 2)
    assert found["a"].dtype is torch.float32


def test_one_checkpoint_is_itself(tmp_path):
    tensor = torch.randn(5)
    assert torch.equal(average_weights([write(tmp_path / "1.safetensors", a=tensor)])["a"], tensor)


def test_sums_do_not_lose_small_numbers(tmp_path):
    """In float32 2^24 + 1 is 2^24: a float32 sum of these would miss every 1."""
    paths = [write(tmp_path / f"{i}.safetensors", a=torch.tensor([2.0**24 if i == 0 else 1.0])) for i in range(9)]
    assert average_weights(paths)["a"].item() == pytest.approx((2.0**24 + 8) / 9, rel=1e-7)


def test_different_models_are_refused(tmp_path):
    paths = [write(tmp_path / "1.safetensors", a=torch.zeros(2)), write(tmp_path / "2.safetensors", b=torch.zeros(2))]
    with pytest.raises(CapsNMTError, match="different models"):
        average_weights(paths)


def test_different_sizes_are_refused(tmp_path):
    paths = [
        write(tmp_path / "1.safetensors", a=torch.zeros(2)),
        write(tmp_path / "2.safetensors", a=torch.zeros(2, 2)),
    ]
    with pytest.raises(CapsNMTError, match="different models"):
        average_weights(paths)


def test_nothing_to_average():
    with pytest.raises(CapsNMTError, match="nothing to average"):
        average_weights([])
