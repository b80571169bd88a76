import itertools
import math

import numpy as np
import pytest
from decoding_engines import A, B, C, D, WrittenEngine, logs, random_engine, table_engine
from hypothesis import given, settings
from hypothesis import strategies as st

from capsnmt.decoding.scoring import score
from capsnmt.decoding.search import Hypothesis, beam_search
from capsnmt.errors import CapsNMTError
from capsnmt.text.subwords import BOS, EOS, PAD, UNK

PENALTIES = {"wu": lambda n, alpha: ((5 + n) / 6) ** alpha, "len": lambda n, alpha: n**alpha}


def search_one(
    engine, source=(A,), *, beam, num_best=1, alpha=0.0, kind="wu", beta=0.0, max_length=10, min_length=0, prefix=()
):
    return beam_search(
        engine,
        [source],
        beam=beam,
        num_best=num_best,
        length_penalty=alpha,
        length_penalty_type=kind,
        coverage_penalty=beta,
        max_lengths=[max_length],
        min_length=min_length,
        prefixes=[prefix],
    )[0]


def slow_search(engine, source, *, beam, num_best, alpha, kind, beta, max_length, min_length, prefix):
    """The definition in plain loops: one sentence, no early stopping, no bookkeeping."""
    max_length = max(max_length, len(prefix) + 1)
    width = 2 * beam if beam > 1 else 1
    live, finished = [((), 0.0)], []
    for position in range(max_length):
        found = []
        for ids, log_prob in live:
            row = engine.distribution(tuple(source), ids)
            if position < len(prefix):
                choices = [prefix[position]]
            elif position == max_length - 1:
                choices = [EOS]
            else:
                never = (PAD, BOS) if position >= min_length else (PAD, BOS, EOS)
                choices = [token for token in range(len(row)) if token not in never]
            found += [((*ids, token), log_prob + row[token]) for token in choices if row[token] > -math.inf]
        found = sorted(found, key=lambda candidate: -candidate[1])[:width]
        for ids, log_prob in found:
            if ids[-1] == EOS:
                covered = beta * engine.coverage(tuple(source), ids[:-1])
                finished.append((list(ids[:-1]), log_prob, log_prob / PENALTIES[kind](len(ids), alpha) + covered))
        live = [candidate for candidate in found if candidate[0][-1] != EOS][:beam]
    finished.sort(key=lambda hypothesis: -hypothesis[2])
    return finished[:num_best] or [(list(prefix), -math.inf, -math.inf)]


def assert_same(found, expected):
    assert [hypothesis.ids for hypothesis in found] == [ids for ids, _, _ in expected]
    assert [hypothesis.log_prob for hypothesis in found] == pytest.approx([x for _, x, _ in expected], abs=1e-9)
    assert [hypothesis.score for hypothesis in found] == pytest.approx([x for _, _, x in expected], abs=1e-9)


# Greedy takes a (.6), a (.4), </s> (.5) = .12; the best output is b </s> = .3 * .9 = .27.
GARDEN_PATH = {
    (): {A: 0.6, B: 0.3, EOS: 0.1},
    (A,): {A: 0.4, B: 0.35, EOS: 0.25},
    (B,): {EOS: 0.9, A: 0.05, B: 0.05},
    (A, A): {EOS: 0.5, A: 0.5},
    (A, B): {EOS: 0.2, A: 0.8},
}


def test_hand_computed_beam():
    found = search_one(table_engine(GARDEN_PATH), beam=2, num_best=2, max_length=3)
    assert_same(found, [([B], math.log(0.27), math.log(0.27)), ([A], math.log(0.15), math.log(0.15))])


def test_hand_computed_beam_with_length_penalty():
    found = search_one(table_engine(GARDEN_PATH), beam=2, num_best=2, alpha=1.0, kind="len", max_length=3)
    # a </s> has log(.15) / 2 = -.95; a a </s> has log(.12) / 3 = -.71 and passes it.
    assert_same(found, [([B], math.log(0.27), math.log(0.27) / 2), ([A, A], math.log(0.12), math.log(0.12) / 3)])


def test_beam_stays_full_when_every_hypothesis_proposes_the_end_first():
    both = {EOS: 0.6, A: 0.4}
    engine = table_engine({(): {A: 0.5, B: 0.5}, (A,): both, (B,): both})
    found = search_one(engine, beam=2, num_best=2, alpha=1.0, kind="len")
    # a </s>: log(.3) / 2 = -.60; a a </s>: log(.2) / 3 = -.54. With `beam` candidates only the first would be seen.
    assert_same(found, [([A, A], math.log(0.2), math.log(0.2) / 3), ([B, A], math.log(0.2), math.log(0.2) / 3)])


