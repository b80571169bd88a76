"""Several models as one: the search sees the mean of their probabilities, and no difference to a single model.

Any mix of systems and engines, as long as their ids mean the same. Means are of whole distributions, so that no model's
k best words hide what the others think of the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from capsnmt.decoding.engine import Candidates, Engine, Floats, Ints, Session, clean_log_probs
from capsnmt.errors import CapsNMTError
from capsnmt.text.subwords import BOS, PAD


class EnsembleEngine:
    """An engine made of others. Each model keeps a memory and a state of its own."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        sizes = [engine.vocabulary_size for engine in engines]
        if len(set(sizes)) != 1:
            raise CapsNMTError(f"an ensemble needs models of one vocabulary, but these have {sizes} target words")
        self.engines = tuple(engines)
        self.vocabulary_size = sizes[0]

    def encode(self, sources: Sequence[Sequence[int]]) -> EnsembleSession:
        """Runs every encoder once."""
        return EnsembleSession([engine.encode(sources) for engine in self.engines])


class EnsembleSession:
    """One batch, decoded by all models in step: they are given the same tokens and the same origins."""

    def __init__(self, sessions: Sequence[Session]) -> None:
        self.num_sentences = sessions[0].num_sentences
        self._sessions = sessions

    def step(self, tokens: Ints, origins: Ints, k: int, forced: Ints | None = None) -> Candidates:
        """The k best continuations of each row by the mean, and the mean's log-probs of the `forced` ids."""
        log_probs = self.step_all(tokens, origins)
        forced_log_probs = None if forced is None else log_probs[np.arange(len(forced)), forced]
        log_probs[:, [PAD, BOS]] = -np.inf
        ids = best_ids(log_probs, min(k, log_probs.shape[1]))
        return Candidates(np.take_along_axis(log_probs, ids, axis=1), ids, forced_log_probs)

    def step_all(self, tokens: Ints, origins: Ints) -> Floats:
        """Log of the models' mean probability of each word, (rows, vocabulary).

        NaN stays NaN in a sum, so what one model has no number for is impossible in the end, as it is with that model
        alone. Taken for probability 0, a broken model would lower the scores of the others and nobody would see it.
        """
        total = self._sessions[0].step_all(tokens, origins).astype(np.float64)
        for session in self._sessions[1:]:
            log_probs = session.step_all(tokens, origins)
            with np.errstate(invalid="ignore"):  # which is said of a NaN
                np.logaddexp(total, log_probs, out=total)
        return clean_log_probs(total - np.log(len(self._sessions)))

    def coverage(self) -> Floats | None:
        """The mean of the models that have one."""
        found = [coverage for session in self._sessions if (coverage := session.coverage()) is not None]
        return np.mean(found, axis=0) if found else None


def best_ids(log_probs: Floats, k: int) -> Ints:
    """The k best columns of each row, best first; of equals, the smaller id first."""
    found = np.sort(np.argpartition(-log_probs, k - 1, axis=1)[:, :k], axis=1)
    order = np.argsort(-np.take_along_axis(log_probs, found, axis=1), axis=1, kind="stable")
    return np.take_along_axis(found, order, axis=1)
