"""Translating over a Ray cluster: blocks of lines go to workers that load the model once, answers come back in order.

    RAY_ADDRESS=head:6379 capsnmt translate MODEL --engine ray < lines > translations    # without it: this machine

The blocks of a worker that dies, or whose machine is lost, go to the others, and Ray starts it again where there is
room. Only this process writes, so nothing is written twice. Blocks and answers travel by network and shared memory; few
are under way at a time, so Ray has nothing to put on a disk, and a cluster that is started here may not.
"""

from __future__ import annotations

import heapq
import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from capsnmt.decoding.translation import TranslateOptions, Translation
from capsnmt.errors import CapsNMTError

_LOG = logging.getLogger(__name__)

BLOCKS_PER_WORKER = 4  # held here, so that a slow one does not let the others wait
_TRIES = 4  # of a block; a line that kills every worker must not go round for ever
_RESTARTS = 20  # of a worker; one that has not the memory for the model must not be started for ever
_SENT_PER_WORKER = 2  # of these, so that a worker need not wait for its next
_OBJECT_STORE_BYTES = 128 << 20  # of a cluster that is started here; Ray would take a third of the memory
_SHARED_MEMORY = Path("/dev/shm")
_PATIENCE_S = 60.0  # without any worker, before the user is told what is waited for


class Block(NamedTuple):
    """Some lines and the number of the first of them."""

    first_line: int
    lines: Sequence[str]


class Job(NamedTuple):
    """What a worker needs to know; plain values only."""

    folders: tuple[str, ...]  # more than one: an ensemble
    options: TranslateOptions
    prefix: str = ""
    engine: str = "auto"
    device: str = "auto"
    selection: bool = True


class BlockTranslator:
    """A model that translates blocks: in this process or in a worker of the cluster."""

    def __init__(self, job: Job) -> None:
        from capsnmt.translator import Translator

        self._job = job
        self._translator = Translator(job.folders, engine=job.engine, device=job.device, selection=job.selection)

    def ready(self) -> None:
        """Returns when the model is loaded."""

    def translate(self, block: Block) -> list[Translation]:
        """One translation per line, in order."""
        prefixes = [self._job.prefix] * len(block.lines) if self._job.prefix else None
        return self._translator.translate_batch(
            block.lines, self._job.options, prefixes=prefixes, first_line=block.first_line
        )


def translate_blocks(job: Job, blocks: Iterable[Block], *, workers: int | None = None) -> Iterator[list[Translation]]:
    """The answers to the blocks, in their order, from `workers` processes (default: one for each CPU or GPU).

    Answers that are there come before the next block is asked for. So whoever waits for lines should now and then pass
    a block without any; its answer is empty.
    """
    if find_spec("ray") is None:
        raise CapsNMTError("engine ray needs ray: pip install 'capsnmt[cluster]'")
    import ray

    with _connected(workers):
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        count = workers or max(1, int(resources.get("GPU" if job.device == "cuda" else "CPU", 1)))
        worker_class: Any = ray.remote(BlockTranslator).options(
            num_cpus=1,
            num_gpus=1 if job.device == "cuda" else 0,
            max_restarts=_RESTARTS,
            max_task_retries=-1,  # so calls of `ready` wait for a restart; blocks do not, see _Crew
        )
        yield from _Crew([worker_class.remote(job) for _ in range(count)]).answers(blocks)


