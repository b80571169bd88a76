"""Loops are found and cut, ordinary repetition is left alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsnmt.decoding.loops import Loop, find_loop, without_loops


@pytest.mark.parametrize(
    ("ids", "loop"),
    [
        ([], None),
        ([1], None),
        ([7, 7, 7, 7], None),  # "very very very very" happens
        ([7] * 5, Loop(0, 1, 5)),
        ([1, 2, 3, 8, 9, 8, 9, 8, 9, 8, 9], Loop(3, 2, 4)),
        ([8, 9, 8, 9, 8, 9], None),
        ([1, 4, 5, 6, 4, 5, 6, 4, 5, 6, 2], Loop(1, 3, 3)),
        ([4, 5, 6, 4, 5, 6], None),
        (list(range(13)) * 3, None),  # longer than a phrase
    ],
)
def test_find_loop(ids, loop):
    assert find_loop(ids) == loop


def test_without_loops():
    assert without_loops([1, 4, 5, 6, 4, 5, 6, 4, 5, 6, 2]) == [1, 4, 5, 6, 2]
    assert without_loops([7] * 50) == [7]
    assert without_loops([1, 2, 1, 2]) == [1, 2, 1, 2]


@given(st.lists(st.integers(0, 3), max_size=60))
def test_nothing_is_invented_and_no_loop_is_left(ids):
    result = without_loops(ids)
    assert find_loop(result) is None
    remaining = iter(ids)
    assert all(token in remaining for token in result)  # a subsequence
    assert (result == ids) == (find_loop(ids) is None)
