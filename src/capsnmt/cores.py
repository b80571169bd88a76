"""How many cores there are for us."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Those that this process may use: a container or `taskset -c 0 capsnmt …` leaves the others to other work."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
