"""Beam search over any engine, vectorised over sentences.

The search keeps one flat list of rows, one per live hypothesis of any sentence; the rows of a sentence lie together,
best first. Nothing is padded, so a sentence's result cannot depend on the sentences it shares a batch with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from capsnmt.decoding import penalties
from capsnmt.decoding.engine import Engine, Ints, Session, clean_log_probs
from capsnmt.errors import CapsNMTError
from capsnmt.text.subwords import BOS, EOS, PAD

FREE = -1  # in a table of forced tokens: the model chooses


@dataclass(frozen=True)
class Hypothesis:
    """A finished output."""

    ids: list[int]  # without BOS and </s>; a forced prefix is part of it
    log_prob: float  # sum over all tokens, </s> included
    score: float  # log_prob / length penalty, + coverage


def beam_search(
    engine: Engine,
    sources: Sequence[Sequence[int]],
    *,
    beam: int,
    num_best: int = 1,
    length_penalty: float,
    length_penalty_type: str,
    coverage_penalty: float = 0.0,
    max_lengths: Sequence[int],
    min_length: int = 0,
    prefixes: Sequence[Sequence[int]] | None = None,
) -> list[list[Hypothesis]]:
    """The `num_best` best hypotheses of every sentence, best first; fewer if the beam met fewer.

    `max_lengths` counts </s>, whose real log-probability is paid even where the length forces it. `min_length` is the
    number of tokens before which </s> is impossible unless it is forced.
    """
    check_beam(beam, num_best, length_penalty, length_penalty_type, coverage_penalty)
    if not sources:
        return []
    required = forced_tokens(len(sources), max_lengths, prefixes)  # (sentences, longest)
    by_length = np.arange(1, required.shape[1] + 1, dtype=np.float64)
    penalty = penalties.length_penalty(by_length, length_penalty, length_penalty_type)  # (longest,)
    session = engine.encode(sources)
    if beam == 1:
        greedy = _greedy(session, required, penalty, coverage_penalty, min_length)
        return [[greedy.get(n) or impossible(prefixes[n] if prefixes else ())] for n in range(len(sources))]
    last_penalty = penalty[(required == EOS).argmax(axis=1)]  # (sentences,) at each one's own maximum length
    # Twice the beam, because every live hypothesis proposes </s> at most once: of the best 2 * beam candidates at most
    # `beam` end, and enough are left to keep the beam full.
    width = 2 * beam

    kept: list[list[Hypothesis]] = [[] for _ in sources]
    worst_kept = np.full(len(sources), -np.inf)  # -inf until num_best are kept
    sentences = origins = np.arange(len(sources))  # (rows,)
    tokens = np.full(len(sources), BOS)  # (rows,)
    log_probs = np.zeros(len(sources))  # (rows,)
    history = np.empty((len(sources), 0), dtype=np.int64)  # (rows, position)

    for position in range(required.shape[1]):
        may_end = position >= min_length
        ids, step_log_probs = _candidates(session, tokens, origins, width, required[sentences, position], may_end)
        totals = log_probs[:, None] + step_log_probs  # (rows, k)
        rows, columns = _best_per_sentence(totals, sentences, width)
        ids, totals = ids[rows, columns], totals[rows, columns]  # (candidates,)

        ends = ids == EOS
        coverage = _coverage(session, coverage_penalty, sentences)
        for row, log_prob in zip(rows[ends], totals[ends].tolist(), strict=True):
            sentence, score = sentences[row], log_prob / float(penalty[position]) + float(coverage[row])
            if score > worst_kept[sentence]:  # strictly: of equals, the one that ended first stays
                _keep(kept[sentence], Hypothesis(history[row].tolist(), log_prob, score), num_best)
                worst_kept[sentence] = kept[sentence][-1].score if len(kept[sentence]) == num_best else -np.inf

        lives = np.flatnonzero(~ends)
        lives = lives[_rank_in_group(sentences[rows[lives]]) < beam]
        # Exact early stopping: log-probs only fall and the penalty only grows, so the best that a live hypothesis can
        # reach is its log-prob now over the penalty of the maximum length, with all of the source covered. Dropping the
        # hopeless ones one by one is exact too: what they could push out of the beam is less probable still, so it is
        # hopeless as well.
        owner = sentences[rows[lives]]
        lives = lives[totals[lives] / last_penalty[owner] > worst_kept[owner]]

        origins, tokens, log_probs = rows[lives], ids[lives], totals[lives]
        if not len(origins):
            break
        sentences = sentences[origins]
        history = np.concatenate([history[origins], tokens[:, None]], axis=1)

    # A model that finds everything impossible still owes an answer.
    nothing = prefixes if prefixes is not None else [[] for _ in sources]
    return [found or [impossible(prefix)] for found, prefix in zip(kept, nothing, strict=True)]


def _coverage(session: Session, coverage_penalty: float, rows: Ints) -> npt.NDArray[np.float64]:
    """What coverage adds to the score of each row if it ends now: 0 or less."""
    if coverage_penalty == 0.0:
        return np.zeros(len(rows))
    found = session.coverage()
    if found is None:
        raise CapsNMTError(
            f"coverage_penalty {coverage_penalty} needs a system that keeps count of its attention, such as gnmt; "
            "set decoding.coverage_penalty: 0"
        )
    return coverage_penalty * np.minimum(found.astype(np.float64), 0.0)


def _greedy(
    session: Session, required: Ints, penalty: npt.NDArray[np.float64], coverage_penalty: float, min_length: int
) -> dict[int, Hypothesis]:
    """A beam of one, the short way: what does not win is forgotten. No entry for a sentence without a possible end."""
    found: dict[int, Hypothesis] = {}
    written: list[list[int]] = [[] for _ in required]
    sentences = origins = np.arange(len(required))  # (rows,)
    tokens, totals = np.full(len(required), BOS), np.zeros(len(required))
    for position in range(required.shape[1]):
        may_end = position >= min_length
        ids, log_probs = _candidates(session, tokens, origins, 1, required[sentences, position], may_end)
        best = log_probs.argmax(axis=1)  # the first column, unless that is a </s> which may not be
        tokens, totals = ids[np.arange(len(ids)), best], totals + log_probs.max(axis=1)
        coverage = _coverage(session, coverage_penalty, sentences)
        lives = (tokens != EOS) & (totals > -np.inf)
        for row, (sentence, token) in enumerate(zip(sentences.tolist(), tokens.tolist(), strict=True)):
            if lives[row]:
                written[sentence].append(token)
            elif totals[row] > -np.inf:
                total = float(totals[row])
                score = total / float(penalty[position]) + float(coverage[row])
                found[sentence] = Hypothesis(written[sentence], total, score)
        origins = np.flatnonzero(lives)
        if not len(origins):
            break
        sentences, tokens, totals = sentences[origins], tokens[origins], totals[origins]
    return found


def forced_tokens(num_sentences: int, max_lengths: Sequence[int], prefixes: Sequence[Sequence[int]] | None) -> Ints:
    """The token that each sentence must take at each position, (sentences, longest), or FREE.

    A prefix and the </s> at the maximum length are the same thing to a search: a position without a choice. A prefix
    that leaves no room for </s> raises the maximum length.
    """
    prefixes = prefixes if prefixes is not None else [()] * num_sentences
    if len(max_lengths) != num_sentences or len(prefixes) != num_sentences:
        raise CapsNMTError(
            f"{num_sentences} sources with {len(max_lengths)} max_lengths and {len(prefixes)} prefixes; "
            "give one of each per source"
        )
    if min(max_lengths) < 1:
        raise CapsNMTError(f"max length {min(max_lengths)} must be 1 or more; it counts </s>")
    lengths = [max(length, len(prefix) + 1) for length, prefix in zip(max_lengths, prefixes, strict=True)]
    required = np.full((num_sentences, max(lengths)), FREE, dtype=np.int64)
    for row, length, prefix in zip(required, lengths, prefixes, strict=True):
        if not {PAD, BOS, EOS}.isdisjoint(prefix):
            raise CapsNMTError(f"the prefix {list(prefix)} holds a special id; leave out <pad>, <s> and </s>")
        row[: len(prefix)] = prefix
        row[length - 1] = EOS
    return required


def impossible(prefix: Sequence[int]) -> Hypothesis:
    """Stands in for a sentence (or a sample) without any possible output: empty, or no more than what was forced."""
    return Hypothesis(list(prefix), -np.inf, -np.inf)


def check_beam(
    beam: int, num_best: int, length_penalty: float, length_penalty_type: str, coverage_penalty: float
) -> None:
    """Refuses settings that have no meaning."""
    if beam < 1:
        raise CapsNMTError(f"beam {beam} must be 1 or more")
    if not 1 <= num_best <= beam:
        raise CapsNMTError(f"num_best {num_best} must lie between 1 and the beam ({beam}); widen the beam")
    penalties.length_penalty(1.0, length_penalty, length_penalty_type)  # which checks both
    if not coverage_penalty >= 0.0:  # also refuses NaN; the early stopping relies on it
        raise CapsNMTError(f"coverage_penalty {coverage_penalty} must be 0 or more; 0 turns it off")


def _candidates(
    session: Session, tokens: Ints, origins: Ints, width: int, required: Ints, may_end: bool
) -> tuple[Ints, npt.NDArray[np.float64]]:
    """Ids and log-probs of the next tokens, (rows, k); a row with a required token has that one alone.

    Where it may not end, </s> is impossible unless it is required, and one more candidate takes its place.
    """
    if may_end:
        return _next_tokens(session, tokens, origins, width, required)
    ids, log_probs = _next_tokens(session, tokens, origins, width + 1, required)
    return ids, np.where((ids == EOS) & (required == FREE)[:, None], -np.inf, log_probs)


def _next_tokens(
    session: Session, tokens: Ints, origins: Ints, width: int, required: Ints
) -> tuple[Ints, npt.NDArray[np.float64]]:
    forced = required != FREE
    if not forced.any():
        found = session.step(tokens, origins, width)
        return found.ids, clean_log_probs(found.log_probs)
    k = 1 if forced.all() else width
    found = session.step(tokens, origins, k, forced=np.where(forced, required, EOS))
    if found.forced is None:
        raise RuntimeError("the engine left out the log-probs of the forced tokens")
    ids, log_probs = found.ids.copy(), clean_log_probs(found.log_probs)
    ids[forced, 0] = required[forced]
    log_probs[forced] = -np.inf
    log_probs[forced, 0] = clean_log_probs(found.forced)[forced]
    return ids, log_probs


def _best_per_sentence(totals: npt.NDArray[np.float64], sentences: Ints, width: int) -> tuple[Ints, Ints]:
    """Rows and columns of the `width` best possible candidates of each sentence, best first, sentence by sentence.

    Both sorts are stable: of equals, the one of the better parent comes first, then the engine's own order decides.
    """
    rows, columns = np.nonzero(totals > -np.inf)
    order = np.lexsort((-totals[rows, columns], sentences[rows]))
    rows, columns = rows[order], columns[order]
    best = _rank_in_group(sentences[rows]) < width
    return rows[best], columns[best]


def _rank_in_group(groups: Ints) -> Ints:
    """[4, 4, 4, 7, 7] → [0, 1, 2, 0, 1]: each one's place among its equals, which lie together."""
    return np.arange(len(groups)) - np.searchsorted(groups, groups)


def _keep(kept: list[Hypothesis], new: Hypothesis, num_best: int) -> None:
    kept.append(new)
    kept.sort(key=lambda hypothesis: -hypothesis.score)
    del kept[num_best:]
