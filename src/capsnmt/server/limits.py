"""Requests per minute, counted for each key and for each address without one."""

from __future__ import annotations

import time
from collections import OrderedDict

from capsnmt.server.errors import Refused

_MOST_CLIENTS = 20_000  # remembered at a time


class Rates:
    """Token buckets: a client may use a minute's requests at once, and then as fast as they come back."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # client → tokens, when

    def take(self, client: str, per_minute: int, now: float | None = None) -> None:
        """Counts one request; 0 per minute means no limit. Raises Refused 429."""
        if per_minute <= 0:
            return
        now = time.monotonic() if now is None else now
        tokens, before = self._buckets.pop(client, (float(per_minute), now))
        tokens = min(float(per_minute), tokens + (now - before) * per_minute / 60.0)
        enough = tokens >= 1.0
        self._buckets[client] = (tokens - 1.0 if enough else tokens, now)
        while len(self._buckets) > _MOST_CLIENTS:
            self._buckets.popitem(last=False)
        if not enough:
            wait_s = (1.0 - tokens) * 60.0 / per_minute
            raise Refused(429, f"Slowdown: {per_minute} per 1 minute", retry_after_s=wait_s)
