"""How far a distillation is: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from capsnmt.data.stages import progress_bar
from capsnmt.distillation.distill import Report

_SECONDS_PER_LOG_LINE = 30.0
_LOG = logging.getLogger(__name__)


@contextmanager
def shown_progress(wanted: bool) -> Iterator[Report]:
    """What `distill` calls after each block."""
    with progress_bar(wanted) as bar:
        task = bar.add_task("distilling", total=None)
        told_s = time.monotonic()

        def report(done: int, total: int, lines_per_s: float) -> None:
            nonlocal told_s
            bar.update(task, completed=done, total=total)
            if bar.disable and (time.monotonic() - told_s > _SECONDS_PER_LOG_LINE or done == total):
                told_s = time.monotonic()
                left_s = (total - done) / lines_per_s
                _LOG.info("%d of %d lines, %.1f lines/s, %d s left", done, total, lines_per_s, left_s)

        yield report
