"""Clocks, turns and lines."""

from __future__ import annotations

import pytest

from capsnmt.bench.measure import in_turn, spread, straight_line


def test_spread_is_median_and_ends():
    found = spread([5.0, 1.0, 3.0, 9.0])
    assert (found.median, found.min, found.max, found.count) == (4.0, 1.0, 9.0, 4)


def test_systems_are_visited_in_turn_and_not_one_after_the_other():
    seen = []
    visits = {name: (lambda name=name: seen.append(name) or len(seen)) for name in "abc"}
    assert in_turn(visits, repeats=2) == {"a": [1, 4], "b": [2, 5], "c": [3, 6]}
    assert "".join(seen) == "abcabc"


def test_a_straight_line_is_found_and_a_parabola_is_not_straight():
    x = [8.0, 16.0, 64.0, 512.0, 2048.0]
    line = straight_line(x, [3.0 * value + 7.0 for value in x])
    assert (line.slope, line.intercept, line.r_squared) == pytest.approx((3.0, 7.0, 1.0))
    assert straight_line(x, [value**2 for value in x]).r_squared < 0.99


def test_r_squared_against_a_value_computed_by_hand():
    # Mean 2, least squares: y = x, residuals 0.5, -1, 0.5; 1 - 1.5 / 3.5.
    assert straight_line([1.0, 2.0, 3.0], [1.5, 1.0, 3.5]).r_squared == pytest.approx(1.0 - 1.5 / 3.5)


def test_a_constant_is_a_straight_line():
    assert straight_line([1.0, 2.0], [4.0, 4.0]).r_squared == 1.0
