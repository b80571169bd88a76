"""Ancestral sampling over any engine that gives whole distributions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from capsnmt.decoding.engine import Engine, Ints, clean_log_probs
from capsnmt.decoding.search import FREE, Hypothesis, forced_tokens, impossible
from capsnmt.errors import CapsNMTError
from capsnmt.text.subwords import BOS, EOS, PAD

Doubles = npt.NDArray[np.float64]


def sample(
    engine: Engine,
    sources: Sequence[Sequence[int]],
    *,
    num_samples: int,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    max_lengths: Sequence[int],
    seed: int,
    prefixes: Sequence[Sequence[int]] | None = None,
    sentence_ids: Sequence[int] | None = None,
) -> list[list[Hypothesis]]:
    """`num_samples` outputs of every sentence, best first; `log_prob` is the model's own, before any reshaping.

    The score is the mean log-probability of a token. A sentence's samples depend on `seed` and its entry in
    `sentence_ids` (its index, if not given), never on the sentences it shares a batch with.
    """
    check_sampling(num_samples=num_samples, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    if not sources:
        return []
    required = forced_tokens(len(sources), max_lengths, prefixes)  # (sentences, longest)
    uniforms = _uniforms(seed, range(len(sources)) if sentence_ids is None else sentence_ids, num_samples, required)
    starts = prefixes if prefixes is not None else [()] * len(sources)
    drawn = [[impossible(start)] * num_samples for start in starts]

    session = engine.encode(sources)
    sentences = origins = np.repeat(np.arange(len(sources)), num_samples)  # (rows,)
    samples = np.tile(np.arange(num_samples), len(sources))  # (rows,)
    tokens = np.full(len(sentences), BOS)
    log_probs = np.zeros(len(sentences))
    history = np.empty((len(sentences), 0), dtype=np.int64)  # (rows, position)

    for position in range(required.shape[1]):
        distribution = clean_log_probs(session.step_all(tokens, origins))  # (rows, vocabulary)
        chosen = required[sentences, position]
        free = chosen == FREE
        probabilities = reshape(distribution[free], temperature=temperature, top_k=top_k, top_p=top_p)
        chosen[free] = _draw(probabilities, uniforms[sentences[free], position, samples[free]])
        log_probs = log_probs + distribution[np.arange(len(chosen)), chosen]

        possible = log_probs > -np.inf
        for row in np.flatnonzero((chosen == EOS) & possible):
            log_prob = float(log_probs[row])
            drawn[sentences[row]][samples[row]] = Hypothesis(history[row].tolist(), log_prob, log_prob / (position + 1))

        origins = np.flatnonzero((chosen != EOS) & possible)
        if not len(origins):
            break
        tokens, log_probs = chosen[origins], log_probs[origins]
        sentences, samples = sentences[origins], samples[origins]
        history = np.concatenate([history[origins], tokens[:, None]], axis=1)
    return [sorted(hypotheses, key=lambda hypothesis: -hypothesis.score) for hypotheses in drawn]


def check_sampling(*, num_samples: int, temperature: float, top_k: int, top_p: float, seed: int) -> None:
    """Refuses settings that have no meaning."""
    if num_samples < 1:
        raise CapsNMTError(f"number of samples {num_samples} must be 1 or more")
    if not 0.0 < temperature < np.inf:
        raise CapsNMTError(f"temperature {temperature} must be above 0; for the most probable tokens take beam 1")
    if top_k < 0:
        raise CapsNMTError(f"top_k {top_k} must be 0 (all tokens) or more")
    if not 0.0 < top_p <= 1.0:
        raise CapsNMTError(f"top_p {top_p} must lie in (0, 1]; 1 allows all tokens")
    if seed < 0:
        raise CapsNMTError(f"seed {seed} must be 0 or more")


def reshape(log_probs: Doubles, *, temperature: float, top_k: int, top_p: float) -> Doubles:
    """Unnormalised probabilities to draw from, (rows, vocabulary): tempered, then cut to top_k, then to top_p.

    Tokens as probable as the last one inside a cut stay in, so that a cut never depends on the order of the ids.
    """
    scaled = log_probs / temperature
    scaled[:, [PAD, BOS]] = -np.inf  # no output holds them
    peak = scaled.max(axis=1, keepdims=True, initial=-np.inf)
    weights: Doubles = np.exp(scaled - np.where(np.isfinite(peak), peak, 0.0))
    if 0 < top_k < weights.shape[1]:
        last_in = np.partition(weights, -top_k, axis=1)[:, [-top_k]]
        weights = np.where(weights >= last_in, weights, 0.0)
    if top_p < 1.0:
        falling = -np.sort(-weights, axis=1)
        mass = falling.cumsum(axis=1)
        # The smallest set of the best tokens that holds top_p of the mass.
        inside = (mass < top_p * mass[:, -1:]).sum(axis=1, keepdims=True)
        weights = np.where(weights >= np.take_along_axis(falling, inside, axis=1), weights, 0.0)
    return weights


def _draw(weights: Doubles, uniforms: Doubles) -> Ints:
    """One id per row, by inverting the cumulative distribution; a row without any mass gives PAD."""
    mass = weights.cumsum(axis=1)
    # Dividing makes the last entry exactly 1, above every uniform; the first entry above it always has mass.
    share = mass / np.where(mass[:, -1:] > 0.0, mass[:, -1:], 1.0)
    chosen: Ints = (share > uniforms[:, None]).argmax(axis=1)
    return chosen


def _uniforms(seed: int, sentence_ids: Sequence[int], num_samples: int, required: Ints) -> Doubles:
    """Random numbers of every sentence from its own stream, (sentences, longest, samples)."""
    # Seeding with the pair keeps sentence 2 of seed 1 apart from sentence 1 of seed 2, which a sum would not. Rows are
    # filled position by position, so a longer company does not change the first positions.
    shape = (required.shape[1], num_samples)
    return np.stack([np.random.default_rng([seed, sentence]).random(shape) for sentence in sentence_ids])
