"""Learning rate as a pure function of the step."""

from __future__ import annotations

from collections.abc import Callable

from capsnmt.config import TrainingConfig


def inverse_sqrt(step: int, warmup_steps: int, total_steps: int) -> float:
    """1 at the end of the warm-up, then √(warm-up/step): Vaswani §5.3 with its peak made explicit."""
    return float((warmup_steps / step) ** 0.5)


def linear(step: int, warmup_steps: int, total_steps: int) -> float:
    """1 at the end of the warm-up, then straight down to 0 at the last step."""
    return max(0.0, (total_steps - step) / max(1, total_steps - warmup_steps))


def constant(step: int, warmup_steps: int, total_steps: int) -> float:
    """1 after the warm-up."""
    return 1.0


SCHEDULES: dict[str, Callable[[int, int, int], float]] = {
    "inverse_sqrt": inverse_sqrt,
    "linear": linear,
    "constant": constant,
}


def learning_rate(step: int, config: TrainingConfig) -> float:
    """The rate of update number `step` (from 1): a linear warm-up to the peak, then the named schedule."""
    if step <= config.warmup_steps:
        return config.learning_rate * step / config.warmup_steps
    return config.learning_rate * SCHEDULES[config.schedule](step, config.warmup_steps, config.steps)
