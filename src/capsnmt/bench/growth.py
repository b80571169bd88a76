"""Longer and longer sources: what a step of the decoder, a whole translation and memory cost."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from capsnmt.bench.build import build_all, work_folder
from capsnmt.bench.measure import in_turn, spread, straight_line
from capsnmt.bench.pool import opened, totals_s, visit
from capsnmt.bench.report import BenchReport, Claim, machine_now, quiet_note, ratio, spread_ms
from capsnmt.bench.requests import GrowthRequest
from capsnmt.bench.sentences import made_sentence
from capsnmt.bench.systems import chosen_systems
from capsnmt.bench.worker import Worker

_LOG = logging.getLogger(__name__)

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
    "peak_mb": "peak MB",
}
WANTED: tuple[tuple[str, Literal[">=", "<="], float], ...] = (
    ("step_longest_over_shortest_source", "<=", 1.1),
    ("step_slowest_over_fastest", "<=", 1.1),
    ("total_r_squared", ">=", 0.99),
)

Calls = Sequence[Mapping[str, float | None]]


def run(request: GrowthRequest) -> BenchReport:
    """Lengths ascend, so that a process's peak memory is that of the length it has just done."""
    systems, notes = chosen_systems(request.systems, DEFAULT)
    machine = machine_now()
    rows: list[dict[str, Any]] = []
    with work_folder(request.work) as work:
        folders = build_all(systems, request, work)
        with opened(systems, folders, threads=request.threads) as workers:
            for length in request.lengths:
                _LOG.info("source length %d", length)
                found = _measured(workers, length, request)
                rows += [
                    {"name": name, "system": systems[name].label, "source_length": length, **figures}
                    for name, figures in found.items()
                ]
    rows.sort(key=lambda row: list(systems).index(row["name"]))
    figures = growth_figures(rows)
    if request.max_target < request.lengths[-1]:
        notes.append(f"translations are capped at {request.max_target} tokens, so totals are no straight line")
    return BenchReport(
        kind="growth",
        title=f"growth, batch 1, beam {request.beam}, {request.threads} threads, width {request.width}, int8",
        settings=request.settings(),
        columns=COLUMNS,
        groups=("system",),
        rows=rows,
        claims=claims(figures),
        figures=figures,
        notes=notes + quiet_note(machine),
        machine=machine,
    )


def _measured(workers: Mapping[str, Worker], length: int, request: GrowthRequest) -> dict[str, dict[str, Any]]:
    sources = [made_sentence(length, request.vocabulary)]
    target = min(length, request.max_target)

    def visits(target_length: int) -> dict[str, list[Calls]]:
        asked = {
            name: visit(worker, sources, beam=request.beam, target_length=target_length, calls=1)
            for name, worker in workers.items()
        }
        return in_turn(asked, repeats=request.repeats, pause_s=request.pause_s)

    short, long, whole = visits(1), visits(request.steps + 1), visits(target)
    figures: dict[str, dict[str, Any]] = {}
    for name, worker in workers.items():
        figures[name] = {
            **spread_ms(spread(seconds_per_step(short[name], long[name], request.steps)), "step_"),
            "target_length": target,
            **spread_ms(spread(totals_s(whole[name]))),
            "peak_mb": round(worker.peak_mb(), 1),
        }
    return figures


def seconds_per_step(short: Sequence[Calls], long: Sequence[Calls], steps: int) -> list[float]:
    """Of the decoder alone, one figure for each visit.

    Where the encoder has a clock of its own (ours), what is left of the long translations; where it has none, what
    `steps` more steps add to a translation of one step.
    """
    own = [
        (float(call["total_s"] or 0.0) - float(call["encode_s"])) / (steps + 1)
        for calls in long
        for call in calls
        if call["encode_s"] is not None
    ]
    return own or [(more - one) / steps for more, one in zip(totals_s(long), totals_s(short), strict=True)]


def growth_figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Of each system: how flat its steps are, how straight its totals, and how memory grows."""
    found: dict[str, dict[str, float | None]] = {}
    for name in dict.fromkeys(str(row["name"]) for row in rows):
        own = [row for row in rows if row["name"] == name]
        steps = [float(row["step_median_ms"]) for row in own]
        line = straight_line([row["source_length"] for row in own], [row["median_ms"] for row in own])
        found[name] = {
            "step_longest_over_shortest_source": ratio(steps[-1], steps[0]),
            "step_slowest_over_fastest": ratio(max(steps), min(steps)),
            "total_r_squared": round(line.r_squared, 6),
            "total_ms_per_token": round(line.slope, 5),
            "memory_growth_mb": round(own[-1]["peak_mb"] - own[0]["peak_mb"], 1),
        }
    return found


def claims(figures: Mapping[str, Mapping[str, float | None]]) -> list[Claim]:
    """What is wanted of the systems whose decoder reads a memory of constant size."""
    found = []
    for name in (name for name in figures if name.startswith("capsnmt")):
        for key, relation, wanted in WANTED:
            value = figures[name][key]
            if value is not None:
                found.append(Claim(f"{name}: {key.replace('_', ' ')}", value, relation, wanted))
    return found
