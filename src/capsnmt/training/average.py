"""Checkpoint averaging: the mean of the weights of several checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from capsnmt.errors import CapsNMTError
from capsnmt.models.weights import read_weights


def average_weights(paths: Sequence[Path]) -> dict[str, Tensor]:
    """Sums in double precision, one file in memory at a time."""
    if not paths:
        raise CapsNMTError("nothing to average: no checkpoint was given")
    total: dict[str, Tensor] = {}
    for path in paths:
        weights = read_weights(path)
        shapes = {name: tensor.shape for name, tensor in weights.items()}
        if total and shapes != {name: tensor.shape for name, tensor in total.items()}:
            raise CapsNMTError(f"{path} and {paths[0]} are of different models and cannot be averaged")
        for name, tensor in weights.items():
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    return {name: (tensor / len(paths)).to(torch.float32) for name, tensor in total.items()}
