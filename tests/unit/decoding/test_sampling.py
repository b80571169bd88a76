import math
from collections import Counter

import numpy as np
import pytest
from decoding_engines import A, B, C, D, WrittenEngine, logs, random_engine, table_engine

from capsnmt.decoding.sampling import reshape, sample
from capsnmt.decoding.scoring import score
from capsnmt.decoding.search import Hypothesis, beam_search
from capsnmt.errors import CapsNMTError
from capsnmt.text.subwords import BOS, EOS, PAD

TWO_STEPS = {(): {A: 0.5, B: 0.3, EOS: 0.2}, (A,): {C: 0.25, EOS: 0.75}}


def frequencies(found):
    counts = Counter(tuple(hypothesis.ids) for hypothesis in found)
    return {ids: count / len(found) for ids, count in counts.items()}


def greedy(engine, sources, max_lengths):
    options = {"beam": 1, "length_penalty": 0.0, "length_penalty_type": "wu"}
    return [found[0].ids for found in beam_search(engine, sources, max_lengths=max_lengths, **options)]


def test_frequencies_match_the_probabilities():
    found = sample(table_engine(TWO_STEPS), [(A,)], num_samples=4000, max_lengths=[5], seed=3)[0]
    expected = {(): 0.2, (B,): 0.3, (A,): 0.375, (A, C): 0.125}
    seen = frequencies(found)
    assert seen.keys() == expected.keys()
    for ids, probability in expected.items():
        # Five standard deviations of a binomial share.
        assert abs(seen[ids] - probability) < 5 * math.sqrt(probability * (1 - probability) / 4000)


def test_log_prob_is_the_models_own_and_score_is_its_mean():
    engine = table_engine(TWO_STEPS)
    found = sample(engine, [(A,)], num_samples=50, temperature=3.0, top_k=2, top_p=0.95, max_lengths=[5], seed=1)[0]
    assert len({tuple(hypothesis.ids) for hypothesis in found}) > 1
    for hypothesis in found:
        tokens = score(engine, [(A,)], [hypothesis.ids])[0]
        assert hypothesis.log_prob == pytest.approx(tokens.sum(), abs=1e-9)
        assert hypothesis.score == pytest.approx(tokens.mean(), abs=1e-9)
    assert [hypothesis.score for hypothesis in found] == sorted((h.score for h in found), reverse=True)


@pytest.mark.parametrize("settings", [{"temperature": 1e-6}, {"top_k": 1}, {"top_p": 1e-9}])
def test_limits_are_greedy(settings):
    engine = random_engine(2)
    sources = [(n % 4 + 4, n % 3 + 4) for n in range(12)]
    lengths = [n % 6 + 1 for n in range(12)]
    found = sample(engine, sources, num_samples=2, max_lengths=lengths, seed=4, **settings)
    expected = greedy(engine, sources, lengths)
    assert [[hypothesis.ids for hypothesis in hypotheses] for hypotheses in found] == [[ids, ids] for ids in expected]


def test_temperature_flattens():
    def share_of_a(temperature):
        engine = WrittenEngine(lambda source, prefix: logs({EOS: 1.0} if prefix else {A: 0.9, B: 0.1}))
        found = sample(engine, [(A,)], num_samples=3000, temperature=temperature, max_lengths=[3], seed=5)[0]
        return frequencies(found)[(A,)]

    # p^(1/T) normalised: T = 2 gives 3 : 1, T = 1/2 gives 81 : 1.
    assert share_of_a(2.0) == pytest.approx(0.75, abs=0.04)
    assert share_of_a(0.5) == pytest.approx(81 / 82, abs=0.02)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"top_k": 0, "top_p": 1.0}, {A: 0.4, B: 0.3, C: 0.2, D: 0.1}),
        ({"top_k": 2, "top_p": 1.0}, {A: 0.4, B: 0.3}),
        ({"top_k": 99, "top_p": 1.0}, {A: 0.4, B: 0.3, C: 0.2, D: 0.1}),
        ({"top_k": 0, "top_p": 0.65}, {A: 0.4, B: 0.3}),
        ({"top_k": 0, "top_p": 0.75}, {A: 0.4, B: 0.3, C: 0.2}),
        ({"top_k": 2, "top_p": 0.5}, {A: 0.4}),  # of the two that are left, a holds 4/7
    ],
)
def test_cuts_by_hand(settings, expected):
    weights = reshape(logs({A: 0.4, B: 0.3, C: 0.2, D: 0.1})[None, :], temperature=1.0, **settings)[0]
    assert {token: weight / weights[A] for token, weight in enumerate(weights) if weight} == pytest.approx(
        {token: probability / 0.4 for token, probability in expected.items()}
    )


