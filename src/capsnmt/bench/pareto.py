"""Quality against latency: every trained model folder that is given, and CTranslate2's form of our Transformers."""

from __future__ import annotations

import itertools
import logging
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from capsnmt.bench.build import build_converted, work_folder
from capsnmt.bench.measure import in_turn, spread
from capsnmt.bench.report import BenchReport, machine_now, quiet_note, ratio, spread_ms
from capsnmt.bench.requests import ParetoRequest
from capsnmt.bench.start import model_names
from capsnmt.bench.systems import PEER_PACKAGE, missing_peer_note
from capsnmt.bench.worker import Worker
from capsnmt.data.corpus import read_lines
from capsnmt.folder import WEIGHTS
from capsnmt.runtime.manifest import read_manifest
from capsnmt.zoo import model_folder

_LOG = logging.getLogger(__name__)

COLUMNS = {
    "system": "system",
    "beam": "beam",
    "bleu": "BLEU",
    "median_ms": "ms/sentence",
    "min_ms": "min",
    "max_ms": "max",
    "times_the_first": "× first row",
    "on_front": "on the front",
    "peak_mb": "peak MB",
}


@dataclass(frozen=True)
class Entrant:
    """A trained model and the runtime that it is run with."""

    folder: Path
    converted: Path | None = None  # CTranslate2's form; None: our own runtime


def run(request: ParetoRequest) -> BenchReport:
    """Translates the test set one sentence at a time; the same passes give BLEU and latency."""
    from capsnmt.evaluation.metrics import require_equal_counts  # brings sacreBLEU, which no other benchmark needs

    machine = machine_now()
    sources, references = (
        list(itertools.islice(read_lines(path), request.sentences)) for path in (request.source, request.reference)
    )
    require_equal_counts({"sources": sources, "references": references})
    rows: list[dict[str, Any]] = []
    with work_folder(request.work) as work:
        entrants, notes = _entrants(request.models, work)
        with _opened(entrants, request.threads) as workers:
            for beam in request.beams:
                _LOG.info("beam %d", beam)
                rows += _rows(workers, sources, references, beam, request)
    mark_front(rows)
    signature = rows[0]["signature"]
    return BenchReport(
        kind="pareto",
        title=f"quality against latency, {len(sources)} sentences, batch 1, {request.threads} threads",
        settings=request.settings() | {"sentences_measured": len(sources), "signature": signature},
        columns=COLUMNS,
        rows=rows,
        notes=[*notes, f"BLEU {signature}", *quiet_note(machine)],
        machine=machine,
    )


def _entrants(models: Sequence[Path], work: Path) -> tuple[dict[str, Entrant], list[str]]:
    entrants: dict[str, Entrant] = {}
    notes: list[str] = []
    peer = find_spec(PEER_PACKAGE) is not None
    for name, folder in zip(model_names(models), map(model_folder, models), strict=True):
        manifest = read_manifest(folder)  # whose error says how to export
        label = f"{name}, {manifest.precision}" + (", selection" if manifest.lexicon is not None else "")
        entrants[label] = Entrant(folder)
        if manifest.system != "transformer":
            continue
        if not peer:
            notes.append(missing_peer_note())
        elif not (folder / WEIGHTS).is_file():
            notes.append(f"{name} has no {WEIGHTS}, so it is not converted to CTranslate2")
        else:
            entrants[f"{name}, CTranslate2 int8"] = Entrant(folder, build_converted(folder, work))
    return entrants, list(dict.fromkeys(notes))


@contextmanager
def _opened(entrants: Mapping[str, Entrant], threads: int) -> Iterator[dict[str, Worker]]:
    with ExitStack() as stack:
        workers = {}
        for name, entrant in entrants.items():
            workers[name] = stack.enter_context(Worker(name, threads=threads))
            workers[name].ask(
                "open_text",
                kind="ours" if entrant.converted is None else "peer",
                folder=str(entrant.folder),
                converted=None if entrant.converted is None else str(entrant.converted),
                threads=threads,
            )
        yield workers


def _rows(
    workers: Mapping[str, Worker], sources: Sequence[str], references: Sequence[str], beam: int, request: ParetoRequest
) -> list[dict[str, Any]]:
    from capsnmt.evaluation.metrics import bleu

    visits = {name: partial(worker.ask, "translate", lines=sources, beam=beam) for name, worker in workers.items()}
    found = in_turn(visits, repeats=request.repeats, pause_s=request.pause_s)
    rows = []
    first = None
    for name, passes in found.items():
        score = bleu(passes[0]["outputs"], references, num_bootstrap=0)
        seconds = spread([statistics.fmean(each["times_s"]) for each in passes])
        first = first or seconds.median
        rows.append(
            {
                "system": name,
                "beam": beam,
                "bleu": round(score.value, 2),
                "signature": score.signature,
                **spread_ms(seconds),
                "times_the_first": ratio(seconds.median, first),
                "peak_mb": round(workers[name].peak_mb(), 1),
            }
        )
    return rows


def mark_front(rows: Sequence[dict[str, Any]]) -> None:
    """A row is on the front if no other is at least as good and as fast, and better in one of the two."""
    for row in rows:
        row["on_front"] = not any(
            other["bleu"] >= row["bleu"]
            and other["median_ms"] <= row["median_ms"]
            and (other["bleu"] > row["bleu"] or other["median_ms"] < row["median_ms"])
            for other in rows
        )
