"""A cold `echo hi | capsnmt translate MODEL`: time to the translation, time to the end, resident memory."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from capsnmt.bench.measure import in_turn, spread
from capsnmt.bench.report import BenchReport, machine_now, quiet_note, ratio, spread_ms
from capsnmt.bench.requests import StartRequest
from capsnmt.bench.worker import peak_resident_mb
from capsnmt.errors import CapsNMTError
from capsnmt.zoo import model_folder

COLUMNS = {
    "what": "process",
    "median_ms": "ms to the answer",
    "min_ms": "min",
    "max_ms": "max",
    "end_median_ms": "ms to the end",
    "peak_mb": "peak MB",
    "times_the_first": "× first row",
}
# What a process costs that does nothing but answer, and one that has loaded what any model of ours needs.
BARE = "import sys; print(sys.stdin.readline(), end='', flush=True); sys.stdin.read()"
RUNTIME = f"import numpy, onnxruntime, sentencepiece; {BARE}"


class Start(NamedTuple):
    """One life of a process."""

    answer_s: float
    end_s: float
    peak_mb: float


def run(request: StartRequest) -> BenchReport:
    """Starts each process in turn, the bare interpreter among them."""
    machine = machine_now()
    commands: dict[str, list[str]] = {
        "bare interpreter": ["-c", BARE],
        "NumPy, ONNX Runtime, SentencePiece": ["-c", RUNTIME],
    }
    for name, model in zip(model_names(request.models), map(model_folder, request.models), strict=True):
        if not model.is_dir():
            raise CapsNMTError(f"--model {model}: there is no such folder")
        commands[f"capsnmt translate {name}"] = ["-m", "capsnmt", "translate", str(model)]
    visits: dict[str, Callable[[], Start]] = {
        what: partial(one_start, command, request.line) for what, command in commands.items()
    }
    in_turn(visits, repeats=1)  # files are read once, so that all starts find them in memory
    found = in_turn(visits, repeats=request.repeats, pause_s=request.pause_s)
    return BenchReport(
        kind="start",
        title=f"start, median of {request.repeats}",
        settings=request.settings(),
        columns=COLUMNS,
        rows=_rows(found),
        notes=quiet_note(machine),
        machine=machine,
    )


def one_start(arguments: Sequence[str], line: str) -> Start:
    """Starts Python, gives it a line, waits for one. The input stays open so long that its memory can be read."""
    start_s = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended; why, is what it wrote
            process.stdin.write(line.encode() + b"\n")
            process.stdin.flush()
        answer = process.stdout.readline()
        answer_s = time.perf_counter() - start_s
        if not answer:
            problem = process.stderr.read().decode(errors="replace").strip()
            raise CapsNMTError(f"bench start: {' '.join(arguments)} gave no answer: {problem}")
        peak_mb = peak_resident_mb(process.pid)
        closed_s = time.perf_counter()
        process.stdin.close()
        process.wait()
        end_s = answer_s + time.perf_counter() - closed_s
    return Start(answer_s, end_s, peak_mb)


def _rows(found: dict[str, list[Start]]) -> list[dict[str, Any]]:
    first = spread([start.answer_s for start in next(iter(found.values()))]).median
    rows = []
    for what, starts in found.items():
        answer, end = spread([start.answer_s for start in starts]), spread([start.end_s for start in starts])
        memory = spread([start.peak_mb for start in starts])
        rows.append(
            {
                "what": what,
                **spread_ms(answer),
                **spread_ms(end, "end_"),
                "peak_mb": round(memory.median, 1),
                "times_the_first": ratio(answer.median, first),
            }
        )
    return rows


def model_names(models: Sequence[Path]) -> list[str]:
    """Names that tell folders apart."""
    names = [model.name for model in models]
    return [str(model) if names.count(model.name) > 1 else model.name for model in models]
