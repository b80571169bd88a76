"""How far each stage of a translation is from what the machine allows: achieved ÷ floor."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from capsnmt.bench.build import build_all, build_peaks, work_folder
from capsnmt.bench.floors import ENCODER, Floor, Work, capsnmt_work, floor_of
from capsnmt.bench.measure import in_turn
from capsnmt.bench.pool import load, visit
from capsnmt.bench.report import BenchReport, Claim, machine_now, quiet_note, ratio
from capsnmt.bench.requests import LimitRequest
from capsnmt.bench.sentences import made_sentence
from capsnmt.bench.stages import REST
from capsnmt.bench.systems import BenchSystem, chosen_systems, model_section, vocabulary_sizes
from capsnmt.bench.worker import Worker
from capsnmt.errors import CapsNMTError

_LOG = logging.getLogger(__name__)

DEFAULT = ("capsnmt", "capsnmt-attention")
SEARCH, WHOLE = "search", "whole translation"
PROFILED_CALLS = 5
MOST_RATIO = 2.0
COLUMNS = {
    "stage": "stage",
    "megabytes": "MB read",
    "gb_per_s": "GB/s",
    "bound": "bound by",
    "floor_ms": "floor ms",
    "achieved_ms": "achieved",
    "times_the_floor": "÷ floor",
    "best_ms": "best",
    "best_times_the_floor": "best ÷ floor",
}


def run(request: LimitRequest) -> BenchReport:
    """Measures the machine, then one translation from outside and from inside."""
    systems, notes = chosen_systems(request.systems, DEFAULT)
    for name, system in systems.items():
        if system.model.get("system") != "capsnmt" or system.selection:
            raise CapsNMTError(f"bench limit --systems {name}: floors are known for CapsNMT without selection alone")
    machine = machine_now()
    rows: list[dict[str, Any]] = []
    with work_folder(request.work) as work:
        folders = build_all(systems, request, work)
        with Worker("peaks", threads=request.threads) as worker:
            peaks = {
                name: worker.ask("peak", graph=str(path), threads=request.threads)
                for name, path in build_peaks(work).items()
            }
        for name, system in systems.items():
            for beam in request.beams:
                _LOG.info("%s, beam %d", name, beam)
                rows += _rows(name, system, folders[name], beam, max(peaks.values()), request)
    claims = [
        Claim(f"{row['name']}, beam {row['beam']}: best ÷ floor", row["best_times_the_floor"], "<=", MOST_RATIO)
        for row in rows
        if row["stage"] == WHOLE
    ]
    found = ", ".join(f"{name} {peak / 1e9:.4g}" for name, peak in peaks.items())
    notes.append(f"peak on {request.threads} threads, 10⁹ operations/s: {found}")
    if all(row["achieved_ms"] is None for row in rows if row["stage"] not in (ENCODER, SEARCH, WHOLE)):
        notes.append("ONNX Runtime took no notes of the decoding steps, so their stages cannot be told apart")
    return BenchReport(
        kind="limit",
        title=f"limit, batch 1, {request.length} forced tokens, {request.threads} threads, width {request.width}, int8",
        settings=request.settings() | {"peak_operations_per_s": peaks},
        columns=COLUMNS,
        groups=("system", "beam"),
        rows=rows,
        claims=claims,
        notes=notes + quiet_note(machine),
        machine=machine,
    )


def _rows(
    name: str, system: BenchSystem, folder: Path, beam: int, peak: float, request: LimitRequest
) -> list[dict[str, Any]]:
    source_size, target_size = vocabulary_sizes(system, request.vocabulary)
    source = made_sentence(request.length, source_size)
    model = model_section(system, request.width)
    work = capsnmt_work(
        model,
        vocabulary=target_size,
        source_length=request.length,
        target_length=request.length,
        beam=beam,
    )
    with Worker(name, threads=request.threads) as worker:
        bandwidth = {
            stage: worker.ask("bandwidth", num_bytes=each.buffer_bytes, threads=request.threads)
            for stage, each in work.items()
        }
        load(worker, system, folder, threads=request.threads)
        visits = in_turn({name: visit(worker, [source], beam=beam)}, repeats=request.repeats, pause_s=request.pause_s)
        calls = [call for found in visits[name] for call in found]
        shares = worker.ask(
            "profile",
            folder=str(folder),
            threads=request.threads,
            selection=False,
            source=source,
            target_length=request.length,
            beam=beam,
            calls=PROFILED_CALLS,
        )
    outside = {
        key: statistics.median(float(call[key] or 0.0) for call in calls) for key in ("total_s", "encode_s", "step_s")
    }
    floors = {
        stage: floor_of(each, bytes_per_s=bandwidth[stage], operations_per_s=peak) for stage, each in work.items()
    }
    head = {"name": name, "system": system.label, "beam": beam}
    achieved = achieved_seconds(outside, shares)
    rows = [
        head | _stage_row(stage, work[stage], bandwidth[stage], floors[stage], achieved.get(stage)) for stage in work
    ]
    for stage in (REST, SEARCH):
        rows.append(head | {"stage": stage, "floor_ms": 0.0, "achieved_ms": _ms(achieved.get(stage))})
    floor_s = sum(floor.seconds for floor in floors.values())
    best_s = min(float(call["total_s"] or 0.0) for call in calls)  # bandwidth and peak are the best of rounds, too
    whole = {
        "stage": WHOLE,
        "floor_ms": _ms(floor_s),
        "achieved_ms": _ms(outside["total_s"]),
        "times_the_floor": ratio(outside["total_s"], floor_s),
        "best_ms": _ms(best_s),
        "best_times_the_floor": ratio(best_s, floor_s),
    }
    return [*rows, head | whole]


def achieved_seconds(outside: Mapping[str, float], shares: Mapping[str, float]) -> dict[str, float]:
    """Stage → seconds: the encoder and the search by our own clock, the stages of a step by their share of it.

    The shares come from runs in which ONNX Runtime takes notes, which makes them slower; the time that is shared out
    is that of runs without.
    """
    return {
        ENCODER: outside["encode_s"],
        SEARCH: outside["total_s"] - outside["encode_s"] - outside["step_s"],
        **{stage: share * outside["step_s"] for stage, share in shares.items()},
    }


def _stage_row(stage: str, work: Work, bandwidth: float, floor: Floor, achieved_s: float | None) -> dict[str, Any]:
    return {
        "stage": stage,
        "megabytes": round(work.read_bytes / 1e6, 3),
        "buffer_megabytes": round(work.buffer_bytes / 1e6, 3),
        "gb_per_s": round(bandwidth / 1e9, 3),
        "giga_operations": round(work.operations / 1e9, 4),
        "bound": floor.bound,
        "floor_ms": _ms(floor.seconds),
        "achieved_ms": _ms(achieved_s),
        "times_the_floor": None if achieved_s is None else ratio(achieved_s, floor.seconds),
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1e3 * seconds, 4)
