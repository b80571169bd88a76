"""Logs that hold nothing of what users send: no text, no key, no query string, no address."""

from __future__ import annotations

import logging
import sys
import traceback

access = logging.getLogger("capsnmt.access")
log = logging.getLogger(__name__)


def set_up(*, access_log: bool) -> None:
    """One format for our own and for uvicorn's messages, on standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.INFO)
    logging.getLogger("uvicorn.access").disabled = True  # it writes query strings
    for noisy in ("asyncio", "sse_starlette", "python_multipart", "multipart"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    access.disabled = not access_log


def log_request(*, method: str, endpoint: str, status: int, elapsed_s: float) -> None:
    """`endpoint` is one of ours, not what a client wrote."""
    access.info("%s %s %d %.1f ms", method, endpoint, status, 1000 * elapsed_s)


def log_crash(error: BaseException) -> None:
    """Where it happened, but not the exception's own words: they may quote a user's text."""
    frames = traceback.extract_tb(error.__traceback__)[-6:]
    places = " < ".join(f"{frame.name} ({frame.filename}:{frame.lineno})" for frame in reversed(frames))
    log.error("a request failed: %s in %s", type(error).__name__, places)
