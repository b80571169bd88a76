"""The process: uvicorn, its signals, and connections that never say what they want."""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import uvicorn
from sse_starlette.sse import AppStatus
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from capsnmt.errors import CapsNMTError
from capsnmt.server import logs
from capsnmt.server.app import build_app
from capsnmt.server.settings import ServeSettings
from capsnmt.server.state import Server

log = logging.getLogger(__name__)

_LAST_ANSWERS_S = 2  # after the grace: for telling those who still wait
_IDLE_S = 15  # a connection without a request
_HEADERS_BYTES = 128 << 10  # some clients send the text in the query string


def serve(settings: ServeSettings) -> None:
    """Runs until SIGTERM or Ctrl-C, which let what is under way end; SIGHUP loads the models anew."""
    logs.set_up(access_log=settings.access_log)
    listener = _listen(settings.host, settings.port)  # before the models: a port in use is an error at once
    server = Server(settings)
    AppStatus.enable_automatic_graceful_drain = False  # it would cut streams as soon as the server is told to stop
    config = uvicorn.Config(
        build_app(server),
        http=_protocol(settings.limits.body_s),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=settings.public_url is not None,
        timeout_keep_alive=_IDLE_S,
        timeout_graceful_shutdown=math.ceil(settings.grace_s) + _LAST_ANSWERS_S,
        h11_max_incomplete_event_size=_HEADERS_BYTES,
    )
    listener.listen(config.backlog)  # before it is told: who calls now waits, and is not refused
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    sys.stderr.write(f"CapsNMT listens on http://{shown}:{port}\n")
    sys.stderr.flush()
    asyncio.run(_run(Runner(config, server), server, listener))


class Runner(uvicorn.Server):
    """uvicorn's, but SIGTERM ends it as done: it would raise the signal again when all is over, and die of it."""

    def __init__(self, config: uvicorn.Config, server: Server) -> None:
        super().__init__(config)
        self._server = server

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """What is under way may end; what does not end in time is told to come again."""
        grace_s = self._server.settings.grace_s
        end = asyncio.get_running_loop().call_later(grace_s, self._server.batcher.give_up)
        await super().shutdown(sockets)
        end.cancel()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """`_run` listens to them."""
        yield


async def _run(runner: Runner, server: Server, listener: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    reloading: set[asyncio.Task[bool]] = set()

    def reload() -> None:
        if not reloading:
            task = loop.create_task(server.reload())
            reloading.add(task)
            task.add_done_callback(reloading.discard)

    with suppress(AttributeError, NotImplementedError):  # Windows has neither SIGHUP nor handlers in the loop
        for ending in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(ending, runner.handle_exit, ending, None)
        loop.add_signal_handler(signal.SIGHUP, reload)
    await runner.serve(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        # Named, or asyncio leaves Nagle's algorithm on: the second packet of an answer on a connection that was kept
        # would wait 40 ms for the first one's acknowledgement.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # so that a restart serves at once
        listener.bind(address)
    except OSError as error:
        raise CapsNMTError(f"cannot listen on {host} port {port}: {error.strerror or error}") from None
    return listener


def _protocol(headers_s: float) -> type[H11Protocol]:
    """uvicorn's, but a connection that sends no whole request in time is closed: thousands of them cost nothing."""

    class Protocol(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._expect_request()

        def data_received(self, data: bytes) -> None:
            # On a connection that was kept, uvicorn stops its own timer at the first byte of the next request.
            is_next = self.cycle is not None and self.cycle.response_complete
            if is_next and self._cycle_before is not self.cycle:
                self._expect_request()
            super().data_received(data)

        def _expect_request(self) -> None:
            self._cycle_before = self.cycle
            self.loop.call_later(headers_s, self._close_if_silent, self.cycle)

        def _close_if_silent(self, before: RequestResponseCycle | None) -> None:
            if self.cycle is before and not self.transport.is_closing():
                self.transport.close()

    return Protocol
