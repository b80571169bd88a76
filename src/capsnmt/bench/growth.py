"""Longer and longer sources: what a step of the decoder, a whole translation and memory cost."""

from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from capsnmt.bench.build import build_all, work_folder
from capsnmt.bench.measure import in_turn, spread, straight_line
from capsnmt.bench.pool import opened, totals_s, visit
from capsnmt.bench.report import BenchReport, Claim, machine_now, quiet_note, ratio, spread_ms
from capsnmt.bench.requests import GrowthRequest
from capsnmt.bench.sentences import RealText, Tokens, token_notes, tokens_of
from capsnmt.bench.systems import chosen_systems
from capsnmt.bench.worker import Worker

_LOG = logging.getLogger(__name__)

# A processor that wakes from a pause is slow for the first tens of milliseconds, which are all of a short translation
# and a small part of a long one: without this, 128 tokens took as long as 256 (docs/BENCHMARKS.md).
WARM_S = 0.15
DEFAULT = ("capsnmt", "capsnmt-attention", "transformer", "ct2-6+6")
COLUMNS = {
    "source_length": "source tokens",
    "step_median_ms": "ms/step",
    "step_min_ms": "min",
    "step_max_ms": "max",
    "target_length": "target tokens",
    "median_ms": "total ms",
    "min_ms": "min",
    "max_ms": "max",
    "from_fixed_ms": "from the fixed source, ms",
    "peak_mb": "peak MB",
}
WANTED: tuple[tuple[str, Literal[">=", "<="], float], ...] = (
    ("step_longest_over_shortest_source", "<=", 1.1),
    ("step_slowest_over_fastest", "<=", 1.1),
    ("total_r_squared", ">=", 0.99),
)

Call = Mapping[str, float | None]


def run(request: GrowthRequest) -> BenchReport:
    """Memory first, while lengths ascend: a process's peak is then that of the length it has just done.

    The clocks come after, with systems *and lengths* in turn, because the lengths are what is compared.
    """
    systems, notes = chosen_systems(request.systems, DEFAULT)
    machine = machine_now()
    with work_folder(request.work) as work:
        text = None if request.source is None else RealText(request.source, work)
        tokens = tokens_of(systems, request.vocabulary, text)
        notes += token_notes(systems, tokens, text)
        folders = build_all(systems, request, work)
        with opened(systems, folders, threads=request.threads) as workers:
            peaks_mb = _peaks_mb(workers, tokens, request)
            keys = [(name, length) for name in systems for length in request.lengths]
            _LOG.info("whole translations")
            totals = in_turn(
                {key: _total_visit(workers[key[0]], tokens[key[0]], key[1], request) for key in keys},
                repeats=request.repeats,
                pause_s=request.pause_s,
            )
            from_fixed: dict[tuple[str, int], list[float]] = {}
            if request.fixed_source is not None:
                _LOG.info("translations of a source of %d tokens", request.fixed_source)
                from_fixed = in_turn(
                    {
                        key: _total_visit(workers[key[0]], tokens[key[0]], request.fixed_source, request, key[1])
                        for key in keys
                    },
                    repeats=request.repeats,
                    pause_s=request.pause_s,
                )
            _LOG.info("steps")
            steps = in_turn(
                {key: _step_visit(workers[key[0]], tokens[key[0]], key[1], request) for key in keys},
                repeats=request.step_repeats,
                pause_s=request.pause_s,
            )
    found = _Passes(steps, totals, from_fixed, peaks_mb)
    rows = [found.row(name, systems[name].label, length, request.max_target) for name, length in keys]
    figures = growth_figures(rows)
    for name, own in tokens.items():
        figures[name]["tokens_per_subword"] = own.per_subword
    if request.max_target < request.lengths[-1]:
        notes.append(f"translations are capped at {request.max_target} tokens, so totals are no straight line")
    return BenchReport(
        kind="growth",
        title=f"growth, batch 1, beam {request.beam}, {request.threads} threads, width {request.width}, int8",
        settings=request.settings(),
        columns={key: heading for key, heading in COLUMNS.items() if from_fixed or key != "from_fixed_ms"},
        groups=("system",),
        rows=rows,
        claims=claims(figures),
        figures=figures,
        notes=notes + quiet_note(machine),
        machine=machine,
    )


class _Passes(NamedTuple):
    """Seconds of every pass, and the largest memory, of systems and lengths."""

    steps: dict[tuple[str, int], list[float]]
    totals: dict[tuple[str, int], list[float]]
    from_fixed: dict[tuple[str, int], list[float]]  # empty if nobody asked
    peaks_mb: dict[tuple[str, int], float]

    def row(self, name: str, label: str, length: int, max_target: int) -> dict[str, Any]:
        """Of the report."""
        key = name, length
        fixed_s = self.from_fixed.get(key)
        return {
            "name": name,
            "system": label,
            "source_length": length,
            **spread_ms(spread(self.steps[key]), "step_"),
            "step_times_ms": _in_ms(self.steps[key]),
            "target_length": min(length, max_target),
            **spread_ms(spread(self.totals[key])),
            "times_ms": _in_ms(self.totals[key]),
            "from_fixed_ms": spread_ms(spread(fixed_s))["median_ms"] if fixed_s else None,
            "from_fixed_times_ms": _in_ms(fixed_s) if fixed_s else None,
            "peak_mb": self.peaks_mb[key],
        }


