"""Commands of ours in processes of their own, which end when the process that started them does."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

_PARENT = "CAPSNMT_PARENT"  # cli.main looks for it
_PR_SET_PDEATHSIG = 1  # of Linux's <sys/prctl.h>


def run_command(command: Sequence[str], out: IO[str], *, threads: int, folder: Path | None = None) -> int:
    """Runs `capsnmt COMMAND` in a folder, on so many threads, with all its words in `out`. Returns its exit code."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), _PARENT: str(os.getpid())}
    argv = [sys.executable, "-m", "capsnmt", *command]
    return subprocess.run(argv, stdout=out, stderr=out, env=environment, cwd=folder, check=False).returncode


def end_with_parent() -> None:
    """For a command that `run_command` started: an orphan would go on training while its successor wants the folder.

    Killed, not asked: its last checkpoint is whole, and its lock is free at once. Linux only; elsewhere orphans live.
    """
    parent = int(os.environ.pop(_PARENT))  # what this process starts has another parent
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before we could listen
            sys.exit(1)
