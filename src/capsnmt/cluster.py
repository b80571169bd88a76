"""Translating over a Ray cluster: blocks of lines go to workers that load the model once, answers come back in order.

    RAY_ADDRESS=head:6379 capsnmt translate MODEL --engine ray < lines > translations    # without it: this machine

Ray starts a dead worker again and repeats its blocks. Only this process writes, so nothing is written twice. Blocks and
answers travel by network and shared memory; few are under way at a time, so Ray has nothing to put on a disk, and a
cluster that is started here may not.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, NamedTuple

from capsnmt.decoding.translation import TranslateOptions, Translation
from capsnmt.errors import CapsNMTError

_TRIES = 4  # of a block; a line that kills every worker must not go round for ever
_BLOCKS_PER_WORKER = 4  # under way, so that a slow one does not let the others wait
_OBJECT_STORE_BYTES = 128 << 20  # of a cluster that is started here; Ray would take a third of the memory


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
        from capsnmt.verbs import Translator

        self._job = job
        self._translator = Translator(job.folders, engine=job.engine, device=job.device, selection=job.selection)

    def translate(self, block: Block) -> list[Translation]:
        """One translation per line, in order."""
        prefixes = [self._job.prefix] * len(block.lines) if self._job.prefix else None
        return self._translator.translate_batch(
            block.lines, self._job.options, prefixes=prefixes, first_line=block.first_line
        )


def translate_blocks(job: Job, blocks: Iterable[Block], *, workers: int | None = None) -> Iterator[list[Translation]]:
    """The answers to the blocks, in their order, from `workers` processes (default: one for each CPU or GPU)."""
    if find_spec("ray") is None:
        raise CapsNMTError("engine ray needs ray: pip install 'capsnmt[cluster]'")
    import ray

    with _connected(workers):
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        count = workers or max(1, int(resources.get("GPU" if job.device == "cuda" else "CPU", 1)))
        worker_class: Any = ray.remote(BlockTranslator).options(
            num_cpus=1, num_gpus=1 if job.device == "cuda" else 0, max_restarts=-1, max_task_retries=_TRIES - 1
        )
        started = [worker_class.remote(job) for _ in range(count)]
        # Ray keeps the order of each worker's blocks, so a block goes to the one with the fewest.
        under_way: deque[tuple[Block, Any, int]] = deque()
        for block in blocks:
            while len(under_way) >= _BLOCKS_PER_WORKER * count:
                yield _answer(under_way.popleft())
            refs = [reference for _, reference, _ in under_way]
            ready = set(ray.wait(refs, num_returns=len(refs), timeout=0)[0]) if refs else set()
            busy = [worker for _, reference, worker in under_way if reference not in ready]
            chosen = min(range(count), key=busy.count)
            under_way.append((block, started[chosen].translate.remote(block), chosen))
        while under_way:
            yield _answer(under_way.popleft())


def _answer(sent: tuple[Block, Any, int]) -> list[Translation]:
    import ray

    block, reference, _ = sent
    try:
        answer: list[Translation] = ray.get(reference)
    except ray.exceptions.RayTaskError as error:  # what the worker itself raised
        raise error.cause if isinstance(error.cause, CapsNMTError) else error from None
    except ray.exceptions.RayError as error:
        last = block.first_line + len(block.lines)
        said = str(error).strip().rpartition("\n")[2]
        raise CapsNMTError(
            f"lines {block.first_line + 1} to {last}: no worker could be started, or {_TRIES} died of them "
            f"({type(error).__name__}: {said}); see whether the machines have run out of memory, and try a smaller "
            "--batch-lines"
        ) from None
    return answer


@contextmanager
def _connected(workers: int | None) -> Iterator[None]:
    """Joins the cluster of RAY_ADDRESS, or starts one on this machine and ends it."""
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if os.environ.get("RAY_ADDRESS"):
        ray.init(log_to_driver=False, logging_level=logging.WARNING)
    else:
        ray.init(
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
