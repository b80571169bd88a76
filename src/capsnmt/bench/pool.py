"""One worker for each system, with its model loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from capsnmt.bench.systems import BenchSystem
from capsnmt.bench.worker import Worker

CALLS = 3  # timed in each visit, after one that is not


@contextmanager
def opened(
    systems: Mapping[str, BenchSystem], folders: Mapping[str, Path], *, threads: int
) -> Iterator[dict[str, Worker]]:
    """Name → worker; all of them end together."""
    with ExitStack() as stack:
        workers = {}
        for name, system in systems.items():
            workers[name] = stack.enter_context(Worker(name, threads=threads))
            load(workers[name], system, folders[name], threads=threads)
        yield workers


def load(worker: Worker, system: BenchSystem, folder: Path, *, threads: int) -> None:
    """Loads a system's model in a worker."""
    worker.ask("open", kind=system.kind, folder=str(folder), threads=threads, selection=system.selection)


def visit(
    worker: Worker, sources: Sequence[Sequence[int]], *, calls: int = CALLS, **values: Any
) -> Callable[[], list[dict[str, float | None]]]:
    """A visit that has these sources translated; see `worker.Served.time`."""
    return lambda: list(worker.ask("time", sources=sources, calls=calls, **values))


def totals_s(visits: Sequence[Sequence[Mapping[str, float | None]]]) -> list[float]:
    """The whole times of all calls of all visits."""
    return [float(call["total_s"] or 0.0) for calls in visits for call in calls]
