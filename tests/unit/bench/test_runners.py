"""Both sides take exactly as many steps as they are told to."""

from __future__ import annotations

import numpy as np
import pytest

from capsnmt.bench.build import build
from capsnmt.bench.requests import LatencyRequest
from capsnmt.bench.runners import RUNNERS, Clock, ForcedLength
from capsnmt.bench.sentences import RealText, Tokens, made_sentence, tokens_of
from capsnmt.bench.systems import SYSTEMS, BenchSystem
from capsnmt.decoding.engine import Candidates
from capsnmt.decoding.search import beam_search
from capsnmt.errors import CapsNMTError
from capsnmt.text.subwords import EOS

REQUEST = LatencyRequest(width=16, vocabulary=200, words=40)


class EagerSession:
    """Finds </s> likelier than anything else, then 5, 6, 7 …"""

    num_sentences = 1

    def __init__(self):
        self.rows = []

    def step(self, tokens, origins, k, forced=None):
        self.rows.append(len(tokens))
        probabilities = np.array([0.5, 0.2, 0.1, 0.05, 0.04, 0.03, 0.02, 0.01])[:k]
        ids = np.array([EOS, *range(5, 12)])[:k]
        known = None if forced is None else np.log(np.full(len(tokens), 0.5))
        shape = (len(tokens), 1)
        return Candidates(np.tile(np.log(probabilities), shape), np.tile(ids, shape), known)


class EagerEngine:
    vocabulary_size = 12

    def encode(self, sources):
        self.session = EagerSession()
        return self.session


@pytest.mark.parametrize("beam", [1, 3])
def test_nothing_ends_before_the_last_step_and_the_beam_stays_full(beam):
    engine = EagerEngine()
    settings = {"beam": beam, "length_penalty": 1.0, "length_penalty_type": "len", "max_lengths": [6]}
    (plain,) = beam_search(engine, [[5, EOS]], **settings)
    assert len(plain[0].ids) < 5  # left alone, it ends at once
    clock = Clock()
    (forced,) = beam_search(ForcedLength(engine, clock), [[5, EOS]], **settings)
    assert len(forced[0].ids) == 5
    assert EOS not in forced[0].ids
    assert engine.session.rows == [1] + [beam] * 5
    assert clock.encode_s > 0.0
    assert clock.step_s > 0.0


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return tmp_path_factory.mktemp("work")


@pytest.mark.parametrize("name", ["capsnmt", "capsnmt-selection", "transformer", "ct2-6+2"])
def test_a_translation_is_as_long_as_it_is_told(name, work):
    system = SYSTEMS[name]
    runner = RUNNERS[system.kind](build(system, REQUEST, work), threads=1, selection=system.selection)
    sources = [made_sentence(length, 200) for length in (3, 6)]
    for beam in (1, 3):
        found = runner.run(runner.prepare(sources), target_length=9, beam=beam)
        # Both take nine steps; our last one is </s>, which is not among the ids.
        assert [len(ids) for ids in found] == [8, 8] if system.kind == "ours" else [9, 9]
        assert all(EOS not in ids for ids in found)


def test_what_is_built_is_found_again_and_shared(work):
    folder = build(SYSTEMS["capsnmt"], REQUEST, work)
    made = (folder / "runtime" / "manifest.json").stat().st_mtime_ns
    assert build(SYSTEMS["capsnmt-selection"], REQUEST, work) == folder
    assert (folder / "runtime" / "manifest.json").stat().st_mtime_ns == made
    other = LatencyRequest(width=16, vocabulary=201, words=40)
    assert build(SYSTEMS["capsnmt"], other, work) != folder


def test_made_sentences_are_the_same_each_time_and_as_long_as_asked():
    assert made_sentence(27, 50) == made_sentence(27, 50)
    assert [len(made_sentence(length, 50)) for length in (1, 2, 27)] == [1, 2, 27]
    assert made_sentence(27, 50)[-1] == EOS


def test_real_sentences_have_the_lengths_of_subwords_and_ids_of_any_vocabulary(tmp_path):
    (tmp_path / "text").write_text("one two three four\n\n  \none\n" * 20)
    found = RealText(tmp_path / "text", tmp_path).sentences(3, Tokens(40))
    assert len(found) == 3
    assert [len(ids) for ids in (found[0], found[1])] == [5, 2]  # frequent words are one piece each
    assert all(4 <= id_ < 40 for ids in found for id_ in ids[:-1])
    (tmp_path / "empty").write_text("\n \n")
    with pytest.raises(CapsNMTError, match="no sentence"):
        RealText(tmp_path / "empty", tmp_path)


def test_characters_and_words_are_as_many_as_the_same_sentences_have(tmp_path):
    (tmp_path / "text").write_text("one two three four\n" * 20)
    text = RealText(tmp_path / "text", tmp_path)
    systems = {pieces: BenchSystem(pieces, "ours", vocabulary=(40, 50), pieces=pieces) for pieces in ("char", "word")}
    tokens = tokens_of({**systems, "capsnmt": SYSTEMS["capsnmt"]}, 60, text)
    assert tokens["capsnmt"] == Tokens(60)
    assert tokens["word"].per_subword == 1.0  # the frequent words are one subword each
    assert tokens["char"].per_subword == 4.75  # 15 letters and four spaces, one of them before the first word
    assert len(tokens["char"].made(32)) == 152
    assert [len(text.sentences(1, own)[0]) for own in tokens.values()] == [20, 5, 5]
    assert max(text.sentences(1, tokens["char"])[0]) < 40
    assert tokens_of(systems, 60, None)["char"].count(32) == 32
