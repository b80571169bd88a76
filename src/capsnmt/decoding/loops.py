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
    found = [loop for period in range(1, MAX_PERIOD + 1) if (loop := _first_of_period(ids, period)) is not None]
    return min(found, default=None)


def _first_of_period(ids: Sequence[int], period: int) -> Loop | None:
    """A phrase stands n times in a row where (n - 1) * period tokens in a row equal the one `period` places on."""
    needed = ({1: 5, 2: 4}.get(period, 3) - 1) * period
    run = 0
    for place in range(len(ids) - period):
        run = run + 1 if ids[place] == ids[place + period] else 0
        if run == needed:
            start = place + 1 - needed
            end = place + 1
            while end + period < len(ids) and ids[end] == ids[end + period]:
                end += 1
            return Loop(start, period, 1 + (end - start) // period)
    return None


def without_loops(ids: Sequence[int]) -> list[int]:
    """Every loop cut down to one round."""
    result = list(ids)
    while loop := find_loop(result):
        end = loop.start + loop.period
        result[end : loop.start + loop.repeats * loop.period] = []
    return result