def test_ties_go_to_the_earlier_end_then_to_the_better_parent():
    engine = table_engine({(): {A: 0.25, B: 0.25, C: 0.25, EOS: 0.25}})
    found = search_one(engine, beam=4, num_best=4)
    assert [hypothesis.ids for hypothesis in found] == [[], [A], [B], [C]]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("max_length", [1, 2, 3, 4])
@pytest.mark.parametrize(("alpha", "kind"), [(0.0, "wu"), (0.8, "wu"), (1.0, "len"), (2.0, "len")])
def test_wide_beam_is_exhaustive(seed, max_length, alpha, kind):
    engine = random_engine(seed)
    everything = []
    for num_words in range(max_length):
        for ids in itertools.product((A, B, C, D), repeat=num_words):
            path = (*ids, EOS)
            log_prob = sum(engine.distribution((A,), path[:i])[token] for i, token in enumerate(path))
            everything.append((list(ids), log_prob, log_prob / PENALTIES[kind](len(path), alpha)))
    everything.sort(key=lambda hypothesis: -hypothesis[2])
    assert len(everything) == (4**max_length - 1) // 3
    found = search_one(engine, beam=64, num_best=20, alpha=alpha, kind=kind, max_length=max_length)
    assert_same(found, everything[:20])


@settings(deadline=None, max_examples=300)
@given(
    seed=st.integers(0, 10**6),
    beam=st.integers(1, 6),
    data=st.data(),
    alpha=st.sampled_from([0.0, 0.6, 1.0, 1.7]),
    kind=st.sampled_from(["wu", "len"]),
    max_length=st.integers(1, 12),
    min_length=st.integers(0, 3),
    prefix=st.lists(st.sampled_from([UNK, A, B, C, D]), max_size=3),
    spread=st.sampled_from([0.5, 2.0, 6.0]),
    beta=st.sampled_from([0.0, 0.2, 3.0]),
)
def test_equals_the_slow_search_so_early_stopping_is_exact(
    seed, beam, data, alpha, kind, max_length, min_length, prefix, spread, beta
):
    engine = random_engine(seed, usable=(UNK, EOS, A, B, C, D), spread=spread)
    engine.coverage = lambda source, prefix: -np.random.default_rng([seed, 9, *prefix]).exponential()
    options = {"beam": beam, "num_best": data.draw(st.integers(1, beam)), "alpha": alpha, "kind": kind, "beta": beta}
    options |= {"max_length": max_length, "min_length": min_length, "prefix": tuple(prefix)}
    assert_same(search_one(engine, (A, B), **options), slow_search(engine, (A, B), **options))


def test_early_stopping_stops_early_but_not_before_a_longer_output_is_beaten():
    sure = table_engine({(): {A: 0.99, EOS: 0.01}, (A,): {EOS: 0.99, A: 0.01}, (A, A): {EOS: 0.01, A: 0.99}})
    assert search_one(sure, beam=4, max_length=100)[0].ids == [A]
    assert len(sure.rows_per_step) <= 3
    # Here the short output comes first, and ten sure steps later a long one with a better score.
    late = {(A,) * n: {A: 1.0} for n in range(1, 10)} | {(): {EOS: 0.55, A: 0.45}}
    found = search_one(table_engine(late), beam=2, alpha=1.0, kind="len", max_length=20)
    assert found[0].ids == [A] * 10


def test_finished_sentences_leave_the_batch():
    def distribution(source, prefix):
        return logs({EOS: 1.0} if len(prefix) == source[0] else {A: 1.0})

    engine = WrittenEngine(distribution)
    found = beam_search(
        engine, [(1,), (3,), (5,)], beam=2, length_penalty=0.0, length_penalty_type="wu", max_lengths=[9, 9, 9]
    )
    assert [len(hypotheses[0].ids) for hypotheses in found] == [1, 3, 5]
    assert engine.rows_per_step == [3, 3, 2, 2, 1, 1]


@pytest.mark.parametrize("seed", range(20))
def test_beam_one_is_greedy(seed):
    engine = random_engine(seed)
    ids = []
    while len(ids) < 7:
        token = int(np.argmax(engine.distribution((A,), tuple(ids))))
        if token == EOS:
            break
        ids.append(token)
    assert search_one(engine, beam=1, alpha=1.0, max_length=8)[0].ids == ids


