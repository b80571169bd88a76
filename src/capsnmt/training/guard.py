"""What protects a run: a lock on its folder, a clean stop on signals, and a stop when it diverges."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from filelock import FileLock, Timeout

from capsnmt.errors import CapsNMTError

_MAX_SKIPS_IN_A_ROW = 20  # a single bad batch happens; twenty are a model that is lost


@contextmanager
def folder_lock(folder: Path, *, wait_s: float = 0.0) -> Iterator[None]:
    """Keeps a second run out of the folder. The kernel frees the lock when its holder dies, however it dies."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=wait_s)
    except Timeout:
        raise CapsNMTError(f"{folder}: another run is training here; wait for it or set another `output`") from None
    try:
        yield
    finally:
        lock.release()


class StopRequest:
    """Notes SIGTERM and SIGINT, so that the loop can save and leave; a second Ctrl-C leaves at once."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number

    def leave(self) -> None:
        """Ends the command as the signal would have: 130 for Ctrl-C, 143 for SIGTERM."""
        if self.signal == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + (self.signal or 0))


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Listens while the block runs. Python delivers signals to the main thread only; elsewhere nothing is changed."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    old = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


class DivergenceGuard:
    """Counts updates that were skipped because their gradient was not finite."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def saw(self, norm: float, step: int) -> bool:
        """Notes the gradient norm of an update; True if it was skipped. Raises when too many were, in a row."""
        if math.isfinite(norm):
            self._in_a_row = 0
            return False
        self._in_a_row += 1
        if self._in_a_row >= _MAX_SKIPS_IN_A_ROW:
            raise CapsNMTError(
                f"step {step}: {self._in_a_row} updates in a row had no finite gradient, so the run has diverged. "
                "Lower training.learning_rate, lengthen training.warmup_steps or lower training.clip_norm, and start "
                "anew with another `output`; the checkpoints before this are kept"
            )
        return True
