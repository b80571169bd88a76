"""Many real sentences: sentences per second, each system with its best batch, and its memory."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from capsnmt.bench.build import build_all, work_folder
from capsnmt.bench.measure import in_turn, spread
from capsnmt.bench.pool import opened, totals_s, visit
from capsnmt.bench.report import BenchReport, Claim, machine_now, quiet_note, ratio
from capsnmt.bench.requests import ThroughputRequest
from capsnmt.bench.sentences import RealText, token_notes, tokens_of
from capsnmt.bench.systems import BenchSystem, chosen_systems

Sentences = Mapping[str, Sequence[Sequence[int]]]  # by system, each in its own tokens

_LOG = logging.getLogger(__name__)

DEFAULT = ("capsnmt", "capsnmt-attention", "transformer", "ct2-6+6", "ct2-6+2", "ct2-12+1")
COLUMNS = {
    "system": "system",
    "batch": "best batch",
    "sentences_per_s": "sentences/s",
    "min_sentences_per_s": "min",
    "max_sentences_per_s": "max",
    "tokens_per_s": "target tokens/s",
    "times_the_first": "× first row",
    "peak_mb": "peak MB",
}


def run(request: ThroughputRequest) -> BenchReport:
    """Chooses each system's batch size on a part of the sentences, then measures all of them in fresh processes."""
    systems, notes = chosen_systems(request.systems, DEFAULT)
    machine = machine_now()
    rows: list[dict[str, Any]] = []
    with work_folder(request.work) as work:
        text = RealText(request.source, work)
        tokens = tokens_of(systems, request.vocabulary, text)
        notes += token_notes(systems, tokens, text)
        # Alike lengths share a batch, for all systems.
        sentences = {name: sorted(text.sentences(request.sentences, own), key=len) for name, own in tokens.items()}
        first = next(iter(sentences.values()))
        folders = build_all(systems, request, work)
        for beam in request.beams:
            batches = _best_batches(systems, folders, sentences, beam, request)
            rows += _rows(systems, folders, sentences, beam, batches, request)
    return BenchReport(
        kind="throughput",
        title=f"throughput, {len(first)} sentences, {request.threads} threads, width {request.width}, int8",
        settings=request.settings() | {"sentences_measured": len(first), "source_tokens": sum(map(len, first))},
        columns=COLUMNS,
        groups=("beam",),
        rows=rows,
        claims=claims(rows),
        notes=notes + quiet_note(machine),
        machine=machine,
    )


def _best_batches(
    systems: Mapping[str, BenchSystem],
    folders: Mapping[str, Path],
    sentences: Sentences,
    beam: int,
    request: ThroughputRequest,
) -> dict[str, int]:
    """System → the batch size with which a probe of the sentences takes the least time."""
    probes = {name: own[:: max(1, len(own) // request.probe)][: request.probe] for name, own in sentences.items()}
    seconds: dict[str, dict[int, float]] = {name: {} for name in systems}
    with opened(systems, folders, threads=request.threads) as workers:
        for batch in request.batches:
            visits = {
                name: visit(worker, probes[name], beam=beam, batch=batch, calls=1) for name, worker in workers.items()
            }
            for name, found in in_turn(visits, repeats=1, pause_s=request.pause_s).items():
                seconds[name][batch] = totals_s(found)[0]
    best = {name: min(times, key=times.__getitem__) for name, times in seconds.items()}
    _LOG.info("beam %d: best batches %s", beam, ", ".join(f"{name} {batch}" for name, batch in best.items()))
    return best


def _rows(
    systems: Mapping[str, BenchSystem],
    folders: Mapping[str, Path],
    sentences: Sentences,
    beam: int,
    batches: Mapping[str, int],
    request: ThroughputRequest,
) -> list[dict[str, Any]]:
    with opened(systems, folders, threads=request.threads) as workers:
        visits = {}
        for name, worker in workers.items():
            worker.ask("time", sources=sentences[name][: batches[name]], beam=beam, batch=batches[name], warm=0)
            visits[name] = visit(worker, sentences[name], beam=beam, batch=batches[name], warm=0, calls=1)
        found = in_turn(visits, repeats=request.repeats, pause_s=request.pause_s)
        peaks = {name: worker.peak_mb() for name, worker in workers.items()}
    rates = {
        name: spread([len(sentences[name]) / total_s for total_s in totals_s(calls)]) for name, calls in found.items()
    }
    first = next(iter(rates.values())).median
    return [
        {
            "beam": beam,
            "name": name,
            "system": systems[name].label,
            "batch": batches[name],
            "sentences_per_s": round(rate.median, 3),
            "min_sentences_per_s": round(rate.min, 3),
            "max_sentences_per_s": round(rate.max, 3),
            "tokens_per_s": round(
                rate.median * target_tokens(sentences[name], batches[name]) / len(sentences[name]), 1
            ),
            "times_the_first": ratio(rate.median, first),
            "peak_mb": round(peaks[name], 1),
        }
        for name, rate in rates.items()
    ]


def target_tokens(sentences: Sequence[Sequence[int]], batch: int) -> int:
    """Every sentence of a batch is decoded to the length of the batch's longest source."""
    batches = [sentences[start : start + batch] for start in range(0, len(sentences), batch)]
    return sum(len(each) * max(map(len, each)) for each in batches)


def claims(rows: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """CapsNMT against CTranslate2's Transformer base: more sentences in less memory."""
    by_name = {(row["name"], row["beam"]): row for row in rows}
    found = []
    for (name, beam), peer in by_name.items():
        own = by_name.get(("capsnmt", beam))
        if name != "ct2-6+6" or own is None:
            continue
        faster = round(own["sentences_per_s"] / peer["sentences_per_s"], 4)
        smaller = round(own["peak_mb"] / peer["peak_mb"], 4)
        found.append(Claim(f"sentences/s, capsnmt ÷ {name}, beam {beam}", faster, ">=", 1.0))
        found.append(Claim(f"peak memory, capsnmt ÷ {name}, beam {beam}", smaller, "<=", 1.0))
    return found
