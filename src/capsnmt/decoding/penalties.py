"""What makes a score of a log-probability: score = log-probability / length penalty + β · coverage.

Both length penalties are here by name, because papers differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from capsnmt.errors import CapsNMTError

Lengths = TypeVar("Lengths", float, npt.NDArray[np.float64])

_LEAST = 1e-10  # a softmax in float32 can give 0, whose logarithm would outweigh all else


def wu(length: Lengths, alpha: float) -> Lengths:
    """((5 + length) / 6) ^ alpha, of Wu et al. (2016), GNMT."""
    penalty: Lengths = ((5.0 + length) / 6.0) ** alpha
    return penalty


def power(length: Lengths, alpha: float) -> Lengths:
    """Length ^ alpha; with alpha = 1 the score is the mean log-probability of a token."""
    penalty: Lengths = length**alpha
    return penalty


LENGTH_PENALTIES: dict[str, Callable[..., float | npt.NDArray[np.float64]]] = {"wu": wu, "len": power}


def length_penalty(length: Lengths, alpha: float, kind: str) -> Lengths:
    """What a log-probability is divided by; `length` counts the generated tokens and </s>. Grows with the length."""
    if kind not in LENGTH_PENALTIES:
        raise CapsNMTError(f"length_penalty_type {kind!r} is unknown; choose one of: {', '.join(LENGTH_PENALTIES)}")
    if not alpha >= 0.0:  # also refuses NaN; the early stopping relies on a penalty that never shrinks
        raise CapsNMTError(f"length_penalty {alpha} must be 0 or more; 0 turns it off")
    penalty: Lengths = LENGTH_PENALTIES[kind](length, alpha)  # type: ignore[assignment]
    return penalty


def log_coverage(coverage: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float64]:
    """Σ_j log(min(coverage_j, 1)) of Wu et al. (2016): 0 where every source position has had its attention, else less.

    `coverage` (rows, src_len) is the attention that each position had in all steps; padding has 1.
    """
    total: npt.NDArray[np.float64] = np.log(coverage.astype(np.float64).clip(_LEAST, 1.0)).sum(axis=1)
    return total
