"""What a report says of a suite's results: one function for each kind of section, each from results to blocks."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from capsnmt.analysis import figures, speed
from capsnmt.analysis.results import RowResult, Spread, collect, compare
from capsnmt.analysis.routing_map import RoutingMap, save_picture
from capsnmt.analysis.suite import Run, SectionConfig, SuiteConfig, expanded, read_metrics, sweep_names
from capsnmt.data.corpus import files_of
from capsnmt.errors import CapsNMTError

_BEAMS = (1, 8)  # of latencies

Route = Callable[[Path, Sequence[str]], list[RoutingMap]]


@dataclass(frozen=True)
class Table:
    """Cells as they are shown."""

    headings: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Figure:
    """A picture and what it shows."""

    name: str  # of its file, without ending
    caption: str
    png: bytes


@dataclass
class Section:
    """A title and what stands below it, in order: paragraphs, tables, figures."""

    title: str
    blocks: list[str | Table | Figure] = field(default_factory=list)


@dataclass(frozen=True)
class Evidence:
    """All that sections are made of."""

    suite: SuiteConfig
    runs: Sequence[Run]
    data: str | None
    route: Route  # a model folder and sentences → their routing

    @property
    def results(self) -> dict[str, RowResult]:
        """The finished rows."""
        return collect(self.runs)

    def rows(self, section: SectionConfig) -> dict[str, RowResult]:
        """The finished rows that a section names, in its order; a swept one stands for all of its own."""
        results, wanted = self.results, []
        for name in section.rows or self.suite.rows:
            row = self.suite.rows.get(name)
            wanted += [name] if row is None else sweep_names(name, row)
        return {name: results[name] for name in wanted if name in results}

    def label(self, row: str) -> str:
        """How a row is called in the report."""
        return expanded(self.suite)[row].label or row

    def runs_of(self, row: str) -> list[Run]:
        """Its finished runs."""
        return [run for run in self.runs if run.row == row and run.result.exists()]

    def folders(self, section: SectionConfig) -> dict[str, Path]:
        """A model folder of every finished row that was trained here, in the section's order."""
        rows = [row for row, result in self.rows(section).items() if result.origin is None]
        return {row: self.runs_of(row)[0].folder for row in rows}

    def test_source(self, row: str) -> Path:
        """The source side of the test set that a finished row was evaluated on."""
        data = self.runs_of(row)[0].config(self.data).data
        if data.test is None:
            raise CapsNMTError(f"the recipe of {row} names no test set")
        return files_of(data.test, data.root)[0]


def table(section: SectionConfig, evidence: Evidence) -> Iterator[str | Table | Figure]:
    """Scores over seeds, what they cost, and the difference from one row with its significance."""
    found = evidence.rows(section)
    theirs = any(evidence.suite.rows[r].paper_bleu is not None for r in found if r in evidence.suite.rows)
    headings = [
        "system",
        "seeds",
        "parameters",
        "valid perplexity",
        "BLEU",
        "chrF2",
        "paper's metric",
        "lower-cased",
        "train tokens/s",
    ]
    headings += [f"against {evidence.label(section.against)}"] if section.against else []
    headings += ["the paper's own BLEU (WMT14)"] if theirs else []
    rows = []
    for name, result in found.items():
        cells = [evidence.label(name), *_scores_and_costs(result)]
        if section.against:
            cells.append(_difference(name, section.against, evidence))
        if theirs:
            known = evidence.suite.rows[name].paper_bleu if name in evidence.suite.rows else None
            cells.append("" if known is None else f"{known:.1f} (theirs)")
        rows.append(cells)
    yield Table(headings, rows)
    if len(found) > 1:
        spreads = {evidence.label(name): result.spread("BLEU") for name, result in found.items()}
        values = {name: (spread.mean, spread.deviation) for name, spread in spreads.items()}
        yield Figure("bleu", "Test BLEU, mean and standard deviation over seeds", figures.bars(values, y="BLEU"))
    yield signature_line(found)
    for name, result in found.items():
        if result.origin is not None:
            yield f"{evidence.label(name)} was not trained here: {result.origin}."


