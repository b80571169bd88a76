"""Commands of ours in processes of their own, which end when the process that started them does.

As a program this file is a torchrun that does so, too: `python -m capsnmt.analysis.processes --nproc-per-node 2 …`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_PARENT = "CAPSNMT_PARENT"  # cli.main looks for it
_PR_SET_PDEATHSIG = 1  # of Linux's <sys/prctl.h>


@dataclass(frozen=True)
class Command:
    """A verb with its options."""

    words: tuple[str, ...]  # behind `capsnmt`
    processes: int = 1  # more than one are started together by torchrun

    @property
    def told(self) -> list[str]:
        """As a user would type it; `run_command` starts just that."""
        return ["capsnmt", *self.words] if self.processes == 1 else ["torchrun", *self._of_torchrun]

    @property
    def _of_torchrun(self) -> list[str]:
        """`--standalone` takes a free port, so that trainings can run side by side."""
        return ["--standalone", "--nproc-per-node", str(self.processes), "-m", "capsnmt", *self.words]

    @property
    def argv(self) -> list[str]:
        """In this environment."""
        module = ["capsnmt", *self.words] if self.processes == 1 else ["capsnmt.analysis.processes", *self._of_torchrun]
        return [sys.executable, "-m", *module]

    def threads_each(self, threads: int) -> int:
        """Of each of its processes, if it has so many in all."""
        return max(1, threads // self.processes)


def run_command(command: Command, out: IO[str], *, threads: int, folder: Path | None = None) -> int:
    """Runs it in a folder, on so many threads in all, with all its words in `out`. Returns its exit code."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(command.threads_each(threads)), _PARENT: str(os.getpid())}
    return subprocess.run(command.argv, stdout=out, stderr=out, env=environment, cwd=folder, check=False).returncode


def end_with_parent() -> None:
    """For a command that `run_command` started: an orphan would go on training while its successor wants the folder.

    Killed, not asked: its last checkpoint is whole, and its lock is free at once. Linux only; elsewhere orphans live.
    """
    parent = int(os.environ.pop(_PARENT))  # what this process starts has another parent
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before we could listen
            sys.exit(1)


def _torchrun() -> None:
    """torchrun, whose processes end with it as it ends with its own parent."""
    from torch.distributed.run import main

    end_with_parent()
    os.environ[_PARENT] = str(os.getpid())
    main(sys.argv[1:])


if __name__ == "__main__":
    _torchrun()
