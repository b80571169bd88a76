"""The results of a suite as tables: mean and spread over seeds, differences with their significance."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capsnmt.analysis.suite import Run
from capsnmt.data.corpus import files_of, read_lines
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
    runs: list[dict[str, Any]]  # results as `suite` wrote them, by seed

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
        if run.result.exists():
            found.setdefault(run.row, []).append(json.loads(run.result.read_text(encoding="utf-8")))
    return {row: RowResult(row, sorted(results, key=lambda r: r["seed"])) for row, results in found.items()}


@dataclass(frozen=True)
class Difference:
    """Row a minus row b in BLEU."""

    a: str
    b: str
    num_seeds: int  # that both have
    gain: Gain  # in the mean over them

    def __str__(self) -> str:
        low, high = self.gain.confidence
        seeds = f", {self.num_seeds} seeds" if self.num_seeds > 1 else ""
        return f"{self.gain.mean:+.2f} [{low:+.2f}, {high:+.2f}] (p = {self.gain.p_value:.3f}{seeds})"


def compare(
    a: str,
    b: str,
    runs: Sequence[Run],
    *,
    data: str | None = None,
    longer_than: int = 0,
    num_samples: int = 1000,
) -> Difference | None:
    """Compares two rows on the seeds that both have, sentence by sentence, of more than so many source words.

    None where there is nothing to compare: no seed in common, references of their own, or no such sentence.
    """
    done = {(run.row, run.seed): run for run in runs if run.result.exists()}
    seeds = sorted({seed for row, seed in done if row == a} & {seed for row, seed in done if row == b})
    files = {_test_files(done[row, seed], data) for row in (a, b) for seed in seeds}
    if len({reference for _, reference in files}) != 1:
        return None
    source, reference = files.pop()
    chosen = [n for n, line in enumerate(read_lines(source)) if len(line.split()) > longer_than or longer_than == 0]
    if not chosen:
        return None
    references = _lines(reference, chosen)
    outputs = {row: [_lines(done[row, seed].translations, chosen) for seed in seeds] for row in (a, b)}
    return Difference(a, b, len(seeds), paired_gain(references, outputs[a], outputs[b], num_samples=num_samples))


def _test_files(run: Run, data: str | None) -> tuple[Path, Path]:
    config = run.config(data)
    assert config.data.test is not None
    source, reference = files_of(config.data.test, config.data.root)
    return source, reference


def _lines(path: Path, chosen: Sequence[int]) -> list[str]:
    lines = list(read_lines(path))
    return [lines[number] for number in chosen]
