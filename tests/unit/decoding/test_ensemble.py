"""Ensembles: written-down probabilities averaged by hand, then real models of several kinds on both engines."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from decoding_engines import A, B, C, WrittenEngine, copy_engine, logs, random_engine, table_engine

from capsnmt.decoding.engine import clean_log_probs
from capsnmt.decoding.ensemble import EnsembleEngine, best_ids
from capsnmt.decoding.sampling import sample
from capsnmt.decoding.scoring import score
from capsnmt.decoding.search import beam_search
from capsnmt.errors import CapsNMTError
from capsnmt.runtime.torch_engine import TorchEngine
from capsnmt.text.subwords import BOS, EOS, PAD

VOCABULARY = 40
SOURCES = [[5, 6, 7, EOS], [8, EOS], [9, 10, 11, 12, 13, 14, EOS]]
SETTINGS = {"length_penalty": 0.8, "length_penalty_type": "wu"}


def ints(*values):
    return np.array(values, dtype=np.int64)


def search(engine, sources=SOURCES, **changes):
    settings = {"beam": 3, "num_best": 2, "max_lengths": [9] * len(sources)} | SETTINGS | changes
    return beam_search(engine, sources, **settings)


def test_probabilities_are_averaged_not_their_logs():
    first, second = table_engine({(): {A: 0.9, B: 0.1}}), table_engine({(): {A: 0.1, B: 0.3, C: 0.6}})
    session = EnsembleEngine([first, second]).encode([[A, EOS]])
    assert np.exp(session.step_all(ints(BOS), ints(0)))[0, [A, B, C]] == pytest.approx([0.5, 0.2, 0.3])


def test_candidates_are_the_best_of_the_mean():
    """C is nobody's best word but the mean's second one."""
    first, second = table_engine({(): {A: 0.6, C: 0.4}}), table_engine({(): {A: 0.2, B: 0.45, C: 0.35}})
    found = EnsembleEngine([first, second]).encode([[A, EOS]]).step(ints(BOS), ints(0), 3, forced=ints(B))
    assert found.ids.tolist() == [[A, C, B]]
    assert np.exp(found.log_probs)[0] == pytest.approx([0.4, 0.375, 0.225])
    assert np.exp(found.forced) == pytest.approx([0.225])


def test_pad_and_bos_are_never_proposed():
    wants_them = WrittenEngine(lambda source, prefix: np.log([0.4, 0.01, 0.4, 0.05, 0.05, 0.04, 0.03, 0.02]))
    found = EnsembleEngine([wants_them, wants_them]).encode([[A, EOS]]).step(ints(BOS), ints(0), 100)
    assert found.ids.shape == (1, 8)
    assert set(found.ids[0, :6].tolist()) == {1, 3, 4, 5, 6, 7}
    assert np.isneginf(found.log_probs[0, 6:]).all()


@pytest.mark.parametrize("order", [1, -1])
def test_what_one_model_has_no_number_for_is_impossible_as_with_that_model_alone(order):
    """A sentence, or a word; other sentences of the batch are as they would be."""

    def distribution(source, prefix):
        row = logs({A: 0.5, EOS: 0.5})
        row[A] = np.nan
        return np.full(8, np.nan) if source[0] == B else row

    broken, sound = WrittenEngine(distribution), WrittenEngine(lambda source, prefix: logs({A: 0.5, EOS: 0.5}))
    engine = EnsembleEngine([broken, sound][::order])
    sources = [[B, EOS], [A, EOS]]
    whole = engine.encode(sources).step_all(ints(BOS, BOS), ints(0, 1))
    assert np.exp(whole)[:, [A, B, EOS]].tolist() == [[0.0, 0.0, 0.0], [0.0, 0.0, pytest.approx(0.5)]]
    found = search(engine, sources, num_best=1)
    assert found == search(broken, sources, num_best=1)
    assert found[0][0].score == -np.inf


def test_the_best_columns_best_first_and_of_equals_the_first():
    log_probs = np.array([[0.1, 0.7, 0.7, 0.2, 0.7], [0.5, 0.4, 0.3, 0.2, 0.1]])
    assert best_ids(log_probs, 5).tolist() == [[1, 2, 4, 3, 0], [0, 1, 2, 3, 4]]
    assert best_ids(log_probs, 1)[1].tolist() == [0]


def test_coverage_is_the_mean_of_those_that_have_it():
    engines = [random_engine(seed) for seed in range(3)]
    for covered, engine in zip((-0.5, -0.1), engines, strict=False):
        engine.coverage = lambda source, prefix, covered=covered: covered
    session = EnsembleEngine(engines).encode([[A, EOS]])
    session.step_all(ints(BOS), ints(0))
    assert session.coverage() == pytest.approx([-0.3])
    assert EnsembleEngine(engines[2:]).encode([[A, EOS]]).coverage() is None


def test_vocabularies_of_different_sizes_are_refused():
    with pytest.raises(CapsNMTError, match=r"one vocabulary, but these have \[8, 300\]"):
        EnsembleEngine([random_engine(1), copy_engine()])


@pytest.fixture
def mixed(tiny_model, tmp_path):
    """A capsule model, one with a memory that grows and one with a cache, the last on ONNX Runtime; and the models."""
    pytest.importorskip("onnx")
    from capsnmt.runtime.engine import OnnxEngine
    from capsnmt.runtime.export import write_runtime

    models = [tiny_model(system) for system in ("capsnmt", "gnmt", "transformer")]
    engines = [TorchEngine(model, vocabulary_size=VOCABULARY, device=torch.device("cpu")) for model in models[:2]]
    write_runtime(models[2], tmp_path, folder_config(models[2]), None, precision="fp32", made_from="")
    return EnsembleEngine([*engines, OnnxEngine.load(tmp_path)]), models


def folder_config(model):
    from capsnmt.config import FolderConfig, parse

    values = {
        "languages": {"source": "en", "target": "de"},
        "data": {"train": {"tsv": "a.tsv"}, "valid": {"tsv": "b.tsv"}, "store": "store"},
        "text": {},
        "model": model.config.model_dump(),
        "training": {"steps": 1, "learning_rate": 0.1},
        "output": "out",
        "format_version": 1,
        "vocabulary": {"source_size": VOCABULARY, "target_size": VOCABULARY, "fingerprint": "none"},
    }
    return parse(FolderConfig, values, "test")


@torch.inference_mode()
def mean_of(models, source, prefix):
    """log of the mean of p(· | source, prefix), by teacher forcing and without any batch."""
    src, tgt_in = torch.tensor([source]), torch.tensor([[BOS, *prefix]])
    mask = torch.ones_like(src, dtype=torch.bool)
    return torch.stack([model(src, mask, tgt_in)[0, -1].softmax(dim=-1) for model in models]).mean(dim=0).log().numpy()


def test_any_mix_of_systems_and_engines_keeps_its_states_apart(mixed):
    engine, models = mixed
    session = engine.encode(SOURCES)
    assert session.num_sentences == 3
    rows = [(0, ()), (1, ()), (2, ())]
    steps = [([0, 1, 2], [BOS] * 3), ([0, 0, 2, 1], [20, 21, 22, 23]), ([3, 1, 0], [24, 25, 26]), ([2], [27])]
    for number, (origins, tokens) in enumerate(steps):
        rows = [rows[origin] for origin in origins]
        if number:
            rows = [(sentence, (*prefix, token)) for (sentence, prefix), token in zip(rows, tokens, strict=True)]
        found = session.step_all(ints(*tokens), ints(*origins))
        expected = np.stack([mean_of(models, SOURCES[sentence], prefix) for sentence, prefix in rows])
        np.testing.assert_allclose(found, expected, atol=1e-4)


def test_searching_scoring_and_sampling(mixed):
    engine, models = mixed
    together = search(engine)
    for source, expected in zip(SOURCES, together, strict=True):
        (alone,) = search(engine, [source])
        assert [found.ids for found in alone] == [found.ids for found in expected]
    best = [hypotheses[0] for hypotheses in together]
    for hypothesis, log_probs in zip(best, score(engine, SOURCES, [each.ids for each in best]), strict=True):
        assert log_probs.sum() == pytest.approx(hypothesis.log_prob, abs=1e-4)
    drawn = sample(engine, SOURCES, num_samples=2, max_lengths=[9] * 3, seed=3)
    for source, hypotheses in zip(SOURCES, drawn, strict=True):
        for hypothesis in hypotheses:
            ids = [*hypothesis.ids, EOS]
            expected = sum(mean_of(models, source, ids[:t])[ids[t]] for t in range(len(ids)))
            assert hypothesis.log_prob == pytest.approx(expected, abs=1e-3)
            assert {PAD, BOS}.isdisjoint(ids)


def test_a_model_with_itself_is_itself(tiny_model):
    engine = TorchEngine(tiny_model("rnnsearch"), vocabulary_size=VOCABULARY, device=torch.device("cpu"))
    for one, both in zip(search(engine), search(EnsembleEngine([engine, engine])), strict=True):
        assert [found.ids for found in one] == [found.ids for found in both]
        assert [found.score for found in one] == pytest.approx([found.score for found in both], abs=1e-5)
    whole = EnsembleEngine([engine] * 3).encode(SOURCES).step_all(ints(BOS, BOS, BOS), ints(0, 1, 2))
    expected = engine.encode(SOURCES).step_all(ints(BOS, BOS, BOS), ints(0, 1, 2))
    np.testing.assert_allclose(whole, clean_log_probs(expected), atol=1e-6)
