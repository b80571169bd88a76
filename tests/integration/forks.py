"""Processes that tests kill: forks of a server that has imported what they need, so that none pays for it again.

A fork of the test's own process may wait for ever: its other threads (of ONNX Runtime, of OpenMP) are not copied, and
whoever joins one in the child never returns. The server has done nothing yet.
"""

import multiprocessing

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["pytest", "capsnmt.verbs", "capsnmt.training.loop", "capsnmt.runtime.export", "capsnmt.analysis.sections"]
)
