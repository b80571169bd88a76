"""Beam search and scoring through the torch engine, over every system."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from capsnmt.decoding.penalties import length_penalty
from capsnmt.decoding.scoring import score
from capsnmt.decoding.search import beam_search
from capsnmt.runtime.torch_engine import TorchEngine
from capsnmt.text.subwords import BOS, EOS, PAD

VOCABULARY = 40
SETTINGS = {"length_penalty": 0.8, "length_penalty_type": "wu"}
MAX_LENGTH = 12


@pytest.fixture
def engine(model):
    return TorchEngine(model, vocabulary_size=VOCABULARY, device=torch.device("cpu"))


def sources(count):
    """Lengths from 1 (EOS alone) on."""
    generator = np.random.default_rng(4)
    return [[*generator.integers(4, VOCABULARY, number % 9).tolist(), EOS] for number in range(count)]


def search(engine, batch, **changes):
    settings = {"beam": 3, "num_best": 2, "max_lengths": [MAX_LENGTH] * len(batch)} | SETTINGS | changes
    return beam_search(engine, batch, **settings)


def test_batch_1_is_batch_32(engine):
    batch = sources(32)
    together = search(engine, batch)
    assert len(together) == 32
    for source, expected in zip(batch, together, strict=True):
        (alone,) = search(engine, [source])
        assert [found.ids for found in alone] == [found.ids for found in expected]
        assert [found.score for found in alone] == pytest.approx([found.score for found in expected], abs=1e-4)


def test_scoring_a_translation_gives_its_own_score(engine):
    batch = sources(8)
    for rank in (0, 1):
        found = [hypotheses[rank] for hypotheses in search(engine, batch)]
        for hypothesis, log_probs in zip(found, score(engine, batch, [h.ids for h in found]), strict=True):
            assert len(log_probs) == len(hypothesis.ids) + 1  # with </s>
            assert log_probs.sum() == pytest.approx(hypothesis.log_prob, abs=1e-4)
            penalty = length_penalty(float(len(log_probs)), 0.8, "wu")
            assert log_probs.sum() / penalty == pytest.approx(hypothesis.score, abs=1e-4)


@torch.inference_mode()
def greedy(model, source):
    src, ids = torch.tensor([source]), []
    mask = torch.ones_like(src, dtype=torch.bool)
    while len(ids) + 1 < MAX_LENGTH:
        logits = model(src, mask, torch.tensor([[BOS, *ids]]))[0, -1]
        logits[[PAD, BOS]] = -torch.inf
        if (best := int(logits.argmax())) == EOS:
            break
        ids.append(best)
    return ids


def test_beam_1_is_greedy(engine, model):
    batch = sources(10)
    found = search(engine, batch, beam=1, num_best=1)
    assert [hypotheses[0].ids for hypotheses in found] == [greedy(model, source) for source in batch]


def test_hypotheses_are_sorted_different_and_clean(engine):
    for hypotheses in search(engine, sources(8), beam=4, num_best=4):
        scores = [found.score for found in hypotheses]
        assert scores == sorted(scores, reverse=True)
        assert len({tuple(found.ids) for found in hypotheses}) == len(hypotheses)
        assert all({PAD, BOS, EOS}.isdisjoint(found.ids) for found in hypotheses)
        assert all(len(found.ids) < MAX_LENGTH for found in hypotheses)


def test_a_prefix_is_obeyed_and_scored(engine):
    batch, prefixes = sources(4), [[7, 8], [], [9], [7]]
    for hypotheses, prefix in zip(search(engine, batch, prefixes=prefixes), prefixes, strict=True):
        assert all(found.ids[: len(prefix)] == prefix for found in hypotheses)
    found = [hypotheses[0] for hypotheses in search(engine, batch, prefixes=prefixes)]
    for hypothesis, log_probs in zip(found, score(engine, batch, [h.ids for h in found]), strict=True):
        assert log_probs.sum() == pytest.approx(hypothesis.log_prob, abs=1e-4)
