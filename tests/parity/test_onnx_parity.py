"""ONNX Runtime against torch, over every tiny model: the same numbers in fp32, close ones in int8, at any size."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from capsnmt.config import FolderConfig, parse
from capsnmt.decoding.scoring import score
from capsnmt.decoding.search import beam_search
from capsnmt.runtime.engine import OnnxEngine
from capsnmt.runtime.export import write_runtime
from capsnmt.runtime.lexicon import Lexicon
from capsnmt.runtime.manifest import ENCODE_ROUTING
from capsnmt.runtime.torch_engine import TorchEngine
from capsnmt.text.subwords import BOS, EOS, PAD

VOCABULARY = 40
SHAPES = [(1, 1), (1, 9), (2, 31), (5, 3), (9, 2)]  # (batch, longest source); graphs are traced at (3, 7)
INT8_MARGIN = 0.25  # of a token's log-probability; the tiny models have few and therefore coarse channels


def folder_config(model: dict) -> FolderConfig:
    values = {
        "languages": {"source": "en", "target": "de"},
        "data": {"train": {"tsv": "a.tsv"}, "valid": {"tsv": "b.tsv"}, "store": "store"},
        "text": {},
        "model": model,
        "training": {"steps": 1, "learning_rate": 0.1},
        "output": "out",
        "format_version": 1,
        "vocabulary": {"source_size": VOCABULARY, "target_size": VOCABULARY, "fingerprint": "none"},
    }
    return parse(FolderConfig, values, "test")


@pytest.fixture(scope="module")
def folders() -> dict:
    """What has been exported: it takes seconds, and models and lexicon are the same each time."""
    return {}


@pytest.fixture
def exported(variant, model, tiny_config, folders, tmp_path_factory, monkeypatch):
    """exported(precision) → the engine of the variant's graphs."""
    monkeypatch.setattr("capsnmt.runtime.quantise.WIDE", VOCABULARY)  # so the output layer is made as a real one is

    def export(precision: str, lexicon: Lexicon | None = None) -> OnnxEngine:
        key = (variant, precision, lexicon is not None)
        if key not in folders:
            folder, config = tmp_path_factory.mktemp("exported"), folder_config(tiny_config(*variant))
            write_runtime(model, folder, config, None, precision=precision, made_from="", lexicon=lexicon)
            folders[key] = folder
        return OnnxEngine.load(folders[key])

    return export


@pytest.fixture
def torch_engine(model):
    return TorchEngine(model, vocabulary_size=VOCABULARY, device=torch.device("cpu"))


def ragged(batch: int, longest: int) -> list[list[int]]:
    generator = np.random.default_rng(longest)
    lengths = [max(1, longest - 2 * row) for row in range(batch)]
    return [[*generator.integers(4, VOCABULARY, length - 1).tolist(), EOS] for length in lengths]


def worst_difference(expected, found, sources, steps=6) -> float:
    """Of any log-probability, while hypotheses multiply, change places and die."""
    sessions = [engine.encode(sources) for engine in (expected, found)]
    generator = np.random.default_rng(3)
    tokens, origins = np.full(len(sources), BOS), np.arange(len(sources))
    worst = 0.0
    for number in range(steps):
        a, b = (session.step_all(tokens, origins) for session in sessions)
        assert a.shape == b.shape == (len(tokens), VOCABULARY)
        worst = max(worst, float(np.abs(a - b).max()))
        rows = [7, 2, 5, 5, 1, 3][number]
        origins = generator.integers(0, len(tokens), rows)
        tokens = generator.integers(EOS, VOCABULARY, rows)
    return worst


def test_fp32_is_torch_at_other_sizes_than_the_traced(exported, torch_engine):
    engine = exported("fp32")
    for batch, longest in SHAPES:
        assert worst_difference(torch_engine, engine, ragged(batch, longest)) < 1e-4, (batch, longest)


def test_int8_is_near_torch_at_other_sizes_than_the_traced(exported, torch_engine):
    engine = exported("int8")
    for batch, longest in SHAPES:
        difference = worst_difference(torch_engine, engine, ragged(batch, longest))
        assert 0.0 < difference < INT8_MARGIN, (batch, longest)


def search(engine, sources, **changes):
    settings = {"beam": 3, "num_best": 2, "length_penalty": 0.8, "length_penalty_type": "wu"} | changes
    return beam_search(engine, sources, max_lengths=[12] * len(sources), **settings)


