"""One function over many blocks in several processes; the answers come in the order of the blocks.

Not multiprocessing: its spawned processes run the caller's script again, and those of its pools outlive a parent that
was killed. Here each process is a fresh interpreter at the end of a pipe, which ends when the pipe does.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from typing import Any, TypeVar

from capsnmt.errors import CapsNMTError
from capsnmt.machine import usable_cores

Block = TypeVar("Block")
Answer = TypeVar("Answer")

_MOST_WORKERS = 4  # each holds some 100 MB, and the process that reads and writes keeps no more of them busy
_SERVE = "from capsnmt.data.workers import serve; serve()"


def default_workers() -> int:
    """One for each core that this process may use, up to a number whose memory is bounded."""
    return min(usable_cores(), _MOST_WORKERS)


def in_order(
    make: Callable[[], Callable[[Block], Answer]], blocks: Iterable[Block], *, workers: int
) -> Iterator[Answer]:
    """The answers of `make()` to each block. With one worker all happens in this process, with the same result.

    Function, blocks and answers must be picklable. At most one block per worker is under way, so memory is bounded
    and no two ends of a pipe can wait for each other.
    """
    if workers <= 1:
        yield from map(make(), blocks)
        return
    with ExitStack() as stack:
        started: list[_Worker] = []
        number = -1
        for number, block in enumerate(blocks):
            if number < workers:
                started.append(stack.enter_context(_Worker(make)))
                started[number].send(block)
            else:
                worker = started[number % workers]
                answer = worker.receive()
                worker.send(block)
                yield answer
        for rest in range(max(0, number + 1 - workers), number + 1):
            yield started[rest % workers].receive()


class _Worker:
    """A process that answers one block after another."""

    def __init__(self, make: Callable[[], Callable[[Any], Any]]) -> None:
        self._process = subprocess.Popen([sys.executable, "-c", _SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._blocks, self._answers = self._process.stdin, self._process.stdout
        self.send(make)

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()  # it has nothing to lose
        self._answers.close()
        with suppress(OSError):  # what it had not read yet
            self._blocks.close()
        self._process.wait()

    def send(self, block: Any) -> None:
        try:
            pickle.dump(block, self._blocks, pickle.HIGHEST_PROTOCOL)
            self._blocks.flush()
        except BrokenPipeError:
            raise self._death() from None

    def receive(self) -> Any:
        try:
            answer, error = pickle.load(self._answers)
        except (EOFError, pickle.UnpicklingError):  # between two answers, or within one
            raise self._death() from None
        if error is not None:
            raise error
        return answer

    def _death(self) -> CapsNMTError:
        return CapsNMTError(
            f"a worker process ended early (exit code {self._process.wait()}; a negative one is the signal that killed "
            "it); see what it wrote above, and whether the machine has run out of memory"
        )


def serve() -> None:
    """The life of a worker: a function maker, then blocks, from standard input; answers to standard output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group, but it is the parent's to answer
    blocks = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get between the answers
    function: Callable[[Any], Any] | None = None
    answer: tuple[Any, Exception | None]
    while True:
        try:
            block = pickle.load(blocks)
        except (EOFError, pickle.UnpicklingError):  # the parent has ended, in the middle of a block perhaps
            return
        try:
            if function is None:
                function = block()
                continue
            answer = function(block), None
        except Exception as error:  # also that of a function that cannot be made: the first block is answered with it
            answer = None, error
        try:
            pickle.dump(answer, answers, pickle.HIGHEST_PROTOCOL)
            answers.flush()
        except BrokenPipeError:
            os._exit(0)  # nobody is left to answer; a usual end would try to flush again
