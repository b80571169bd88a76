"""What a report says of a suite's results: one function for each kind of section, each from results to blocks."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import Any

from capsnmt.analysis import figures, results
from capsnmt.analysis.evidence import Evidence, Figure, Table
from capsnmt.analysis.model_sections import routing, training
from capsnmt.analysis.results import RowResult, Spread, compare
from capsnmt.analysis.speed_sections import complexity, latency
from capsnmt.analysis.suite import SectionConfig, expanded, last_part, sweep_names


def table(section: SectionConfig, evidence: Evidence) -> Iterator[str | Table | Figure]:
    """Scores over seeds, what they cost, and the difference from one row with its significance."""
    found, published = evidence.rows(section), evidence.published(section)
    theirs = {name: row.paper_bleu for name, row in evidence.suite.rows.items() if row.paper_bleu is not None}
    theirs |= section.paper_bleu
    headings = [
        "system",
        "seeds",
        "updates",
        "parameters",
        "valid perplexity",
        "BLEU",
        "BLEU, beam 1",
        "chrF2",
        "paper's metric",
        "lower-cased",
        "train tokens/s",
        "minutes",
    ]
    headings += [f"against {evidence.label(section.against, section)}"] if section.against else []
    has_theirs = bool(theirs.keys() & {*found, *published})
    headings += ["the paper's own BLEU (WMT14)"] if has_theirs else []
    rows = []
    for name in evidence.names(section):
        if name not in found and name not in published:
            continue
        cells = [evidence.label(name, section)]
        cells += _scores_and_costs(found[name]) if name in found else _NOT_MEASURED
        if section.against:
            cells.append(_difference(name, section.against, evidence) if name in found else "–")
        if has_theirs:
            cells.append(f"{theirs[name]:.1f} (theirs)" if name in theirs else "")
        rows.append(cells)
    yield Table(headings, rows)
    yield _budget_line(found)
    if len(found) > 1:
        spreads = [(evidence.label(name, section), result.spread("BLEU")) for name, result in found.items()]
        picture = figures.bars([(label, spread.mean, spread.deviation) for label, spread in spreads], x="BLEU")
        yield Figure("bleu", "Test BLEU, mean and standard deviation over seeds", picture)
    yield signature_line(found)
    for name, result in found.items():
        if result.origin is not None:
            yield f"{evidence.label(name, section)} was not trained here: {result.origin}."
    for row in published.values():
        yield f"{row.label} was not measured here, and is compared with nothing: its figure is {row.origin}."


_NOT_MEASURED = ["–"] * 11  # what `_scores_and_costs` would say of a row that has a published figure only


def _scores_and_costs(result: RowResult) -> list[str]:
    """From seeds to minutes, as the table's headings say; of an outside system the scores are all that is known."""
    others = [str(result.spread(score)) for score in ("chrF2", "paper BLEU", "paper BLEU (lower-cased)")]
    if result.origin is not None:
        return ["–", "–", "–", "–", result.cell("BLEU"), "–", *others, "–", "–"]
    first = result.runs[0]
    speed = statistics.median(run["tokens_per_s"] or 0.0 for run in result.runs)
    minutes = statistics.median(run.get("minutes") or 0.0 for run in result.runs)
    before = [str(len(result.runs)), f"{first['steps']:,}", f"{first['parameters'] / 1e6:.2f}M"]
    scores = [str(result.spread("perplexity")), result.cell("BLEU"), str(result.greedy() or "–"), *others]
    return [*before, *scores, f"{speed:,.0f}", f"{minutes:.0f}"]


def _budget_line(found: dict[str, RowResult]) -> str:
    """What the numbers in the columns of costs and scores mean."""
    runs = [run for result in found.values() for run in result.runs if "threads" in run]
    shares = sorted({(run.get("processes", 1), run["threads"]) for run in runs})
    had = [f"{threads}" if count == 1 else f"{count} processes of {threads}" for count, threads in shares]
    processors = sorted({run.get("processor", "one that was not recorded") for run in runs})
    line = (
        "± is the standard deviation over seeds; brackets are 95 % bootstrap intervals over the test sentences: what "
        "another training would change is not in them, nor in p. Perplexity and tokens are of each system's own "
        f"pieces, subwords, words or characters. A training had {' or '.join(had)} thread(s); minutes "
        f"are its target tokens at its median speed. Processor: {'; '.join(processors)}"
    )
    return line + (", so speeds of different rows cannot be compared." if len(processors) > 1 else ".")