class _Crew:
    """The workers, and which blocks are with whom.

    Blocks go to workers that have loaded their model only: others may wait for a free CPU for ever, or have died. Ray
    keeps the order of each worker's blocks.
    """

    def __init__(self, workers: Sequence[Any]) -> None:
        self._workers = workers
        self._loading: dict[Any, int] = {}  # reference of a call → worker
        self._loaded: set[int] = set()
        self._under_way: dict[Any, tuple[int, int]] = {}  # reference of a call → worker and block, the oldest first
        self._waiting: list[int] = []  # blocks that are with nobody, a heap
        self._blocks: dict[int, Block] = {}  # without an answer
        self._answers: dict[int, list[Translation]] = {}
        self._deaths: Counter[int] = Counter()  # of workers, by the block that they were at
        self._added, self._given, self._held = 0, 0, 0
        for worker in range(len(workers)):
            self._load(worker)

    def answers(self, blocks: Iterable[Block]) -> Iterator[list[Translation]]:
        """As `translate_blocks` promises them."""
        for block in blocks:
            self._add(block)
            self._advance(wait=False)
            yield from self._next_answers(most=BLOCKS_PER_WORKER * len(self._workers) - 1)
        yield from self._next_answers(most=0)

    def _next_answers(self, most: int) -> Iterator[list[Translation]]:
        """All that are there, and as many more as it takes to hold no more than `most` blocks."""
        while True:
            while self._given in self._answers:
                answer = self._answers.pop(self._given)
                self._given += 1
                self._held -= bool(answer)
                yield answer
            if self._held <= most:
                return
            self._advance(wait=True)

    def _add(self, block: Block) -> None:
        if block.lines:
            self._blocks[self._added] = block
            heapq.heappush(self._waiting, self._added)
            self._held += 1
        else:
            self._answers[self._added] = []
        self._added += 1

    def _advance(self, *, wait: bool) -> None:
        """Sends what waits and takes what has come; with `wait`, something will have come."""
        import ray

        self._send()
        references = [*self._loading, *self._under_way]
        while wait and not ray.wait(references, timeout=_PATIENCE_S)[0]:
            if not self._loaded:
                _LOG.warning("no worker is ready yet: they wait for a free CPU (or GPU), or load the model")
        for reference in ray.wait(references, num_returns=len(references), timeout=0)[0]:
            if reference in self._loading:
                self._greet(self._loading.pop(reference), reference)
            elif reference in self._under_way:  # else it was with a worker that is known to be lost by now
                self._take(reference)
        self._send()

    def _send(self) -> None:
        """The first blocks that wait, to the workers with the fewest."""
        busy = Counter(worker for worker, _ in self._under_way.values())
        while self._waiting and self._loaded:
            worker = min(self._loaded, key=lambda one: (busy[one], one))
            if busy[worker] == _SENT_PER_WORKER:
                return
            number = heapq.heappop(self._waiting)
            translate = self._workers[worker].translate.options(max_task_retries=0)  # it goes to another instead
            self._under_way[translate.remote(self._blocks[number])] = worker, number
            busy[worker] += 1

    def _load(self, worker: int) -> None:
        """Waits for a worker that Ray starts, or starts again after a death."""
        self._loading[self._workers[worker].ready.remote()] = worker

    def _greet(self, worker: int, reference: Any) -> None:
        """Notes that a worker has loaded its model. One that keeps dying of it is left alone, unless it is the last."""
        import ray

        try:
            ray.get(reference)
            self._loaded.add(worker)
        except ray.exceptions.RayError as error:
            if getattr(error, "actor_init_failed", False):
                raise CapsNMTError(f"a worker could not load the model: {_last_line(error)}") from None
            if not self._loading and not self._loaded:
                raise CapsNMTError(
                    f"no worker could be started ({_last_line(error)}); see whether the machines have run out of memory"
                ) from None

    def _take(self, reference: Any) -> None:
        """Notes an answer, or the death of its worker."""
        import ray

        worker, number = self._under_way[reference]
        try:
            self._answers[number] = ray.get(reference)
            del self._under_way[reference], self._blocks[number]
        except ray.exceptions.RayTaskError as error:  # what the worker itself raised
            raise error.cause if isinstance(error.cause, CapsNMTError) else error from None
        except ray.exceptions.RayError as error:
            self._lose(worker, error)

    def _lose(self, worker: int, error: Exception) -> None:
        """Its blocks go to others. It was at the first of them, so that one may be what killed it."""
        lost = {reference: block for reference, (whose, block) in self._under_way.items() if whose == worker}
        for reference, number in lost.items():
            del self._under_way[reference]
            heapq.heappush(self._waiting, number)
        first = next(iter(lost.values()))
        self._deaths[first] += 1
        if self._deaths[first] == _TRIES:
            block = self._blocks[first]
            raise CapsNMTError(
                f"lines {block.first_line + 1} to {block.first_line + len(block.lines)}: {_TRIES} workers died of them "
                f"({_last_line(error)}); see whether the machines have run out of memory, and try a smaller "
                "--batch-lines"
            )
        self._loaded.remove(worker)
        self._load(worker)


def _last_line(error: Exception) -> str:
    """What Ray says in the end; before it stands where."""
    return f"{type(error).__name__}: {str(error).strip().rpartition(chr(10))[2].strip()}"


@contextmanager
def _connected(workers: int | None) -> Iterator[None]:
    """Joins the cluster of RAY_ADDRESS, or starts one on this machine and ends it."""
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if os.environ.get("RAY_ADDRESS"):
        ray.init(log_to_driver=False, logging_level=logging.WARNING)
    else:
        _check_shared_memory()
        ray.init(
            address="local",  # else Ray would look for a cluster that somebody started here, and fail if it has died
            num_cpus=workers,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.WARNING,
            object_store_memory=_OBJECT_STORE_BYTES,
            _system_config={"automatic_object_spilling_enabled": False},
        )
    try:
        yield
    finally:
        ray.shutdown()


def _check_shared_memory() -> None:
    """With too little of it Ray would keep blocks and answers in files, whose pickles could be changed by others."""
    if not _SHARED_MEMORY.is_dir():  # not Linux
        return
    found = os.statvfs(_SHARED_MEMORY)
    free_bytes = found.f_bavail * found.f_frsize
    if free_bytes < _OBJECT_STORE_BYTES:
        raise CapsNMTError(
            f"engine ray needs {_OBJECT_STORE_BYTES >> 20} MB in {_SHARED_MEMORY}, which has {free_bytes >> 20} MB "
            "free; give the container more, as in docker run --shm-size=512m"
        )
