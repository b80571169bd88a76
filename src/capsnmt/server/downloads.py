"""Translated files that wait to be fetched: in memory, under names nobody can guess, for a while, up to a quota."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass

from capsnmt.server.errors import Refused


@dataclass(frozen=True)
class Download:
    """One file."""

    content: bytes
    media_type: str
    expires: float  # of time.monotonic


class Downloads:
    """A file leaves when its time is over; what does not fit under the quota is refused."""

    def __init__(self, *, max_bytes: int, lifetime_s: float) -> None:
        self._max_bytes = max_bytes
        self._lifetime_s = lifetime_s
        self._files: dict[str, Download] = {}  # the oldest first

    def check_room(self, size: int) -> None:
        """Whether a file of so many bytes would be kept now. Raises Refused."""
        kept = sum(len(file.content) for file in self._files.values())
        if kept + size > self._max_bytes:
            wait_s = min((file.expires for file in self._files.values()), default=0.0) - time.monotonic()
            raise Refused(503, "Too many translated files are waiting to be fetched", retry_after_s=max(1.0, wait_s))

    def put(self, content: bytes, suffix: str, media_type: str) -> str:
        """Keeps a file and returns its name; needs a running event loop. Raises Refused."""
        self.check_room(len(content))
        name = secrets.token_urlsafe(24) + suffix
        self._files[name] = Download(content, media_type, time.monotonic() + self._lifetime_s)
        asyncio.get_running_loop().call_later(self._lifetime_s, self._files.pop, name, None)
        return name

    def get(self, name: str) -> Download | None:
        """A file, if it is still there."""
        return self._files.get(name)