def _difference(row: str, against: str, evidence: Evidence, longer_than: int = 0) -> str:
    if row == against:
        return ""
    rows = evidence.results
    found = compare(rows[row], rows[against], longer_than=longer_than) if against in rows else None
    return "–" if found is None else str(found)


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


def distillation(section: SectionConfig, evidence: Evidence) -> Iterator[str | Table | Figure]:
    """What a teacher's translations give to each student: beside the same system without, and beside the teacher."""
    headings = ["student", "seeds", "beam", "without", "with", "gain", "teacher", "% of the teacher"]
    headings.append("% of the gap closed")
    students = [name for name in evidence.rows(section) if _teacher(name, evidence) is not None]
    yield Table(headings, [cells for name in students for cells in _taught_cells(name, section, evidence)])
    yield (
        "Students stand beside themselves without a teacher, on the seeds that both have; – if there is no such row. "
        "The teacher is the model that taught, of one seed."
    )
    yield signature_line(evidence.rows(section))


def _taught_cells(name: str, section: SectionConfig, evidence: Evidence) -> Iterator[list[str]]:
    """Two rows of the table, by beam."""
    student, teacher, plain = evidence.results[name], _teacher(name, evidence), _undistilled(name, evidence)
    assert teacher is not None
    if plain is not None:
        common = student.seeds & plain.seeds
        student, plain = student.of_seeds(common), plain.of_seeds(common)
    for beam in ("1", "the recipe's"):
        own, best, before = (_by_beam(result, beam) for result in (student, teacher, plain))
        if own is None or best is None:
            continue
        gain = closed = "–"
        if plain is not None and before is not None:
            gain = f"{own.mean - before.mean:+.2f}" if beam == "1" else _difference(name, plain.row, evidence)
            closed = _percent(own.mean - before.mean, best.mean - before.mean)
        scores = [str(before or "–"), str(own), gain, str(best)]
        yield [evidence.label(name, section), str(own.count), beam, *scores, _percent(own.mean, best.mean), closed]


def _by_beam(result: RowResult | None, beam: str) -> Spread | None:
    if result is None:
        return None
    return result.greedy() if beam == "1" else result.spread("BLEU")


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f}" if whole > 0 else "–"


def _teacher(student: str, evidence: Evidence) -> RowResult | None:
    """The finished run that taught it; its row may have more seeds."""
    run = evidence.first_run(student).teacher
    found = None if run is None else evidence.results.get(run.row)
    if run is None or found is None or run.seed not in found.seeds:
        return None
    return found.of_seeds({run.seed})


def _undistilled(student: str, evidence: Evidence) -> RowResult | None:
    """The row that is the student in all but its teacher, if it shares a seed with it."""
    rows = expanded(evidence.suite)
    own = rows[student]
    for name, row in rows.items():
        is_twin = (row.recipe, row.set) == (own.recipe, own.set) and row.distilled_from is None
        found = evidence.results.get(name)
        if is_twin and found is not None and found.origin is None and found.seeds & evidence.results[student].seeds:
            return found
    return None


def sweep(section: SectionConfig, evidence: Evidence) -> Iterator[str | Table | Figure]:
    """Swept rows: the first key of each along the axis, a line for each value of its second, or for the row itself."""
    lines = _in_order([line for name in section.rows for line in _swept_lines(name, section, evidence)])
    x_key = next(iter(evidence.suite.rows[section.rows[0]].over))
    axis = _axis(lines)
    found = {row: result for row, result in evidence.results.items() if any(row in rows.values() for _, rows in lines)}
    for score in ("BLEU", "perplexity"):
        curves: list[tuple[str, figures.Curve]] = []
        cells = [[value] for value in axis]
        for label, rows in lines:
            spreads = [found[rows[value]].spread(score) if rows.get(value) in found else None for value in axis]
            for place, spread in enumerate(spreads):
                cells[place].append("" if spread is None else str(spread))
            points = [(float(place), spread) for place, spread in enumerate(spreads) if spread is not None]
            if points:
                curves.append((label, _curve(points)))
        yield f"**{'Test BLEU' if score == 'BLEU' else 'Validation perplexity'}**"
        yield Table([last_part(x_key), *(label for label, _ in lines)], cells)
        if curves:
            picture = figures.curves(curves, x=last_part(x_key), y=score, labels=axis)
            yield Figure(f"{section.rows[0]}-{score.lower()}", f"{score} by {last_part(x_key)}", picture)
    yield signature_line(found)


