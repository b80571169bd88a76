"""Translated files that wait to be fetched: in memory, under names nobody can guess, for a while, up to a quota."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass

from capsnmt.server.errors import Refused


@dataclass(frozen=True)
class Download:
    """One file."""

    content: bytes
    media_type: str
    expires: float  # of time.monotonic


class Downloads:
    """The oldest leave when their time is over; what does not fit under the quota is refused."""

    def __init__(self, *, max_bytes: int, lifetime_s: float) -> None:
        self._max_bytes = max_bytes
        self._lifetime_s = lifetime_s
        self._files: OrderedDict[str, Download] = OrderedDict()

    def put(self, content: bytes, suffix: str, media_type: str) -> str:
        """Keeps a file and returns its name. Raises Refused."""
        self._expire()
        kept = sum(len(file.content) for file in self._files.values())
        if kept + len(content) > self._max_bytes:
            wait_s = min((file.expires for file in self._files.values()), default=0.0) - time.monotonic()
            raise Refused(503, "Too many translated files are waiting to be fetched", retry_after_s=max(1.0, wait_s))
        name = secrets.token_urlsafe(24) + suffix
        self._files[name] = Download(content, media_type, time.monotonic() + self._lifetime_s)
        return name

    def get(self, name: str) -> Download | None:
        """A file, if it is still there."""
        self._expire()
        return self._files.get(name)

    def _expire(self) -> None:
        now = time.monotonic()
        for name in [name for name, file in self._files.items() if file.expires <= now]:
            del self._files[name]
