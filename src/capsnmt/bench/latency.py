"""One sentence at a time: milliseconds from ids to ids, every system in turn."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from capsnmt.bench.build import build_all, work_folder
from capsnmt.bench.measure import in_turn, spread
from capsnmt.bench.pool import opened, totals_s, visit
from capsnmt.bench.report import BenchReport, Claim, machine_now, quiet_note, ratio, spread_ms
from capsnmt.bench.requests import LatencyRequest
from capsnmt.bench.sentences import RealText, token_notes, tokens_of
from capsnmt.bench.systems import SYSTEMS, BenchSystem, chosen_systems
from capsnmt.bench.worker import Worker

_LOG = logging.getLogger(__name__)

FORCED, TEST_SET = "forced", "test set"
Sentences = Mapping[str, Sequence[Sequence[int]]]  # by system, each in its own tokens
COLUMNS = {
    "system": "system",
    "median_ms": "median ms",
    "min_ms": "min",
    "max_ms": "max",
    "times_the_first": "× first row",
}
# (slower, faster, beam) → how many times as fast, at the most threads, whole translations
WANTED = {
    ("ct2-6+6", "capsnmt", 8): 4.0,
    ("ct2-12+1", "capsnmt", 8): 1.5,
    ("ct2-6+6", "capsnmt", 1): 2.5,
    ("ct2-12+1", "capsnmt", 1): 1.5,
    ("capsnmt", "capsnmt-selection", 8): 2.0,
}


def run(request: LatencyRequest) -> BenchReport:
    """Measures all systems at all beams and numbers of threads."""
    systems, notes = chosen_systems(request.systems, tuple(SYSTEMS))
    machine = machine_now()
    rows: list[dict[str, Any]] = []
    with work_folder(request.work) as work:
        text = None if request.source is None else RealText(request.source, work)
        tokens = tokens_of(systems, request.vocabulary, text)
        notes += token_notes(systems, tokens, text)
        forced = {name: [own.made(request.length)] for name, own in tokens.items()}
        test_set: Sentences = {}
        if text is None:
            notes.append("the paper's average over a test set is left out; --source FILE adds it")
        else:
            test_set = {name: text.sentences(request.sentences, own) for name, own in tokens.items()}
        folders = build_all(systems, request, work)
        for threads in request.threads:
            with opened(systems, folders, threads=threads) as workers:
                for beam in request.beams:
                    _LOG.info("%d threads, beam %d", threads, beam)
                    rows += _rows(systems, _forced(workers, forced, beam, request), FORCED, threads, beam)
                    if test_set:
                        rows += _rows(systems, _test_set(workers, test_set, beam, request), TEST_SET, threads, beam)
    return BenchReport(
        kind="latency",
        title=f"latency, batch 1, {request.length} forced tokens, width {request.width}, int8",
        settings=request.settings() | {"sentences_measured": max(map(len, test_set.values()), default=0)},
        columns=COLUMNS,
        groups=("protocol", "threads", "beam"),
        rows=rows,
        claims=claims(rows),
        notes=notes + quiet_note(machine),
        machine=machine,
    )


def _forced(
    workers: Mapping[str, Worker], sources: Sentences, beam: int, request: LatencyRequest
) -> dict[str, list[float]]:
    """System → seconds of each translation."""
    visits = {name: visit(worker, sources[name], beam=beam) for name, worker in workers.items()}
    found = in_turn(visits, repeats=request.repeats, pause_s=request.pause_s)
    return {name: totals_s(calls) for name, calls in found.items()}


def _test_set(
    workers: Mapping[str, Worker], sources: Sentences, beam: int, request: LatencyRequest
) -> dict[str, list[float]]:
    """System → mean seconds a sentence in each pass; a translation is as long as its source."""
    for name, worker in workers.items():
        worker.ask("time", sources=sources[name][:1], beam=beam)
    visits = {name: visit(worker, sources[name], beam=beam, warm=0, calls=1) for name, worker in workers.items()}
    found = in_turn(visits, repeats=request.passes, pause_s=request.pause_s)
    return {name: [total_s / len(sources[name]) for total_s in totals_s(calls)] for name, calls in found.items()}


def _rows(
    systems: Mapping[str, BenchSystem], found: Mapping[str, Sequence[float]], protocol: str, threads: int, beam: int
) -> list[dict[str, Any]]:
    spreads = {name: spread(seconds) for name, seconds in found.items()}
    first = next(iter(spreads.values())).median
    return [
        {
            "protocol": protocol,
            "threads": threads,
            "beam": beam,
            "name": name,
            "system": systems[name].label,
            **spread_ms(each),
            "times_the_first": ratio(each.median, first),
        }
        for name, each in spreads.items()
    ]


def claims(rows: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """What the rows say of the ratios that matter, as far as their systems were measured."""
    found = []
    most = max((int(row["threads"]) for row in rows), default=0)
    for protocol in (FORCED, TEST_SET):
        medians = {
            (row["name"], row["beam"]): float(row["median_ms"])
            for row in rows
            if row["protocol"] == protocol and row["threads"] == most
        }
        for (slower, faster, beam), wanted in WANTED.items():
            if (slower, beam) in medians and medians.get((faster, beam)):
                what = f"{faster} faster than {slower}, beam {beam}, {most} threads, {protocol}"
                value = round(medians[slower, beam] / medians[faster, beam], 4)
                found.append(Claim(what, value, ">=", wanted))
    return found