def _axis(lines: list[tuple[str, dict[str, str]]]) -> list[str]:
    """The values of all lines, numbers in their order."""
    values = list(dict.fromkeys(value for _, rows in lines for value in rows))
    try:
        return sorted(values, key=float)
    except ValueError:
        return values


def _in_order(lines: list[tuple[str, dict[str, str]]]) -> list[tuple[str, dict[str, str]]]:
    """Lines that are values of one thing, such as `num_capsules = 6`, in the order of numbers; others as they are."""
    names, _, values = zip(*(label.rpartition(" = ") for label, _ in lines), strict=True)
    try:
        places = {label: float(value) for (label, _), value in zip(lines, values, strict=True)}
    except ValueError:
        return lines
    return sorted(lines, key=lambda line: places[line[0]]) if len(set(names)) == 1 else lines


def _swept_lines(name: str, section: SectionConfig, evidence: Evidence) -> list[tuple[str, dict[str, str]]]:
    """The lines of one swept row, each with the row of every value along the axis."""
    row = evidence.suite.rows[name]
    names, (key, values) = sweep_names(name, row), next(iter(row.over.items()))
    along = [_plain(value) for value in values]
    if len(row.over) == 1:
        rows = dict(zip(along, names, strict=True))
        if point := section.points.get(name):
            rows[_plain(evidence.setting(point, key))] = point
        return [(section.labels.get(name) or row.label or name, rows)]
    second, values = list(row.over.items())[1]
    return [
        (f"{last_part(second)} = {_plain(value)}", dict(zip(along, names[n :: len(values)], strict=True)))
        for n, value in enumerate(values)
    ]


def _curve(points: list[tuple[float, Spread]]) -> figures.Curve:
    places, spreads = zip(*points, strict=True)
    return list(places), [s.mean for s in spreads], [s.deviation or 0.0 for s in spreads]


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def by_length(section: SectionConfig, evidence: Evidence) -> Iterator[str | Table | Figure]:
    """BLEU of test sentences by their length: the paper's groups, which hold each other, and bins beside them."""
    found = evidence.rows(section)
    for group, about in (("longer_than", "with more source words than"), ("in_bins", "by source words")):
        lines: list[tuple[str, figures.Curve]] = []
        rows = []
        counts = _groups(found, group)
        shown = [n for n, (_, count) in enumerate(counts) if _are_enough(count)]
        for name, result in found.items():
            groups = [run["evaluation"][group] for run in result.runs]
            scores = {n: [one[n]["bleu"] for one in groups if one[n]["bleu"]] for n in shown}
            label = evidence.label(name, section)
            rows.append([label, *(_length_cell(scores.get(n, [])) for n in range(len(counts)))])
            points = [
                (float(place), Spread.of([bleu["value"] for bleu in scores[n]]))
                for place, n in enumerate(shown)
                if scores[n]
            ]
            if points:
                lines.append((label, _curve(points)))
        yield f"**BLEU of sentences {about}**"
        yield Table(["system", *(f"{label} ({count:,})" for label, count in counts)], rows)
        if lines:
            picture = figures.curves(lines, x="source words", y="BLEU", labels=[counts[n][0] for n in shown])
            yield Figure(f"by-length-{group.replace('_', '-')}", f"BLEU of sentences {about}", picture)
    yield from _few_line([*_groups(found, "longer_than"), *_groups(found, "in_bins")])
    if section.against:
        limits = [int(label.removeprefix("> ")) for label, count in _groups(found, "longer_than") if count]
        rows = [
            [evidence.label(name, section), *(_difference(name, section.against, evidence, limit) for limit in limits)]
            for name in found
            if name != section.against
        ]
        yield f"**BLEU against {evidence.label(section.against, section)}, sentences with more source words than**"
        yield Table(["system", *map(str, limits)], rows)
    yield signature_line(found)


