"""The learning rate as a function of the step."""

from __future__ import annotations

import pytest

from capsnmt.config import TrainingConfig
from capsnmt.training.schedule import SCHEDULES, learning_rate


def settings(schedule, **changes):
    values = {"steps": 1000, "learning_rate": 0.004, "warmup_steps": 100, "schedule": schedule}
    return TrainingConfig(**(values | changes))


@pytest.mark.parametrize("schedule", list(SCHEDULES))
def test_the_warm_up_is_linear_and_ends_at_the_peak(schedule):
    config = settings(schedule)
    for step in (1, 10, 50, 99):
        assert learning_rate(step, config) == pytest.approx(0.004 * step / 100)
    assert learning_rate(100, config) == pytest.approx(0.004)


@pytest.mark.parametrize("schedule", list(SCHEDULES))
def test_there_is_no_jump_at_the_peak(schedule):
    config = settings(schedule)
    assert learning_rate(101, config) == pytest.approx(0.004, rel=0.01)
    assert learning_rate(101, config) <= learning_rate(100, config)
    assert SCHEDULES[schedule](100, 100, 1000) == pytest.approx(1.0)  # the curve itself starts where the warm-up ends


def test_inverse_square_root_law():
    config = settings("inverse_sqrt")
    for step in (150, 200, 400, 1000):
        assert learning_rate(step, config) == pytest.approx(0.004 * (100 / step) ** 0.5)
    assert learning_rate(400, config) == pytest.approx(learning_rate(100, config) / 2)


def test_it_is_the_schedule_of_vaswani_et_al():
    config = settings("inverse_sqrt", learning_rate=512**-0.5 * 4000**-0.5, warmup_steps=4000, steps=100_000)
    for step in (1, 1000, 4000, 4001, 50_000):
        assert learning_rate(step, config) == pytest.approx(512**-0.5 * min(step**-0.5, step * 4000**-1.5))


def test_linear_falls_straight_to_zero():
    config = settings("linear")
    assert learning_rate(1000, config) == 0.0
    assert learning_rate(550, config) == pytest.approx(0.002)
    falls = [learning_rate(step, config) - learning_rate(step + 1, config) for step in range(100, 1000)]
    assert max(falls) == pytest.approx(min(falls))


def test_linear_never_turns_negative():
    assert learning_rate(1001, settings("linear")) == 0.0  # resumed with fewer steps
    assert learning_rate(150, settings("linear", steps=100)) == 0.0  # all warm-up


def test_constant_stays():
    assert learning_rate(999, settings("constant")) == 0.004


def test_every_schedule_of_the_config_exists():
    names = TrainingConfig.model_fields["schedule"].annotation.__args__
    assert set(names) == set(SCHEDULES)
