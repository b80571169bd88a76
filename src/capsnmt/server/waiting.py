"""Waiting with an end: a time that is over, or a client that has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from starlette.requests import Request

from capsnmt.server.errors import ClientGoneError

_T = TypeVar("_T")

_LARGE_CHARACTERS = 20_000


async def within(seconds: float, work: Awaitable[_T]) -> _T:
    """Waits so long for `work` and then cancels it. Raises asyncio.TimeoutError.

    Not asyncio.wait_for, which before Python 3.12 forgets that it was cancelled if `work` ends at the same moment.
    """
    task = asyncio.ensure_future(work)
    task.add_done_callback(_retrieved)
    try:
        await asyncio.wait({task}, timeout=max(0.0, seconds))
        if not task.done():
            raise asyncio.TimeoutError
        return task.result()
    finally:
        task.cancel()


def _retrieved(task: asyncio.Future[Any]) -> None:
    """How it ended after nobody waited any more is of no interest; asyncio would log it as forgotten."""
    if not task.cancelled():
        task.exception()


async def off_the_loop(characters: int, work: Callable[[], _T]) -> _T:
    """Does work on a large text in a thread, so that no other client waits for it. A small one is not worth the way."""
    return work() if characters < _LARGE_CHARACTERS else await asyncio.to_thread(work)


async def while_connected(request: Request, work: Awaitable[_T]) -> _T:
    """Waits for `work`, and gives it up as soon as the client goes away. Raises ClientGoneError."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError
        return task.result()
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