def test_batch_company_changes_nothing():
    engine = random_engine(5)
    generator = np.random.default_rng(0)
    sources = [tuple(generator.integers(4, 8, size=n % 5 + 1).tolist()) for n in range(32)]
    lengths = [n % 7 + 1 for n in range(32)]
    prefixes = [(A, B, C)[: n % 4] for n in range(32)]
    options = {"beam": 3, "num_best": 3, "length_penalty": 0.8, "length_penalty_type": "wu"}
    together = beam_search(engine, sources, max_lengths=lengths, prefixes=prefixes, **options)
    alone = [
        beam_search(engine, [source], max_lengths=[length], prefixes=[prefix], **options)[0]
        for source, length, prefix in zip(sources, lengths, prefixes, strict=True)
    ]
    assert together == alone
    assert len({tuple(hypotheses[0].ids) for hypotheses in together}) > 5


@pytest.mark.parametrize("beam", [1, 4])
def test_scoring_an_output_gives_its_own_log_prob(beam):
    engine = random_engine(11)
    sources = [(A,), (B, C), (D, D, D), (C,)]
    prefixes = [(), (D, D), (), (A,)]
    found = beam_search(
        engine,
        sources,
        beam=beam,
        length_penalty=1.0,
        length_penalty_type="wu",
        max_lengths=[5, 1, 3, 9],
        prefixes=prefixes,
    )
    best = [hypotheses[0] for hypotheses in found]
    token_log_probs = score(engine, sources, [hypothesis.ids for hypothesis in best])
    assert [len(row) for row in token_log_probs] == [len(hypothesis.ids) + 1 for hypothesis in best]
    for row, hypothesis in zip(token_log_probs, best, strict=True):
        assert row.sum() == pytest.approx(hypothesis.log_prob, abs=1e-6)
        assert hypothesis.score == pytest.approx(hypothesis.log_prob / PENALTIES["wu"](len(row), 1.0))


def test_scoring_by_hand():
    engine = table_engine(GARDEN_PATH)
    found = score(engine, [(A,), (A,), (A,)], [[A, B], [], [B, C]])
    assert found[0] == pytest.approx(np.log([0.6, 0.35, 0.2]))
    assert found[1] == pytest.approx(np.log([0.1]))
    assert found[2].tolist() == [pytest.approx(math.log(0.3)), -math.inf, 0.0]
    assert engine.rows_per_step == [3, 2, 2]  # a target that has ended costs nothing
    assert score(engine, [], []) == []
    with pytest.raises(CapsNMTError, match="1 sources with 2 targets"):
        score(engine, [(A,)], [[], []])


def test_scoring_takes_nan_for_impossible():
    found = score(WrittenEngine(lambda source, prefix: np.full(8, np.nan)), [(A,)], [[A]])
    assert found[0].tolist() == [-math.inf, -math.inf]


def test_prefix_is_honoured_and_paid_for():
    found = search_one(table_engine(GARDEN_PATH), beam=2, num_best=2, prefix=(A, B), max_length=3)
    assert_same(found, [([A, B], math.log(0.6 * 0.35 * 0.2), math.log(0.6 * 0.35 * 0.2))])


@pytest.mark.parametrize("max_length", [1, 2])
def test_prefix_without_room_raises_the_max_length(max_length):
    found = search_one(table_engine(GARDEN_PATH), beam=2, prefix=(A, B), max_length=max_length)
    assert found[0].ids == [A, B]
    assert found[0].log_prob == pytest.approx(math.log(0.6 * 0.35 * 0.2))


@pytest.mark.parametrize("beam", [1, 3])
def test_max_length_forces_the_end_and_counts_it(beam):
    endless = WrittenEngine(lambda source, prefix: logs({A: 0.9, EOS: 0.1}))
    found = search_one(endless, beam=beam, alpha=3.0, kind="len", max_length=4)
    assert_same(found, [([A] * 3, math.log(0.9**3 * 0.1), math.log(0.9**3 * 0.1) / 4**3)])


def test_every_sentence_has_its_own_max_length():
    endless = WrittenEngine(lambda source, prefix: logs({A: 0.9, EOS: 0.1}))
    found = beam_search(
        endless, [(A,)] * 3, beam=2, length_penalty=3.0, length_penalty_type="len", max_lengths=[2, 5, 1]
    )
    assert [len(hypotheses[0].ids) for hypotheses in found] == [1, 4, 0]


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_impossible_sentences_return_an_empty_hypothesis_and_harm_nobody(beam, value):
    def distribution(source, prefix):
        return np.full(8, value) if source == (B,) else logs({A: 0.5, EOS: 0.5} if not prefix else {EOS: 1.0})

    options = {"beam": beam, "length_penalty": 1.0, "length_penalty_type": "len", "max_lengths": [5, 5]}
    found = beam_search(WrittenEngine(distribution), [(B,), (A,)], **options)
    assert found[0] == [Hypothesis([], -math.inf, -math.inf)]
    assert found[1][0].log_prob == pytest.approx(math.log(0.5))


