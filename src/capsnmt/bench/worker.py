"""A process of its own for each system: its memory can be told, and nobody else's threads are in it.

The parent writes one JSON object per line, the child answers with one. The clock is read in the child, around the work
alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from capsnmt.errors import CapsNMTError

MB = 1e6
WARM_LENGTH = 8  # tokens: a whole translation of the longest sources takes many seconds


class Worker:
    """The parent's end. Use it in a `with`: the process ends with it."""

    def __init__(self, name: str, *, threads: int) -> None:
        self.name = name
        # Libraries that nobody gave a number of threads must not take all cores.
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "capsnmt.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )

    def ask(self, operation: str, **values: Any) -> Any:
        """Sends a request and waits for its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"operation": operation, **values}).encode() + b"\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = b""
        if not answer:
            raise CapsNMTError(
                f"bench: the process of {self.name} ended with code {self._process.wait()} while it did {operation!r}; "
                "is there enough memory? Leave the system out with --systems"
            )
        found = json.loads(answer)
        if "error" in found:
            raise CapsNMTError(f"bench: {self.name}: {found['error']}")
        return found["answer"]

    def peak_mb(self) -> float:
        """The most memory that was ever resident, in MB."""
        return float(self.ask("memory"))

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def peak_resident_mb(pid: int | str = "self") -> float:
    """VmHWM: since the program was loaded. (A child's ru_maxrss would begin with its parent's.)"""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / MB
    raise CapsNMTError(f"bench: /proc/{pid}/status tells no VmHWM; memory is measured on Linux alone")


class Served:
    """The child's end: the operations that a parent may ask for."""

    def __init__(self) -> None:
        self._runner: Any = None
        self._text: Any = None

    def open(self, *, kind: str, folder: str, threads: int, selection: bool) -> None:
        """Loads a system."""
        from capsnmt.bench.runners import RUNNERS

        self._runner = RUNNERS[kind](Path(folder), threads=threads, selection=selection)

    def time(
        self,
        *,
        sources: Sequence[Sequence[int]],
        beam: int,
        target_length: int | None = None,
        batch: int = 1,
        warm: int = 1,
        warm_s: float = 0.0,
        calls: int = 1,
    ) -> list[dict[str, float | None]]:
        """Translates all sources, `calls` times; without a target length a batch is as long as its longest source.

        Before the clock they are translated `warm` times; then their beginnings, until `warm_s` seconds have passed.
        """
        batches = [sources[start : start + batch] for start in range(0, len(sources), batch)]
        work = [(self._runner.prepare(each), target_length or max(len(source) for source in each)) for each in batches]
        for prepared, length in work * warm:
            self._runner.run(prepared, target_length=length, beam=beam)
        begin_s = time.perf_counter()
        while time.perf_counter() - begin_s < warm_s:
            for prepared, length in work:
                self._runner.run(prepared, target_length=min(length, WARM_LENGTH), beam=beam)
        found = []
        for _ in range(calls):
            clock = self._runner.clock
            before = clock.encode_s, clock.step_s
            start_s = time.perf_counter()
            for prepared, length in work:
                self._runner.run(prepared, target_length=length, beam=beam)
            total_s = time.perf_counter() - start_s
            encode_s, step_s = (
                None if now is None else now - then
                for now, then in zip((clock.encode_s, clock.step_s), before, strict=True)
            )
            found.append({"total_s": total_s, "encode_s": encode_s, "step_s": step_s})
        return found

    def open_text(self, *, kind: str, folder: str, converted: str | None, threads: int) -> None:
        """Loads a trained model."""
        from capsnmt.bench.runners import OurText, PeerText

        if kind == "ours":
            self._text = OurText(Path(folder), threads=threads)
        else:
            self._text = PeerText(Path(folder), Path(str(converted)), threads=threads)

    def translate(self, *, lines: Sequence[str], beam: int) -> dict[str, Any]:
        """Translates line by line; the time of each, and what came out."""
        self._text.translate(lines[0], beam)
        outputs, times_s = [], []
        for line in lines:
            start_s = time.perf_counter()
            outputs.append(self._text.translate(line, beam))
            times_s.append(time.perf_counter() - start_s)
        return {"outputs": outputs, "times_s": times_s}

    def bandwidth(self, *, num_bytes: int, threads: int) -> float:
        """Bytes per second that this many threads read from a buffer of this size."""
        from capsnmt.bench.stages import read_bandwidth

        return read_bandwidth(num_bytes, threads)

    def peak(self, *, graph: str, threads: int) -> float:
        """Operations per second of the product in this graph."""
        from capsnmt.bench.stages import peak_operations

        return peak_operations(Path(graph), threads)

    def profile(self, **values: Any) -> dict[str, float]:
        """Shares of a translation's decoding steps, by stage."""
        from capsnmt.bench.stages import profiled_steps

        return profiled_steps(**values)

    def memory(self) -> float:
        """In MB."""
        return peak_resident_mb()


def main() -> None:
    """Answers until standard input ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints must not get among the answers
    served = Served()
    operations: dict[str, Callable[..., Any]] = {
        "open": served.open,
        "time": served.time,
        "open_text": served.open_text,
        "translate": served.translate,
        "bandwidth": served.bandwidth,
        "peak": served.peak,
        "profile": served.profile,
        "memory": served.memory,
    }
    for line in sys.stdin:
        values = json.loads(line)
        try:
            answer = {"answer": operations[values.pop("operation")](**values)}
        except Exception as error:  # the parent decides what an error means
            answer = {"error": str(error) or type(error).__name__}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
