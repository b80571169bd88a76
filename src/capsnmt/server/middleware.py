"""What stands before all endpoints, from outside in: log and headers, the Host check, the size of a body."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Collection, MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from capsnmt.server import logs
from capsnmt.server.errors import Overloaded, Refused, error_response
from capsnmt.server.metrics import Metrics
from capsnmt.server.settings import ServeSettings
from capsnmt.server.waiting import within

# LibreTranslate's, but for Allow-Credentials: with `*` browsers refuse it, and nothing here needs a cookie.
CORS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Headers": "Authorization, Content-Type",
    "Access-Control-Expose-Headers": "Authorization, Retry-After",
    "Access-Control-Allow-Methods": "GET, POST",
    "Access-Control-Max-Age": "1728000",
}
SAFE = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
}
CLIENT_GONE = 499  # in logs and metrics only
_SMALL_BYTES = 64 << 10  # of a body that is read although nobody asked for it
_SMALL_S = 0.5
_HEALTH = "/health"  # a busy server is well
_METHODS = frozenset(["GET", "POST", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE"])


class Guard:
    """The outermost: counts, times and logs every request, adds headers, and lets no exception out."""

    def __init__(self, app: ASGIApp, *, settings: ServeSettings, metrics: Metrics, endpoints: Collection[str]) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics
        self._endpoints = frozenset(endpoints)
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        status = CLIENT_GONE
        gone = False

        async def send_with_headers(message: Message) -> None:
            nonlocal status, gone
            if gone:
                return
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in {**CORS, **SAFE}.items():
                    headers.setdefault(name, value)
            try:
                await send(message)
            except Exception:  # a connection that cannot be written to is the client's doing: it sent nonsense, or left
                gone, status = True, CLIENT_GONE

        self._under_way += 1
        self._metrics.in_flight.set(self._under_way)
        try:
            await self._answer(scope, receive, send_with_headers)
        except asyncio.CancelledError:  # the server ends, and the time for that is over
            if status == CLIENT_GONE and not gone:
                await error_response(Overloaded(1.0))(scope, receive, send_with_headers)
        except Exception as error:
            logs.log_crash(error)
            if status == CLIENT_GONE and not gone:
                response = JSONResponse({"error": "Internal Server Error"}, status_code=500)
                await response(scope, receive, send_with_headers)
        finally:
            self._under_way -= 1
            self._metrics.in_flight.set(self._under_way)
            self._note(scope, status, time.perf_counter() - started)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        limits = self._settings.limits
        body = Body(scope, receive, most_bytes=limits.body_bytes, most_s=limits.body_s)

        async def send_or_close(message: Message) -> None:
            if message["type"] == "http.response.start" and not await body.is_read_to_its_end():
                MutableHeaders(scope=message)["Connection"] = "close"  # it would go on coming
            await send(message)

        try:
            if not host_allowed(Headers(scope=scope).get("host"), self._settings):
                raise Refused(400, "Invalid Host header: the operator can allow a name with --allowed-host")
            if self._under_way > limits.requests and scope["path"] != _HEALTH:
                self._metrics.refused.labels("requests").inc()
                raise Overloaded(1.0)
            if scope["method"] == "OPTIONS":
                await Response(status_code=204)(scope, receive, send_or_close)
                return
            body.check_headers()
        except HTTPException as error:
            await error_response(error)(scope, receive, send_or_close)
            return
        await self._app(scope, body.receive, send_or_close)

    def _note(self, scope: Scope, status: int, elapsed_s: float) -> None:
        path = scope["path"]
        first = "/" + path.removeprefix("/").split("/")[0]  # "OPTIONS *" has no slash
        endpoint = path if path in self._endpoints else first if first in self._endpoints else "other"
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._metrics.requests.labels(method, endpoint, str(status)).observe(elapsed_s)
        if status == CLIENT_GONE:
            self._metrics.abandoned.inc()
        logs.log_request(method=method, endpoint=endpoint, status=status, elapsed_s=elapsed_s)


class Body:
    """A body that may not be too large, come too slowly, or be packed."""

    def __init__(self, scope: Scope, receive: Receive, *, most_bytes: int, most_s: float) -> None:
        self._headers = Headers(scope=scope)
        self._receive = receive
        self._most_bytes = most_bytes
        self._ends = time.monotonic() + most_s
        self._bytes = 0
        self._length = self._headers.get("content-length", "0")
        self._complete = "transfer-encoding" not in self._headers and not self._length.strip("0")

    def check_headers(self) -> None:
        """What they promise may be refused already."""
        if self._headers.get("content-encoding", "identity").strip().lower() not in ("identity", ""):
            raise Refused(415, "Content-Encoding is not supported: send the body as it is")
        if self._length.isdecimal():
            self._check(int(self._length[:20]))

    async def is_read_to_its_end(self) -> bool:
        """Reads the rest of a small one: a connection that is closed over unread bytes loses the answer, too."""
        small = self._length.isdecimal() and int(self._length[:20]) <= _SMALL_BYTES
        ends = time.monotonic() + _SMALL_S
        try:
            while not self._complete and small:
                message = await within(ends - time.monotonic(), self._receive())
                if message["type"] == "http.disconnect":
                    break
                self._complete = not message.get("more_body", False)
        except asyncio.TimeoutError:
            pass
        return self._complete

    def _check(self, size: int) -> None:
        if size > self._most_bytes:
            raise Refused(413, f"Invalid request: the body has more than {self._most_bytes} bytes")

    async def receive(self) -> MutableMapping[str, Any]:
        """The next message, as ASGI has it."""
        if self._complete:  # nothing comes any more but that the client goes away
            return await self._receive()
        try:
            message = await within(self._ends - time.monotonic(), self._receive())
        except asyncio.TimeoutError:
            raise Refused(408, "The body came too slowly") from None
        self._bytes += len(message.get("body", b""))
        self._check(self._bytes)
        self._complete = not message.get("more_body", False)
        return message


def host_allowed(header: str | None, settings: ServeSettings) -> bool:
    """A page that rebinds its own name to our address is known by that name; addresses and localhost are no such."""
    if header is None:  # HTTP/1.0, which no browser speaks
        return True
    name = header.rsplit(":", 1)[0] if not header.endswith("]") else header
    name = name.strip("[]").lower().rstrip(".")
    allowed = {"localhost", settings.host.lower(), *(each.lower() for each in settings.allowed_hosts)}
    if name in allowed or "*" in allowed:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
