"""What speeds depend on, and nothing that names a machine: its processor, and the cores that are ours."""

from __future__ import annotations

import os
import platform
from pathlib import Path

_TELLING_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_int8", "amx_bf16")


def usable_cores() -> int:
    """Those that this process may use: a container or `taskset -c 0 capsnmt …` leaves the others to other work."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """Its name, and which of the instructions it has that decide how fast products are."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    flags = next((line.split(":", 1)[1].split() for line in lines if line.startswith("flags")), [])
    known = [flag for flag in _TELLING_FLAGS if flag in flags]
    return f"{name} ({', '.join(known)})" if known else name
