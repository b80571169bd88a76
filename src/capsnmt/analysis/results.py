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
from capsnmt.errors import CapsNMTError
from capsnmt.evaluation.significance import paired_bootstrap


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
        return [
            next(score["value"] for score in run["evaluation"]["scores"] if score["name"] == name) for run in self.runs
        ]

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
    by_seed: list[float]
    p_value: float  # paired bootstrap over the outputs of all common seeds together

    def __str__(self) -> str:
        seeds = ", ".join(f"{value:+.1f}" for value in self.by_seed)
        return (
            f"{self.a} − {self.b}: {statistics.fmean(self.by_seed):+.2f} BLEU (by seed {seeds}; p = {self.p_value:.3f})"
        )


def compare(a: str, b: str, runs: Sequence[Run], *, data: str | None = None, num_samples: int = 1000) -> Difference:
    """Compares two rows on the seeds that both have, sentence by sentence."""
    done = {(run.row, run.seed): run for run in runs if run.result.exists()}
    seeds = sorted({seed for row, seed in done if row == a} & {seed for row, seed in done if row == b})
    if not seeds:
        raise CapsNMTError(f"the rows {a} and {b} have no finished seed in common")
    outputs: dict[str, list[str]] = {a: [], b: []}
    references: list[str] = []
    by_seed = []
    for seed in seeds:
        config = done[a, seed].config(data)
        assert config.data.test is not None
        references += read_lines(files_of(config.data.test, config.data.root)[1])
        for row in (a, b):
            outputs[row] += read_lines(done[row, seed].translations)
        by_seed.append(_bleu(done[a, seed].result) - _bleu(done[b, seed].result))
    tested = paired_bootstrap(references, outputs[b], {a: outputs[a]}, baseline_name=b, num_samples=num_samples)
    p_value = next(score.p_value for score in tested if score.system == a and score.score.name == "BLEU")
    return Difference(a, b, by_seed, 1.0 if p_value is None else p_value)


def _bleu(result: Path) -> float:
    scores = json.loads(result.read_text(encoding="utf-8"))["evaluation"]["scores"]
    return float(next(score["value"] for score in scores if score["name"] == "BLEU"))