def _scores_and_costs(result: RowResult) -> list[str]:
    """Seeds, parameters, perplexity, four scores, speed; of an outside system the scores are all that is known."""
    scores = [str(result.spread(score)) for score in ("BLEU", "chrF2", "paper BLEU", "paper BLEU (lower-cased)")]
    if result.origin is not None:
        return ["–", "–", "–", *scores, "–"]
    speed = statistics.median(run["tokens_per_s"] or 0.0 for run in result.runs)
    size = f"{result.runs[0]['parameters'] / 1e6:.2f}M"
    return [str(len(result.runs)), size, str(result.spread("perplexity")), *scores, f"{speed:,.0f}"]


def _difference(row: str, against: str, evidence: Evidence) -> str:
    if row == against:
        return ""
    common = {run.seed for run in evidence.runs_of(row)} & {run.seed for run in evidence.runs_of(against)}
    if not common:
        return "no seed in common"
    found = compare(row, against, evidence.runs, data=evidence.data)
    return f"{statistics.fmean(found.by_seed):+.2f} (p = {found.p_value:.3f})"


def signature_line(found: dict[str, RowResult]) -> str:
    """Without their signatures scores mean nothing."""
    signatures = {
        f"{score['name']}: `{score['signature']}`"
        for result in found.values()
        for run in result.runs
        for score in run["evaluation"]["scores"]
        if score.get("signature")
    }
    return "Signatures: " + "; ".join(sorted(signatures))


def sweep(section: SectionConfig, evidence: Evidence) -> Iterator[str | Table | Figure]:
    """A swept row: its first key along the axis, a line for each value of the second."""
    (name,) = section.rows
    keys = list(evidence.suite.rows[name].over.items())
    (x_key, x_values), others = keys[0], (keys[1] if len(keys) > 1 else ("", [None]))
    found = evidence.rows(section)
    ordered = sweep_names(name, evidence.suite.rows[name])
    headings = [f"{_last(x_key)}", *(f"{_last(others[0])} = {_plain(value)}" for value in others[1])]
    for score in ("BLEU", "perplexity"):
        lines: dict[str, figures.Curve] = {}
        cells = [[_plain(value)] for value in x_values]
        for column, other in enumerate(others[1]):
            points = []
            for place in range(len(x_values)):
                result = found.get(ordered[place * len(others[1]) + column])
                spread = None if result is None else result.spread(score)
                cells[place].append("" if spread is None else str(spread))
                points += [] if spread is None else [(float(place), spread)]
            if points:
                label = f"{_last(others[0])} = {_plain(other)}" if others[0] else score
                lines[label] = _curve(points)
        yield f"**{'Test BLEU' if score == 'BLEU' else 'Validation perplexity'}**"
        yield Table(headings if others[0] else [_last(x_key), score], cells)
        if lines:
            picture = figures.curves(lines, x=_last(x_key), y=score, labels=[_plain(value) for value in x_values])
            yield Figure(f"{name}-{score.lower()}", f"{score} by {_last(x_key)}", picture)
    yield signature_line(found)


def _curve(points: list[tuple[float, Spread]]) -> figures.Curve:
    places, spreads = zip(*points, strict=True)
    return list(places), [s.mean for s in spreads], [s.deviation or 0.0 for s in spreads]


def _last(key: str) -> str:
    return key.rpartition(".")[2]


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def by_length(section: SectionConfig, evidence: Evidence) -> Iterator[str | Table | Figure]:
    """BLEU of test sentences in bins of their length, mean over seeds."""
    found = evidence.rows(section)
    lines: dict[str, figures.Curve] = {}
    bins: list[str] = []
    rows = []
    for name, result in found.items():
        tables = [run["evaluation"]["in_bins"] for run in result.runs]
        bins = [str(bin_["label"]) for bin_ in tables[0]]
        spreads = [
            Spread.of(values) if (values := [t[n]["bleu"]["value"] for t in tables if t[n]["bleu"]]) else None
            for n in range(len(bins))
        ]
        rows.append([evidence.label(name), *("" if spread is None else str(spread) for spread in spreads)])
        points = [(float(n), spread) for n, spread in enumerate(spreads) if spread is not None]
        if points:
            lines[evidence.label(name)] = _curve(points)
    yield Table(["system", *bins], rows)
    if lines:
        yield Figure(
            "by-length", "BLEU by source words", figures.curves(lines, x="source words", y="BLEU", labels=bins)
        )


