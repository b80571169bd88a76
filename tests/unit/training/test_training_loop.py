"""The loop's small decisions: best, patience, when to save, one update."""

from __future__ import annotations

import math

import pytest
import torch

from capsnmt.config import TrainingConfig
from capsnmt.data.batches import pad_batch
from capsnmt.text.subwords import EOS
from capsnmt.training.checkpoint import Progress
from capsnmt.training.distributed import ALONE
from capsnmt.training.loop import build_optimiser, checkpoint_is_due, is_best, out_of_patience, update
from capsnmt.training.validation import Validation

CPU = torch.device("cpu")


def settings(**changes):
    return TrainingConfig(**({"steps": 10, "learning_rate": 0.01, "warmup_steps": 1} | changes))


def run_validations(outcomes, config):
    progress = Progress()
    answers = []
    for step, outcome in enumerate(outcomes, start=1):
        progress.step = step
        answers.append(is_best(outcome, progress, config))
    return answers, progress


def test_the_lowest_loss_is_the_best():
    outcomes = [Validation(loss, bleu, None) for loss, bleu in [(3.0, 9.0), (2.0, 1.0), (2.0, 50.0), (2.5, 60.0)]]
    answers, progress = run_validations(outcomes, settings())
    assert answers == [True, True, False, False]  # an equal one does not beat
    assert (progress.best_step, progress.best_value, progress.bad_validations) == (2, 2.0, 2)


def test_the_highest_bleu_is_the_best_when_asked_for():
    outcomes = [Validation(loss, bleu, None) for loss, bleu in [(3.0, 9.0), (2.0, 1.0), (5.0, 9.5), (1.0, 9.4)]]
    answers, progress = run_validations(outcomes, settings(stop_metric="bleu"))
    assert answers == [True, False, True, False]
    assert progress.best_step == 3


def test_a_better_one_resets_the_patience():
    outcomes = [Validation(loss, None, None) for loss in (3.0, 4.0, 2.0, 2.5)]
    _, progress = run_validations(outcomes, settings())
    assert progress.bad_validations == 1


def test_a_loss_that_is_not_a_number_is_never_the_best():
    outcomes = [Validation(loss, None, None) for loss in (math.nan, 3.0, math.nan, 2.0)]
    answers, progress = run_validations(outcomes, settings())
    assert answers[1:] == [True, False, True]
    assert progress.best_value == 2.0


def test_patience():
    assert not out_of_patience(Progress(bad_validations=100), settings())
    assert not out_of_patience(Progress(bad_validations=2), settings(patience=3))
    assert out_of_patience(Progress(bad_validations=3), settings(patience=3))


def test_checkpoints_by_steps():
    config = settings(checkpoint_every=4)
    assert [step for step in range(1, 10) if checkpoint_is_due(step, 0.0, config)] == [4, 8]


def test_checkpoints_by_minutes():
    config = settings(checkpoint_every=None, checkpoint_minutes=30)
    assert not checkpoint_is_due(500, 29 * 60, config)
    assert checkpoint_is_due(3, 31 * 60, config)


def test_perplexity():
    assert Validation(math.log(12.0), None, None).perplexity == pytest.approx(12.0)
    assert Validation(1e6, None, None).perplexity == math.inf


BATCHES = [
    pad_batch([[5, 6, 7, EOS], [8, EOS]], [[20, 21, EOS], [22, 23, 24, 25, EOS]]),
    pad_batch([[9, 10, EOS]], [[27, 28, 29, EOS]]),
]
TOGETHER = pad_batch(
    [[5, 6, 7, EOS], [8, EOS], [9, 10, EOS]], [[20, 21, EOS], [22, 23, 24, 25, EOS], [27, 28, 29, EOS]]
)


def gradients_of_an_update(model, group, config):
    optimiser = build_optimiser(model, config)
    nll, _, norm = update(model, optimiser, group, 0.0, config, ALONE)  # a rate of 0 changes no weight
    return nll, norm, [parameter.grad.clone() for parameter in model.parameters()]


def test_accumulating_is_one_large_batch(system, tiny_model):
    model = tiny_model(system)
    nll, norm, found = gradients_of_an_update(model, BATCHES, settings(clip_norm=1e9))
    nll_together, norm_together, expected = gradients_of_an_update(model, [TOGETHER], settings(clip_norm=1e9))
    assert nll == pytest.approx(nll_together, rel=1e-5)
    assert norm == pytest.approx(norm_together, rel=1e-4)
    for a, b in zip(found, expected, strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_gradients_are_clipped(system, tiny_model):
    _, norm, found = gradients_of_an_update(tiny_model(system), BATCHES, settings(clip_norm=0.01))
    assert norm > 0.01  # what is reported is the norm before the clipping
    assert torch.cat([grad.flatten() for grad in found]).norm().item() == pytest.approx(0.01, rel=1e-3)


def test_an_update_uses_the_given_rate(system, tiny_model):
    model = tiny_model(system)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimiser = build_optimiser(model, settings())
    update(model, optimiser, BATCHES, 0.25, settings(), ALONE)
    # Adam's first step moves each weight by the rate, whatever its gradient, where there is one at all.
    moves = [(a - b).abs().max().item() for a, b in zip(before, model.parameters(), strict=True)]
    assert max(moves) == pytest.approx(0.25, rel=1e-3)


def test_every_system_learns_a_batch_by_heart(system, tiny_model):
    model = tiny_model(system, dropout=0.0).train()
    optimiser = build_optimiser(model, settings())
    losses = [update(model, optimiser, [TOGETHER], 0.01, settings(label_smoothing=0.0), ALONE)[0] for _ in range(60)]
    assert losses[-1] < 0.3 * losses[0]
