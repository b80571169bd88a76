"""The results of a suite as tables: mean and spread over seeds, differences with their significance."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from capsnmt.analysis.records import read_record
from capsnmt.analysis.runs import Run
from capsnmt.evaluation.significance import Gain, paired_gain


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over seeds."""

    mean: float
    deviation: float | None  # None for one seed
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of one value or more."""
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if self.deviation is None else f"{self.mean:.2f} ± {self.deviation:.2f}"


@dataclass(frozen=True)
class RowResult:
    """One row of a suite over its seeds."""

    row: str
    runs: list[dict[str, Any]]  # records as `suite` wrote them, by seed

    @property
    def seeds(self) -> set[int]:
        """Of its runs."""
        return {run["seed"] for run in self.runs}

    def of_seeds(self, seeds: Collection[int]) -> RowResult:
        """The same row with these seeds alone."""
        return RowResult(self.row, [run for run in self.runs if run["seed"] in seeds])

    def scores(self, name: str) -> list[float]:
        """One score of every seed, such as BLEU or chrF2 on the test set."""
        return [_named(run["evaluation"]["scores"], name)["value"] for run in self.runs]

    def cell(self, name: str) -> str:
        """A score for a table: mean and deviation over seeds, or of one seed its 95 % bootstrap interval."""
        confidence = _named(self.runs[0]["evaluation"]["scores"], name).get("confidence")
        if len(self.runs) > 1 or not confidence:
            return str(self.spread(name))
        return f"{self.scores(name)[0]:.2f} [{confidence[0]:.1f}, {confidence[1]:.1f}]"

    def greedy(self) -> Spread | None:
        """BLEU with beam 1; None of an outside system."""
        found = [_named(run["greedy"], "BLEU")["value"] for run in self.runs if run.get("greedy")]
        return Spread.of(found) if found else None

    @property
    def origin(self) -> str | None:
        """Where an outside system's translations come from; None for what was trained here."""
        origin: str | None = self.runs[0]["evaluation"].get("origin")
        return origin

    def spread(self, name: str) -> Spread:
        """Of a test-set score, or of `perplexity` on the validation set."""
        if name == "perplexity":
            return Spread.of([run["valid"]["perplexity"] for run in self.runs])
        return Spread.of(self.scores(name))


def _named(scores: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(score for score in scores if score["name"] == name)


def collect(runs: Sequence[Run]) -> dict[str, RowResult]:
    """The results that exist, by row."""
    found: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        if run.is_done:
            found.setdefault(run.row, []).append(read_record(run.record))
    return {row: RowResult(row, sorted(results, key=lambda r: r["seed"])) for row, results in found.items()}


FEWEST_SENTENCES = 20  # two sentences have three resamples, and any p


@dataclass(frozen=True)
class Difference:
    """Row a minus row b in BLEU."""

    a: str
    b: str
    seeds: tuple[int, ...]  # that both have
    all_seeds: bool  # and neither has more
    gain: Gain  # in the mean over them

    def __str__(self) -> str:
        low, high = self.gain.confidence
        seeds = f", {len(self.seeds)} seeds" if len(self.seeds) > 1 else ""
        if not self.all_seeds:
            seeds = f", seed{'s' if len(self.seeds) > 1 else ''} {', '.join(map(str, self.seeds))}"
        return f"{self.gain.mean:+.2f} [{low:+.2f}, {high:+.2f}] (p = {self.gain.p_value:.3f}{seeds})"


def compare(a: RowResult, b: RowResult, *, longer_than: int = 0, num_samples: int = 1000) -> Difference | None:
    """Compares two rows on the seeds that both have, sentence by sentence, of more than so many source words.

    None where there is nothing to compare: no seed in common, references of their own, or too few such sentences for
    a bootstrap to mean anything.
    """
    seeds = tuple(sorted(a.seeds & b.seeds))
    pairs = [[_of_seed(row, seed)["sentences"] for seed in seeds] for row in (a, b)]
    if len({sentences["references"] for sentences in pairs[0] + pairs[1]}) != 1:
        return None
    chosen = np.array(pairs[0][0]["source_words"]) > (longer_than or -1)
    if chosen.sum() < FEWEST_SENTENCES:
        return None
    counts = [[np.array(sentences["bleu"])[chosen] for sentences in row] for row in pairs]
    all_seeds = a.seeds == b.seeds
    return Difference(a.row, b.row, seeds, all_seeds, paired_gain(*counts, num_samples=num_samples))


def _of_seed(row: RowResult, seed: int) -> dict[str, Any]:
    return next(run for run in row.runs if run["seed"] == seed)