def _peaks_mb(
    workers: Mapping[str, Worker], tokens: Mapping[str, Tokens], request: GrowthRequest
) -> dict[tuple[str, int], float]:
    found = {}
    for length in request.lengths:
        _LOG.info("memory, source length %d", length)
        for name, worker in workers.items():
            _total_visit(worker, tokens[name], length, request)()
            found[name, length] = round(worker.peak_mb(), 1)
    return found


def _total_visit(
    worker: Worker, tokens: Tokens, length: int, request: GrowthRequest, target_length: int | None = None
) -> Callable[[], float]:
    """Of one translation, once the processor is awake."""
    target = tokens.count(min(target_length or length, request.max_target))
    sources = [tokens.made(length)]
    asked = visit(worker, sources, beam=request.beam, target_length=target, warm=0, warm_s=WARM_S, calls=1)
    return lambda: totals_s([asked()])[0]


def _step_visit(worker: Worker, tokens: Tokens, length: int, request: GrowthRequest) -> Callable[[], float]:
    sources = [tokens.made(length)]
    asked = visit(worker, sources, beam=request.beam, target_length=request.steps + 1, warm=0, warm_s=WARM_S, calls=1)
    one_step = visit(worker, sources, beam=request.beam, target_length=1, warm=0, calls=1)

    def seconds() -> float:
        call = asked()[0]
        return seconds_per_step(call, one_step()[0] if call["encode_s"] is None else None, request.steps)

    return seconds


def seconds_per_step(call: Call, one_step: Call | None, steps: int) -> float:
    """Of the decoder alone, from a translation of `steps` + 1 tokens.

    Where the encoder has a clock of its own (ours), what that leaves of it; where it has none, what it takes longer
    than a translation of one step.
    """
    total_s = float(call["total_s"] or 0.0)
    if one_step is None:
        return (total_s - float(call["encode_s"] or 0.0)) / (steps + 1)
    return (total_s - float(one_step["total_s"] or 0.0)) / steps


def _in_ms(passes_s: Sequence[float]) -> list[float]:
    """Of every pass, in their order."""
    return [round(each * 1e3, 4) for each in passes_s]


def growth_figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Of each system: how flat its steps are, how straight its totals, and how memory grows.

    Two lengths are compared pass by pass, for they follow each other at once: a shared processor changes its speed by a
    third for seconds at a time, and medians of different passes would show that as growth.
    """
    found: dict[str, dict[str, float | None]] = {}
    for name in dict.fromkeys(str(row["name"]) for row in rows):
        own = [row for row in rows if row["name"] == name]
        steps = [float(row["step_median_ms"]) for row in own]
        line = straight_line([row["source_length"] for row in own], [row["median_ms"] for row in own])
        found[name] = {
            "step_longest_over_shortest_source": _growth(own[0], own[-1], "step_times_ms"),
            "step_slowest_over_fastest": ratio(max(steps), min(steps)),
            "total_r_squared": round(line.r_squared, 6),
            "total_ms_per_token": round(line.slope, 5),
            "total_exponent": _exponent(own, "times_ms"),
            "target_exponent": _exponent(own, "from_fixed_times_ms"),
            "memory_growth_mb": round(own[-1]["peak_mb"] - own[0]["peak_mb"], 1),
        }
    return found


def _growth(shorter: Mapping[str, Any], longer: Mapping[str, Any], key: str) -> float | None:
    """How many times as long the longer takes: the median over passes."""
    if not shorter.get(key) or not longer.get(key):
        return None
    factors: list[float] = [after / before for before, after in zip(shorter[key], longer[key], strict=True)]
    return round(statistics.median(factors), 4)


def _exponent(rows: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """e of time ~ lengthᵉ between the last two lengths, where constant costs weigh least: 1 is linear, 2 quadratic."""
    before, last = rows[-2], rows[-1]
    factor = _growth(before, last, key)
    if factor is None:
        return None
    lengths: float = last["source_length"] / before["source_length"]
    return round(math.log(factor) / math.log(lengths), 3)


def claims(figures: Mapping[str, Mapping[str, float | None]]) -> list[Claim]:
    """What is wanted of the systems whose decoder reads a memory of constant size."""
    found = []
    for name in (name for name in figures if name.startswith("capsnmt")):
        for key, relation, wanted in WANTED:
            value = figures[name][key]
            if value is not None:
                found.append(Claim(f"{name}: {key.replace('_', ' ')}", value, relation, wanted))
    return found
