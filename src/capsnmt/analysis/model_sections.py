"""The sections of a report that look into the models: how they learnt, and which capsule takes which word."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from capsnmt.analysis import figures
from capsnmt.analysis.evidence import Evidence, Figure, Table
from capsnmt.analysis.records import curve, fingerprint, logged_values
from capsnmt.analysis.results import RowResult, Spread
from capsnmt.analysis.routing_map import RoutingMap, save_picture
from capsnmt.analysis.runs import Run
from capsnmt.analysis.suite import SectionConfig
from capsnmt.folder import WEIGHTS


def training(section: SectionConfig, evidence: Evidence) -> Iterator[str | Table | Figure]:
    """What was logged on the way, one plot a value: valid.perplexity, routing.entropy_3, gradients.encoder."""
    found = evidence.rows(section)
    several = ", the first seed of each row" if any(len(result.runs) > 1 for result in found.values()) else ""
    for value in section.values:
        kind, _, name = value.partition(".")
        lines: list[tuple[str, figures.Curve]] = []
        for row, result in found.items():
            if points := curve(result.runs[0], kind, name):
                steps, values = zip(*points, strict=True)
                lines.append((evidence.label(row, section), (steps, values, None)))
        if lines:
            picture = figures.curves(lines, x="update", y=value)
            yield Figure(value.replace(".", "-"), f"{value} over updates{several}", picture)
        else:
            logged = sorted({name for result in found.values() for name in logged_values(result.runs[0])})
            yield f"**None of the rows logged `{value}`**; logged were {', '.join(logged) or 'no values'}."


def routing(section: SectionConfig, evidence: Evidence) -> Iterator[str | Table | Figure]:
    """Which capsule takes which word, how the coefficients sharpen over the iterations, and who is used."""
    found = {name: result for name, result in evidence.rows(section).items() if result.runs[0].get("routing")}
    iterations = max((_iterations(result) for result in found.values()), default=0)
    headings = ["system", *(f"entropy, iteration {t}" for t in range(1, iterations + 1)), "capsules used", "largest"]
    keys = [*(f"entropy_{t}" for t in range(1, iterations + 1)), "used", "largest"]
    rows = [
        [evidence.label(name, section), *(_routing_cell(result, key) for key in keys)] for name, result in found.items()
    ]
    yield Table(headings, rows)
    yield (
        "Validation sentences, short to long, at the end of training. Entropy of a word's coefficients, 1 = even, "
        "0 = one capsule; used: exp of the entropy of the mean coefficients; largest: the share of the busiest capsule."
    )
    for row in found if section.sentences else ():
        label = evidence.label(row, section)
        pictured = _pictured(row, section.sentences, evidence)
        if pictured is None:
            yield f"The model of {label} is not here, so there is no picture of its routing."
            continue
        seed, maps = pictured
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "routing.png"
            save_picture(maps, path)
            caption = f"Routing of {label}, row {row}, seed {seed}{_among(seed, found[row])}"
            yield Figure(f"routing-{row}", caption, path.read_bytes())


def _among(seed: int, result: RowResult) -> str:
    """Which seed a picture is of, among the others."""
    typical, *others = [run["seed"] for run in _from_the_median(result)]
    if not others:
        return ""
    seeds = ", ".join(map(str, sorted(result.seeds - {seed})))
    absent = f"as the model of the median, seed {typical}, is not here"
    return f", {'which has the median entropy' if seed == typical else absent}; other seeds: {seeds}"


def _from_the_median(result: RowResult) -> list[dict[str, Any]]:
    """Its runs, that of the median entropy first: one seed may be a training that failed to route."""
    entropies = {run["seed"]: run["routing"][f"entropy_{_iterations(result)}"] for run in result.runs}
    median = statistics.median_low(entropies.values())
    return sorted(result.runs, key=lambda run: abs(entropies[run["seed"]] - median))


def _pictured(row: str, sentences: list[str], evidence: Evidence) -> tuple[int, list[RoutingMap]] | None:
    """The seed and the routing of sentences by one of the row's models: the most typical that is here or was."""
    runs = {run.seed: run for run in evidence.runs if run.row == row and run.is_done}
    for record in _from_the_median(evidence.results[row]):
        if maps := _maps(runs[record["seed"]], fingerprint(record["settings"]), sentences, evidence):
            return record["seed"], maps
    return None


def _maps(run: Run, settings: str, sentences: list[str], evidence: Evidence) -> list[RoutingMap]:
    """The routing of sentences by a run's model, kept beside the report for when the model is gone; else nothing."""
    kept = evidence.suite.report_folder / f"routing-{run.row}.json"
    if (run.folder / WEIGHTS).exists():
        maps = evidence.route(run.folder, sentences)
        found = {"of": settings, "seed": run.seed, "sentences": sentences, "maps": [each.to_dict() for each in maps]}
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(found, ensure_ascii=False) + "\n", encoding="utf-8")
        return maps
    if not kept.exists():
        return []
    found = json.loads(kept.read_text(encoding="utf-8"))
    if (found.get("of"), found["sentences"]) != (settings, sentences):
        return []
    return [RoutingMap.of(each) for each in found["maps"]]


def _iterations(result: RowResult) -> int:
    return sum(1 for key in result.runs[0]["routing"] if key.startswith("entropy_"))


def _routing_cell(result: RowResult, key: str) -> str:
    values = [run["routing"][key] for run in result.runs if key in run["routing"]]
    return str(Spread.of(values)) if values else ""
