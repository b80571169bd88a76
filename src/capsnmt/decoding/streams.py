"""Lines from a pipe, in batches as large as what has already arrived and never larger than asked.

A harness that writes one line and waits for its translation gets it at once, and a file piped in comes in full batches.
"""

from __future__ import annotations

import codecs
import io
import queue
import threading
import time
from collections.abc import Iterator
from typing import BinaryIO

from capsnmt.errors import CapsNMTError

GRACE_S = 0.003  # how long a started batch waits for one more line: below what a person or a harness notices
CHUNK_BYTES = 1 << 16  # what a Linux pipe holds
IDLE_S = 0.05  # how long somebody who has more to look after than the stream may wait for its next line
CHUNKS_AHEAD = 16  # read ahead of the translating, so at most 1 MiB

Message = list[str] | Exception | None  # lines, a failure, or the end
Inbox = queue.Queue[Message]


def batches_from_stream(stream: BinaryIO, max_lines: int, *, idle_s: float | None = None) -> Iterator[list[str]]:
    """Batches of 1 to `max_lines` lines, without their ends. After each `idle_s` without a line comes an empty one.

    Only LF ends a line; one CR before it is dropped, and so is a byte-order mark at the very beginning. Bytes that
    are not UTF-8 become U+FFFD: a bad line must not shift the lines after it. Nobody else may read from a pipe before
    or meanwhile, because its buffer is passed over.
    """
    if max_lines < 1:
        raise CapsNMTError(f"max_lines {max_lines} must be 1 or more")
    return _batches(stream, max_lines, idle_s)


def _batches(stream: BinaryIO, max_lines: int, idle_s: float | None) -> Iterator[list[str]]:
    inbox: Inbox = queue.Queue(maxsize=CHUNKS_AHEAD)
    stop = threading.Event()
    threading.Thread(target=_read, args=(stream, inbox, stop), name="line-reader", daemon=True).start()
    pending: list[str] = []
    ended = False
    failure: Exception | None = None
    try:
        while pending or not ended:
            wait_s = GRACE_S if pending else idle_s
            while not ended and len(pending) < max_lines:
                try:
                    message = inbox.get(timeout=wait_s)
                except queue.Empty:
                    break
                wait_s = GRACE_S
                if isinstance(message, list):
                    pending += message
                else:
                    ended, failure = True, message
            if pending or not ended:
                batch, pending = pending[:max_lines], pending[max_lines:]
                yield batch
        if failure is not None:
            raise failure
    finally:
        stop.set()
        while not inbox.empty():  # so that a reader blocked on a full inbox sees the stop
            inbox.get_nowait()


def _read(stream: BinaryIO, inbox: Inbox, stop: threading.Event) -> None:
    """The thread: sends lines as they come, then the end or the failure."""
    parts: list[bytes] = []  # of a line whose end has not come yet
    mark = codecs.BOM_UTF8  # in front of the first line only
    try:
        while not stop.is_set():
            chunk = _read_available(stream)
            if chunk is None:  # a non-blocking stream with nothing to give
                time.sleep(GRACE_S)
            elif not chunk:
                break
            elif b"\n" not in chunk:
                parts.append(chunk)
            else:
                *lines, rest = b"".join([*parts, chunk]).split(b"\n")
                lines[0] = lines[0].removeprefix(mark)
                mark = b""
                inbox.put([_decoded(line) for line in lines])
                parts = [rest] if rest else []
        if parts:
            inbox.put([_decoded(b"".join(parts).removeprefix(mark))])
        inbox.put(None)
    except Exception as failure:
        inbox.put(failure)


def _decoded(line: bytes) -> str:
    return line.removesuffix(b"\r").decode("utf-8", errors="replace")


def _read_available(stream: BinaryIO) -> bytes | None:
    """What can be read without waiting for more; b"" at the end."""
    # A pipe or a terminal is read below its buffer: a thread that waits inside a BufferedReader holds its lock, and
    # Python aborts at exit when it cannot get the lock of stdin (Ctrl-C would dump core). Raw files have no lock.
    source = stream.raw if isinstance(stream, io.BufferedReader) and not stream.seekable() else stream
    chunk: bytes | None = getattr(source, "read1", source.read)(CHUNK_BYTES)
    return chunk
