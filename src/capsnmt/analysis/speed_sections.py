"""The sections of a report that benchmarks fill: what growing sentences cost, and what a test set costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from capsnmt.analysis import speed
from capsnmt.analysis.evidence import Evidence, Figure, Table
from capsnmt.analysis.suite import SectionConfig
from capsnmt.config import NO_SUBWORDS, RunConfig

_BEAMS = (1, 8)  # of latencies
_NOT_TRAINED = "None of its rows was trained here."
_NOT_MEASURED = "Not measured yet: `reproduce --measure` does, on a quiet machine."


def complexity(section: SectionConfig, evidence: Evidence) -> Iterator[str | Table | Figure]:
    """The paper's Time column, measured: what a translation costs as its source, its target or both grow."""
    systems = evidence.trained(section)
    if not systems:
        yield _NOT_TRAINED
        return
    test_set = evidence.test_source(next(iter(systems)))
    kept = evidence.suite.report_folder / "complexity.json"
    found = speed.growth(systems, test_set, kept, measure=evidence.measures)
    if found is None:
        yield _NOT_MEASURED
        return
    first, last = speed.LENGTHS[0], speed.LENGTHS[-1]
    headings = [
        "system",
        f"ms for {speed.FIXED_SOURCE} subwords",
        f"a step with {last} source subwords ÷ with {first}",
        "e of time ~ lengthᵉ: target alone",
        "source and target",
        f"MB more at {last} than at {first}",
    ]
    keys = ("step_longest_over_shortest_source", "target_exponent", "total_exponent")
    cells = [
        [
            evidence.label(row, section),
            f"{own['latency_ms']:.1f}",
            *(f"{own[key]:.2f}" for key in keys),
            f"{own['memory_growth_mb']:.1f}",
        ]
        for row, own in found.rows.items()
    ]
    yield Table(headings, cells)
    yield (
        f"Batch 1, beam 1, two threads, int8 in our runtime, random weights and the vocabulary of each row's recipe; "
        f"exponents between {speed.LENGTHS[-2]} and {last} subwords; {found.machine}."
    )
    for row, counted in _without_subwords(systems).items():
        each = f"{found.rows[row]['tokens_per_subword']:g} for each subword of {test_set.name}"
        label = evidence.label(row, section)
        yield f"{label} has {counted}: {each}, so that its lengths are those of the same sentences."
    yield from found.warnings
    yield f"`{evidence.told(found.command)}`, where ROW.yaml is the recipe of a row with its settings"


def latency(section: SectionConfig, evidence: Evidence) -> Iterator[str | Table | Figure]:
    """The paper's Table 3: milliseconds a sentence, in the mean over a test set, beside the first row."""
    systems = evidence.trained(section)
    if not systems:
        yield _NOT_TRAINED
        return
    test_set = evidence.test_source(next(iter(systems)))
    kept = evidence.suite.report_folder / "latency.json"
    found = speed.latencies(systems, test_set, _BEAMS, kept, measure=evidence.measures)
    if found is None:
        yield _NOT_MEASURED
        return
    first = next(iter(found.rows.values()))
    headings = ["system", *(f"ms a sentence, beam {beam}" for beam in _BEAMS), *(f"faster, beam {b}" for b in _BEAMS)]
    rows = [
        [
            evidence.label(row, section),
            *(f"{value:.1f}" for value in own),
            *(f"{slow / value:.2f} ×" for slow, value in zip(first, own, strict=True)),
        ]
        for row, own in found.rows.items()
    ]
    yield Table(headings, rows)
    yield (
        f"The first {found.num_sentences:,} sentences of {test_set.name} one at a time, {speed.THREADS} threads, int8 "
        f"in our runtime; random weights at the rows' sizes, a translation is as long as its source; {found.machine}."
    )
    for row, counted in _without_subwords(systems).items():
        yield f"The sentences of {evidence.label(row, section)} are in {counted}, those of the others in subwords."
    yield from found.warnings
    yield f"`{evidence.told(found.command)}`, where ROW.yaml is the recipe of a row with its settings"


def _without_subwords(systems: Mapping[str, RunConfig]) -> dict[str, str]:
    """The rows whose recipes have other pieces, and what those are."""
    types = {row: config.text.subwords.type for row, config in systems.items()}
    return {row: NO_SUBWORDS[kind] for row, kind in types.items() if kind in NO_SUBWORDS}