@pytest.mark.parametrize("beam", [1, 4])
def test_the_same_translations_as_torch(exported, torch_engine, beam):
    sources = ragged(6, 11)
    expected, found = (search(engine, sources, beam=beam, num_best=1) for engine in (torch_engine, exported("fp32")))
    for a, b in zip(expected, found, strict=True):
        assert [found.ids for found in a] == [found.ids for found in b]
        assert [found.score for found in a] == pytest.approx([found.score for found in b], abs=1e-4)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_company_changes_nothing(exported, precision):
    engine = exported(precision)
    generator = np.random.default_rng(6)
    sources = [[*generator.integers(4, VOCABULARY, number % 9).tolist(), EOS] for number in range(64)]
    alone = [search(engine, [source])[0] for source in sources]
    for size in (7, 32):
        together = [found for start in range(0, 64, size) for found in search(engine, sources[start : start + size])]
        for a, b in zip(alone, together, strict=True):
            assert [found.ids for found in a] == [found.ids for found in b]
            assert [found.score for found in a] == pytest.approx([found.score for found in b], abs=1e-4)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_both_step_graphs_agree(exported, precision):
    engine, sources = exported(precision), ragged(4, 8)
    tokens, origins, forced = np.full(5, BOS), np.array([0, 1, 2, 3, 3]), np.array([EOS, 17, 30, PAD, 9])
    whole = engine.encode(sources).step_all(tokens, origins)
    np.testing.assert_allclose(np.exp(whole).sum(axis=1), 1.0, atol=1e-5)
    found = engine.encode(sources).step(tokens, origins, 6, forced=forced)
    np.testing.assert_allclose(found.forced, whole[np.arange(5), forced], atol=1e-5)
    np.testing.assert_allclose(np.take_along_axis(whole, found.ids, axis=1), found.log_probs, atol=1e-5)
    whole[:, [PAD, BOS]] = -np.inf
    np.testing.assert_allclose(found.log_probs, -np.sort(-whole, axis=1)[:, :6], atol=1e-5)


def test_scores_are_those_of_torch(exported, torch_engine):
    sources, targets = ragged(4, 8), [[5, 6], [], [7, 8, 9, 10], [11]]
    for a, b in zip(score(torch_engine, sources, targets), score(exported("fp32"), sources, targets), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


def test_coverage_is_torchs(exported, torch_engine, variant):
    sessions = [engine.encode(ragged(4, 8)) for engine in (torch_engine, exported("fp32"))]
    for tokens, origins in (([BOS] * 4, [0, 1, 2, 3]), ([5, 6, 7], [3, 0, 0])):
        for session in sessions:
            session.step_all(np.array(tokens), np.array(origins))
        expected, found = (session.coverage() for session in sessions)
        if variant[0] != "gnmt":
            assert expected is found is None
            continue
        assert (expected < 0).all()
        np.testing.assert_allclose(found, expected, atol=1e-4)


def lexicon() -> Lexicon:
    """Every source id has five words of its own."""
    own = np.random.default_rng(9).integers(4, VOCABULARY, (VOCABULARY, 5))
    return Lexicon(np.array([EOS, 7], dtype=np.int32), own.astype(np.int32))


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_selected_words_have_the_whole_models_probabilities_among_themselves(exported, precision):
    engine, sources = exported(precision, lexicon()), ragged(4, 6)
    tokens, origins, forced = np.full(5, BOS), np.array([0, 1, 2, 3, 3]), np.full(5, EOS)
    whole = engine.encode(sources).step_all(tokens, origins)
    found = engine.encode(sources).step(tokens, origins, 4, forced=forced)
    for row, sentence in enumerate(origins):
        words = lexicon().select(sources[sentence])
        expected = whole[row, words] - np.log(np.exp(whole[row, words]).sum())
        best = np.argsort(-expected)[:4]
        np.testing.assert_allclose(found.log_probs[row], expected[best], atol=1e-4)
        np.testing.assert_allclose(expected[np.searchsorted(words, found.ids[row])], found.log_probs[row], atol=1e-4)
        assert found.forced[row] == pytest.approx(expected[words == EOS].item(), abs=1e-4)


def test_a_forced_word_that_is_not_selected_has_its_probability_among_all(exported):
    engine, sources = exported("fp32", lexicon()), [[5, EOS]]
    outside = next(word for word in range(4, VOCABULARY) if word not in lexicon().select(sources[0]))
    whole = engine.encode(sources).step_all(np.array([BOS]), np.array([0]))
    found = engine.encode(sources).step(np.array([BOS]), np.array([0]), 2, forced=np.array([outside]))
    assert found.forced[0] == pytest.approx(whole[0, outside], abs=1e-4)


def test_company_changes_nothing_with_selected_words(exported):
    engine = exported("int8", lexicon())
    generator = np.random.default_rng(6)
    sources = [[*generator.integers(4, VOCABULARY, number % 9).tolist(), EOS] for number in range(33)]
    together = search(engine, sources)
    for source, expected in zip(sources, together, strict=True):
        (alone,) = search(engine, [source])
        assert [found.ids for found in alone] == [found.ids for found in expected]
        assert all(set(found.ids) <= set(lexicon().select(source).tolist()) for found in alone)


def test_routing_coefficients_are_torchs(exported, model):
    one = torch.tensor([[EOS]])
    if model.routing(one, one > 0) is None:
        assert ENCODE_ROUTING not in exported("fp32").manifest.graphs
        return
    sources = ragged(4, 9)
    found = exported("fp32").routing(sources)
    for row, source in zip(found, sources, strict=True):
        src = torch.tensor([source])
        with torch.inference_mode():
            expected = model.routing(src, torch.ones_like(src, dtype=torch.bool))[0].numpy()
        np.testing.assert_allclose(row[:, : len(source)], expected, atol=1e-5)
        assert (row[:, len(source) :] == 0).all()
