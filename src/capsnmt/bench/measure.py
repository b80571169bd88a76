"""Numbers from clocks: medians and spread, visits in turn, straight lines."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

Key = TypeVar("Key")
Found = TypeVar("Found")


@dataclass(frozen=True)
class Spread:
    """The median of some measurements, and how far they lie apart."""

    median: float
    min: float
    max: float
    count: int


def spread(values: Sequence[float]) -> Spread:
    """Of one measurement or more."""
    return Spread(statistics.median(values), min(values), max(values), len(values))


def in_turn(visits: Mapping[Key, Callable[[], Found]], *, repeats: int, pause_s: float = 0.0) -> dict[Key, list[Found]]:
    """Every system once, then every system again: what disturbs a shared machine for a while hits all alike."""
    found: dict[Key, list[Found]] = {key: [] for key in visits}
    for _ in range(repeats):
        for key, visit in visits.items():
            time.sleep(pause_s)
            found[key].append(visit())
    return found


@dataclass(frozen=True)
class Line:
    """y = slope · x + intercept, and the share of y's variance that it explains."""

    slope: float
    intercept: float
    r_squared: float


def straight_line(x: Sequence[float], y: Sequence[float]) -> Line:
    """Least squares. A constant y is explained in full."""
    mean_x, mean_y = statistics.fmean(x), statistics.fmean(y)
    slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)
    intercept = mean_y - slope * mean_x
    left = sum((b - slope * a - intercept) ** 2 for a, b in zip(x, y, strict=True))
    all_ = sum((b - mean_y) ** 2 for b in y)
    return Line(slope, intercept, 1.0 - left / all_ if all_ else 1.0)