def _groups(found: dict[str, RowResult], kind: str) -> list[tuple[str, int]]:
    """What groups there are, and how many sentences each holds."""
    groups = next(iter(found.values())).runs[0]["evaluation"][kind]
    return [(str(group["label"]), group["count"]) for group in groups]


def _are_enough(count: int) -> bool:
    return count >= results.FEWEST_SENTENCES


def _few_line(groups: list[tuple[str, int]]) -> Iterator[str]:
    """What – means, if there is one."""
    if not all(_are_enough(count) for _, count in groups):
        yield f"– where there are fewer than {results.FEWEST_SENTENCES} sentences: their BLEU would say nothing."


def _length_cell(bleus: list[dict[str, Any]]) -> str:
    """Over seeds as in every table; of one seed with its interval, which is wide where sentences are few."""
    if not bleus:
        return "–"
    if len(bleus) > 1 or not bleus[0].get("confidence"):
        return str(Spread.of([bleu["value"] for bleu in bleus]))
    low, high = bleus[0]["confidence"]
    return f"{bleus[0]['value']:.2f} [{low:.1f}, {high:.1f}]"


def size_by_length(section: SectionConfig, evidence: Evidence) -> Iterator[str | Table | Figure]:
    """How much of something which length needs: a swept row along the axis, a line for each bin of source words."""
    key, values = next(iter(evidence.suite.rows[section.rows[0]].over.items()))
    swept = dict(zip(sweep_names(section.rows[0], evidence.suite.rows[section.rows[0]]), values, strict=True))
    found = {row: result for row, result in evidence.rows(section).items() if row in swept}
    best = evidence.results.get(section.against or "")
    lines: list[tuple[str, figures.Curve]] = []
    rows = []
    for n, (label, count) in enumerate(_groups(found, "in_bins")):
        own = {row: _bin_bleu(result, n) for row, result in found.items()}
        whole = None if best is None else _bin_bleu(best, n)
        cells = ["–" if bleu is None else f"{bleu:.2f}" + _share(bleu, whole) for bleu in own.values()]
        beside = [] if best is None else ["–" if whole is None else f"{whole:.2f}"]
        rows.append([f"{label} ({count:,})", *cells, *beside])
        points = [(place, bleu) for place, bleu in enumerate(own.values()) if bleu is not None]
        if points:
            places, bleus = zip(*points, strict=True)
            shares = [bleu * 100.0 / whole if whole else bleu for bleu in bleus]
            lines.append((f"{label} words", (places, shares, None)))
    sizes = [_plain(swept[row]) for row in found]
    against = "" if best is None or section.against is None else evidence.label(section.against, section)
    headings = ["source words", *(f"{last_part(key)} = {size}" for size in sizes), *([] if best is None else [against])]
    yield Table(headings, rows)
    yield from _few_line(_groups(found, "in_bins"))
    y = f"% of the BLEU of {against}" if against else "BLEU"
    caption = f"BLEU by {last_part(key)}, a line for each length" + (f", in percent of {against}" if against else "")
    yield Figure(f"{section.rows[0]}-by-length", caption, figures.curves(lines, x=last_part(key), y=y, labels=sizes))
    yield signature_line(found)


def _bin_bleu(result: RowResult, n: int) -> float | None:
    """Of the n-th bin, in the mean over seeds; None where it has too few sentences."""
    bins = [run["evaluation"]["in_bins"][n] for run in result.runs]
    enough = all(one["bleu"] and _are_enough(one["count"]) for one in bins)
    return statistics.fmean(one["bleu"]["value"] for one in bins) if enough else None


def _share(part: float, whole: float | None) -> str:
    return f" ({_percent(part, whole)} %)" if whole else ""


SECTIONS: dict[str, Callable[[SectionConfig, Evidence], Iterator[str | Table | Figure]]] = {
    "table": table,
    "sweep": sweep,
    "distillation": distillation,
    "by_length": by_length,
    "size_by_length": size_by_length,
    "training": training,
    "routing": routing,
    "complexity": complexity,
    "latency": latency,
}