def test_single_nan_counts_as_impossible():
    def distribution(source, prefix):
        row = logs({A: 0.3, EOS: 0.2})
        row[B] = np.nan
        return row

    assert search_one(WrittenEngine(distribution), beam=2, max_length=3)[0].ids == []


def test_forced_end_that_is_impossible_gives_what_ended_before():
    def distribution(source, prefix):
        return logs({A: 0.9, EOS: 0.1}) if not prefix else logs({A: 1.0})

    assert_same(search_one(WrittenEngine(distribution), beam=2, max_length=4), [([], math.log(0.1), math.log(0.1))])


def test_rounding_above_zero_cannot_earn_anything():
    def distribution(source, prefix):
        row = logs({A: 1.0, EOS: 0.9})
        row[A] = 1e-3
        return row

    found = search_one(WrittenEngine(distribution), beam=2, num_best=2, max_length=50)
    assert [hypothesis.log_prob for hypothesis in found] == pytest.approx([math.log(0.9)] * 2)


def test_vocabulary_smaller_than_the_candidates():
    engine = WrittenEngine(lambda source, prefix: logs({EOS: 0.5, A: 0.5}, 5), vocabulary_size=5)
    found = search_one(engine, beam=8, num_best=8, max_length=3)
    assert [hypothesis.ids for hypothesis in found] == [[], [A], [A, A]]


def test_no_sources_no_results():
    engine = random_engine(0)
    assert beam_search(engine, [], beam=2, length_penalty=0.0, length_penalty_type="wu", max_lengths=[]) == []
    assert engine.batches == []


def test_errors_name_value_and_fix():
    engine = random_engine(0)
    with pytest.raises(CapsNMTError, match=r"num_best 3 .* beam \(2\)"):
        search_one(engine, beam=2, num_best=3)
    with pytest.raises(CapsNMTError, match="num_best 0"):
        search_one(engine, beam=2, num_best=0)
    with pytest.raises(CapsNMTError, match="beam 0 must be 1 or more"):
        search_one(engine, beam=0)
    with pytest.raises(CapsNMTError, match="max length 0 must be 1 or more"):
        search_one(engine, beam=1, max_length=0)
    with pytest.raises(CapsNMTError, match=r"prefix \[4, 3\] holds a special id"):
        search_one(engine, beam=1, prefix=(A, EOS))
    with pytest.raises(CapsNMTError, match="1 sources with 2 max_lengths"):
        beam_search(engine, [(A,)], beam=1, length_penalty=0.0, length_penalty_type="wu", max_lengths=[4, 4])


@pytest.mark.parametrize("beam", [1, 2])
def test_hand_computed_coverage_penalty(beam):
    """The likelier A leaves half of one source word uncovered, B only a tenth."""
    covered = {(): 0.0, (A,): math.log(0.5), (B,): math.log(0.9)}
    engine = table_engine({(): {A: 0.6, B: 0.4}})
    engine.coverage = lambda source, prefix: covered[prefix]
    plain, penalised = (search_one(engine, beam=beam, num_best=beam, beta=beta) for beta in (0.0, 1.0))
    assert [found.ids for found in plain] == [[A], [B]][:beam]
    expected = [([B], 0.4, 0.9), ([A], 0.6, 0.5)] if beam == 2 else [([A], 0.6, 0.5)]  # greedy met nothing else
    assert_same(penalised, [(ids, math.log(p), math.log(p) + math.log(c)) for ids, p, c in expected])


@pytest.mark.parametrize("beam", [1, 2])
def test_a_coverage_penalty_needs_a_system_with_coverage(beam):
    with pytest.raises(CapsNMTError, match=r"coverage_penalty 0.2 needs a system that keeps count"):
        search_one(random_engine(1), beam=beam, beta=0.2)


@pytest.mark.parametrize("beta", [-0.1, math.nan])
def test_a_coverage_penalty_is_never_a_reward(beta):
    with pytest.raises(CapsNMTError, match="must be 0 or more"):
        search_one(random_engine(1), beam=2, beta=beta)
