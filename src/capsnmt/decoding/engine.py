"""The contract between the search and whatever runs a model: torch in training, ONNX Runtime afterwards.

The vocabulary-wide softmax and the top-k stay inside the engine, so that the search moves k numbers per hypothesis
instead of a whole vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Candidates:
    """The best next tokens of every hypothesis."""

    log_probs: Floats  # (rows, k), best first
    ids: Ints  # (rows, k)
    forced: Floats | None = None  # (rows,) log-probs of the `forced` ids, when asked for


class Session(Protocol):
    """One batch of sentences being decoded. Memory is kept once per sentence, state once per hypothesis.

    `tokens` (rows,) is the previous token of every hypothesis, BOS at first. `origins` (rows,) is, at the first step,
    the index of the sentence each row belongs to; at later steps, the row of the previous step that it continues. So
    reordering a beam, dropping finished hypotheses and growing a beam are all the same gather.
    """

    num_sentences: int

    def step(self, tokens: Ints, origins: Ints, k: int, forced: Ints | None = None) -> Candidates:
        """The k best next tokens of every row, never PAD or BOS; all of the vocabulary if k is larger."""
        ...

    def step_all(self, tokens: Ints, origins: Ints) -> Floats:
        """Log-probs of the whole vocabulary, (rows, vocabulary): for sampling and ensembles."""
        ...

    def coverage(self) -> Floats | None:
        """`penalties.log_coverage` of each row after the last step, (rows,); None: the system keeps no coverage."""
        ...


class Engine(Protocol):
    """A loaded model."""

    vocabulary_size: int

    def encode(self, sources: Sequence[Sequence[int]]) -> Session:
        """Runs the encoder once over a batch of source ids."""
        ...


def clean_log_probs(log_probs: Floats) -> npt.NDArray[np.float64]:
    """An engine's log-probs as float64, in [-inf, 0].

    A NaN must not win a comparison, so it counts as impossible; and rounding in a float32 softmax can give 1e-7, which
    would break the bound of the exact early stopping. Sums are kept in float64 so that they do not depend on k.
    """
    exact = log_probs.astype(np.float64)
    return np.where(np.isnan(exact), -np.inf, np.minimum(exact, 0.0))
