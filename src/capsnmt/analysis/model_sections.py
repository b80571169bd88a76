"""The sections of a report that look into the models: how they learnt, and which capsule takes which word."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from capsnmt.analysis import figures
from capsnmt.analysis.evidence import Evidence, Figure, Table
from capsnmt.analysis.records import curve, fingerprint, read_record
from capsnmt.analysis.results import RowResult, Spread
from capsnmt.analysis.routing_map import RoutingMap, save_picture
from capsnmt.analysis.suite import SectionConfig
from capsnmt.folder import WEIGHTS


def training(section: SectionConfig, evidence: Evidence) -> Iterator[str | Table | Figure]:
    """What was logged on the way, one plot a value: valid.perplexity, routing.entropy_3, gradients.encoder."""
    for value in section.values:
        kind, _, name = value.partition(".")
        lines: dict[str, figures.Curve] = {}
        for row, result in evidence.rows(section).items():
            if points := curve(result.runs[0], kind, name):
                steps, values = zip(*points, strict=True)
                lines[evidence.label(row)] = steps, values, None
        if lines:
            yield Figure(value.replace(".", "-"), f"{value} over updates", figures.curves(lines, x="update", y=value))


def routing(section: SectionConfig, evidence: Evidence) -> Iterator[str | Table | Figure]:
    """Which capsule takes which word, how the coefficients sharpen over the iterations, and who is used."""
    found = {name: result for name, result in evidence.rows(section).items() if result.runs[0].get("routing")}
    iterations = max((_iterations(result) for result in found.values()), default=0)
    headings = ["system", *(f"entropy, iteration {t}" for t in range(1, iterations + 1)), "capsules used", "largest"]
    keys = [*(f"entropy_{t}" for t in range(1, iterations + 1)), "used", "largest"]
    rows = [[evidence.label(name), *(_routing_cell(result, key) for key in keys)] for name, result in found.items()]
    yield Table(headings, rows)
    yield (
        "Validation sentences, short to long, at the end of training. Entropy of a word's coefficients, 1 = even, "
        "0 = one capsule; used: exp of the entropy of the mean coefficients; largest: the share of the busiest capsule."
    )
    for row in found if section.sentences else ():
        maps = _maps(row, section.sentences, evidence)
        if not maps:
            yield f"The model of {evidence.label(row)} is not here, so there is no picture of its routing."
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "routing.png"
            save_picture(maps, path)
            yield Figure(f"routing-{row}", f"Routing of {evidence.label(row)}", path.read_bytes())


def _maps(row: str, sentences: list[str], evidence: Evidence) -> list[RoutingMap]:
    """The routing of sentences by the row's model, kept beside the report for when the model is gone; else nothing."""
    kept = evidence.suite.report_folder / f"routing-{row}.json"
    run = evidence.first_run(row)
    folder, settings = run.folder, fingerprint(read_record(run.record)["settings"])
    if (folder / WEIGHTS).exists():
        maps = evidence.route(folder, sentences)
        found = {"of": settings, "sentences": sentences, "maps": [each.to_dict() for each in maps]}
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