def training(section: SectionConfig, evidence: Evidence) -> Iterator[str | Table | Figure]:
    """What was logged on the way, one plot a value: valid.perplexity, routing.entropy_3, gradients.encoder."""
    for value in section.values:
        kind, _, name = value.partition(".")
        lines: dict[str, figures.Curve] = {}
        for row, result in evidence.rows(section).items():
            if result.origin is not None:
                continue
            run = evidence.runs_of(row)[0]
            records = [r for r in read_metrics(run.folder) if r["kind"] == kind and r.get(name) is not None]
            if records:
                lines[evidence.label(row)] = [r["step"] for r in records], [r[name] for r in records], None
        if lines:
            yield Figure(value.replace(".", "-"), f"{value} over updates", figures.curves(lines, x="update", y=value))


def routing(section: SectionConfig, evidence: Evidence) -> Iterator[str | Table | Figure]:
    """Which capsule takes which word, and how the coefficients sharpen over the iterations."""
    for row in evidence.rows(section):
        maps = evidence.route(evidence.runs_of(row)[0].folder, section.sentences)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "routing.png"
            save_picture(maps, path)
            yield Figure(f"routing-{row}", f"Routing of {evidence.label(row)}", path.read_bytes())
        entropies = [found.entropy() for found in maps]
        means = [statistics.fmean(values) for values in zip(*entropies, strict=True)]
        told = ", ".join(f"{mean:.2f}" for mean in means)
        yield f"Mean entropy of a word's coefficients by iteration (1 = even, 0 = one capsule): {told}."


def complexity(section: SectionConfig, evidence: Evidence) -> Iterator[str | Table | Figure]:
    """The paper's Time column, measured: what a translation costs as its source, its target or both grow."""
    found = speed.growth(evidence.folders(section), Path(evidence.suite.output) / "complexity.json")
    first, last = speed.LENGTHS[0], speed.LENGTHS[-1]
    headings = [
        "system",
        f"ms for {speed.FIXED_SOURCE} tokens",
        f"a step with {last} source tokens ÷ with {first}",
        "e of time ~ lengthᵉ: target alone",
        "source and target",
        f"MB more at {last} than at {first}",
    ]
    keys = ("step_longest_over_shortest_source", "target_exponent", "total_exponent")
    cells = [
        [
            evidence.label(row),
            f"{own['latency_ms']:.1f}",
            *(f"{own[key]:.2f}" for key in keys),
            f"{own['memory_growth_mb']:.1f}",
        ]
        for row, own in found.rows.items()
    ]
    yield Table(headings, cells)
    yield f"Batch 1, beam 1, two threads, int8 in our runtime; exponents between {speed.LENGTHS[-2]} and {last} tokens."
    yield f"`{found.command}`"


def latency(section: SectionConfig, evidence: Evidence) -> Iterator[str | Table | Figure]:
    """The paper's Table 3: milliseconds a sentence, in the mean over a test set, beside the first row."""
    folders = evidence.folders(section)
    test_set = evidence.test_source(next(iter(folders)))
    found = speed.latencies(folders, test_set, _BEAMS, Path(evidence.suite.output) / "latency.json")
    first = next(iter(found.rows.values()))
    headings = ["system", *(f"ms a sentence, beam {beam}" for beam in _BEAMS), *(f"faster, beam {b}" for b in _BEAMS)]
    rows = [
        [
            evidence.label(row),
            *(f"{value:.1f}" for value in own),
            *(f"{slow / value:.2f} ×" for slow, value in zip(first, own, strict=True)),
        ]
        for row, own in found.rows.items()
    ]
    yield Table(headings, rows)
    yield (
        f"Sentences of {test_set.name} one at a time, {speed.THREADS} threads, int8 in our runtime; "
        "random weights at the rows' sizes, a translation is as long as its source."
    )
    yield f"`{found.command}`"


SECTIONS: dict[str, Callable[[SectionConfig, Evidence], Iterator[str | Table | Figure]]] = {
    "table": table,
    "sweep": sweep,
    "by_length": by_length,
    "training": training,
    "routing": routing,
    "complexity": complexity,
    "latency": latency,
}
