"""Engines whose probabilities are written down: what the search does with them can be computed by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache

import numpy as np

from capsnmt.decoding.engine import Candidates
from capsnmt.text.subwords import BOS, EOS, PAD

A, B, C, D = 4, 5, 6, 7
Ids = tuple[int, ...]
Distribution = Callable[[Ids, Ids], np.ndarray]  # (source, prefix) -> log-probs of the vocabulary


class WrittenEngine:
    """Implements the contract literally and records the rows of every step."""

    def __init__(
        self,
        distribution: Distribution,
        vocabulary_size: int = 8,
        coverage: Callable[[Ids, Ids], float] | None = None,  # of a source by the step after a prefix
    ) -> None:
        self.distribution = distribution
        self.coverage = coverage
        self.vocabulary_size = vocabulary_size
        self.rows_per_step: list[int] = []
        self.batches: list[list[Ids]] = []

    def encode(self, sources: Sequence[Sequence[int]]) -> WrittenSession:
        self.batches.append([tuple(source) for source in sources])
        return WrittenSession(self, self.batches[-1])


class WrittenSession:
    def __init__(self, engine: WrittenEngine, sources: list[Ids]) -> None:
        self.engine = engine
        self.num_sentences = len(sources)
        self.rows: list[tuple[Ids, Ids]] = [(source, ()) for source in sources]
        self.started = False

    def step_all(self, tokens: np.ndarray, origins: np.ndarray) -> np.ndarray:
        assert tokens.shape == origins.shape
        assert len(tokens) > 0, "an empty step is wasted"
        assert self.started or (tokens == BOS).all()
        continued = [self.rows[origin] for origin in origins]
        if self.started:
            continued = [(source, (*prefix, int(t))) for (source, prefix), t in zip(continued, tokens, strict=True)]
        self.rows, self.started = continued, True
        self.engine.rows_per_step.append(len(tokens))
        return np.stack([self.engine.distribution(source, prefix) for source, prefix in self.rows])

    def coverage(self) -> np.ndarray | None:
        covered = self.engine.coverage
        return None if covered is None else np.array([covered(source, prefix) for source, prefix in self.rows])

    def step(self, tokens: np.ndarray, origins: np.ndarray, k: int, forced: np.ndarray | None = None) -> Candidates:
        log_probs = self.step_all(tokens, origins)
        wanted = None if forced is None else log_probs[np.arange(len(tokens)), forced]
        allowed = log_probs.copy()
        allowed[:, [PAD, BOS]] = -np.inf
        ids = np.argsort(-allowed, axis=1, kind="stable")[:, :k]
        return Candidates(log_probs=np.take_along_axis(allowed, ids, axis=1), ids=ids, forced=wanted)


def logs(probabilities: Mapping[int, float], vocabulary_size: int = 8) -> np.ndarray:
    row = np.full(vocabulary_size, -np.inf)
    for token, probability in probabilities.items():
        row[token] = np.log(probability)
    return row


def table_engine(table: Mapping[Ids, Mapping[int, float]]) -> WrittenEngine:
    """Probabilities by prefix, the same for every source; an unlisted prefix ends for certain."""
    return WrittenEngine(lambda source, prefix: logs(table.get(prefix, {EOS: 1.0})))


def random_engine(seed: int, usable: Sequence[int] = (EOS, A, B, C, D), spread: float = 2.0) -> WrittenEngine:
    """Any prefix of any source has its own random distribution over the usable ids."""

    @cache
    def distribution(source: Ids, prefix: Ids) -> np.ndarray:
        logits = np.random.default_rng([seed, *source, 99, *prefix]).normal(scale=spread, size=len(usable))
        row = np.full(8, -np.inf)
        row[list(usable)] = logits - np.log(np.exp(logits).sum())
        return row

    return WrittenEngine(distribution)


def copy_engine(certainty: float = 0.9, vocabulary_size: int = 300) -> WrittenEngine:
    """Says the source again, then ends (the source ends in EOS); the rest of the mass is spread evenly."""

    def distribution(source: Ids, prefix: Ids) -> np.ndarray:
        row = np.full(vocabulary_size, np.log((1.0 - certainty) / (vocabulary_size - 1)))
        row[source[len(prefix)] if len(prefix) < len(source) else EOS] = np.log(certainty)
        return row

    return WrittenEngine(distribution, vocabulary_size)