def test_equally_probable_tokens_stay_together():
    weights = reshape(logs({A: 0.4, B: 0.3, C: 0.3})[None, :], temperature=1.0, top_k=2, top_p=1.0)[0]
    assert np.flatnonzero(weights).tolist() == [A, B, C]


def test_pad_and_bos_are_never_drawn():
    engine = WrittenEngine(lambda source, prefix: logs({PAD: 0.6, BOS: 0.3, EOS: 0.1}))
    found = sample(engine, [(A,)], num_samples=100, max_lengths=[9], seed=0)[0]
    assert frequencies(found) == {(): 1.0}
    assert found[0].log_prob == pytest.approx(math.log(0.1))


def test_seed_decides_and_company_does_not():
    engine = random_engine(7, spread=0.5)
    sources = [(A,), (B, C), (D,), (A, A)]
    options = {"num_samples": 6}
    together = sample(engine, sources, max_lengths=[6, 3, 9, 4], seed=1, sentence_ids=[10, 11, 12, 13], **options)
    alone = [
        sample(engine, [source], max_lengths=[length], seed=1, sentence_ids=[10 + n], **options)[0]
        for n, (source, length) in enumerate(zip(sources, [6, 3, 9, 4], strict=True))
    ]
    assert together == alone
    assert together != sample(
        engine, sources, max_lengths=[6, 3, 9, 4], seed=2, sentence_ids=[10, 11, 12, 13], **options
    )


def test_equal_sentences_of_a_batch_draw_their_own():
    engine = random_engine(7, spread=0.1)
    found = sample(engine, [(A,)] * 8, num_samples=1, max_lengths=[12] * 8, seed=1)
    assert len({tuple(hypotheses[0].ids) for hypotheses in found}) > 3


def test_prefix_and_max_length():
    endless = WrittenEngine(lambda source, prefix: logs({A: 0.9, B: 0.099, EOS: 0.001}))
    found = sample(endless, [(A,)], num_samples=20, max_lengths=[4], seed=0, prefixes=[(B, B)])[0]
    assert {tuple(h.ids[:2]) for h in found} == {(B, B)}
    assert max(len(h.ids) for h in found) == 3
    longest = next(h for h in found if h.ids == [B, B, A])
    assert longest.log_prob == pytest.approx(math.log(0.099**2 * 0.9 * 0.001))


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_impossible_sentences_return_empty_samples(value):
    engine = WrittenEngine(lambda source, prefix: np.full(8, value) if source == (B,) else logs({EOS: 1.0}))
    found = sample(engine, [(B,), (A,)], num_samples=2, top_k=2, top_p=0.9, max_lengths=[5, 5], seed=0)
    assert found[0] == [Hypothesis([], -math.inf, -math.inf)] * 2
    assert found[1] == [Hypothesis([], 0.0, 0.0)] * 2


def test_single_nan_counts_as_impossible():
    def distribution(source, prefix):
        row = logs({A: 0.5, B: 0.5} if not prefix else {EOS: 1.0})
        row[D] = np.nan
        return row

    found = sample(WrittenEngine(distribution), [(A,)], num_samples=50, max_lengths=[3], seed=0)[0]
    assert frequencies(found).keys() == {(A,), (B,)}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_samples": 0}, "number of samples 0"),
        ({"temperature": 0.0}, "temperature 0.0 must be above 0"),
        ({"top_k": -1}, "top_k -1"),
        ({"top_p": 0.0}, "top_p 0.0"),
        ({"top_p": 1.5}, "top_p 1.5"),
        ({"seed": -1}, "seed -1"),
    ],
)
def test_errors_name_value_and_fix(settings, message):
    with pytest.raises(CapsNMTError, match=message):
        sample(random_engine(0), [(A,)], **({"num_samples": 1, "max_lengths": [3], "seed": 0} | settings))


def test_no_sources_no_results():
    assert sample(random_engine(0), [], num_samples=2, max_lengths=[], seed=0) == []
