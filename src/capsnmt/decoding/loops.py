"""Repetition loops: "it seems that it seems that it seems that". A decoder without attention is prone to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

MAX_PERIOD = 12  # tokens of the repeated phrase


class Loop(NamedTuple):
    """ids[start : start + period] stands `repeats` times in a row."""

    start: int
    period: int
    repeats: int


def find_loop(ids: Sequence[int]) -> Loop | None:
    """The first phrase that is repeated too often in a row to be meant: 5 times for one token, 4 for two, else 3."""
    for start in range(len(ids)):
        for period in range(1, min(MAX_PERIOD, (len(ids) - start) // 3) + 1):
            allowed = {1: 5, 2: 4}.get(period, 3)
            repeats = 1
            while (
                ids[start + (repeats - 1) * period : start + repeats * period]
                == ids[start + repeats * period : start + (repeats + 1) * period]
            ):
                repeats += 1
            if repeats >= allowed:
                return Loop(start, period, repeats)
    return None


def without_loops(ids: Sequence[int]) -> list[int]:
    """Every loop cut down to one round."""
    result = list(ids)
    while loop := find_loop(result):
        end = loop.start + loop.period
        result[end : loop.start + loop.repeats * loop.period] = []
    return result
