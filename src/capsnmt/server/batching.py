"""Micro-batching: lines of different clients go through a model together, and every client gets its own back.

All of it lives in the event loop but for the translating, which one thread does. Requests take turns line by line, so
that a long text does not hold up a short one; a line's result does not depend on its company.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from capsnmt.decoding.translation import TranslateOptions, Translation
from capsnmt.server.errors import Overloaded, TooLate
from capsnmt.server.metrics import Metrics
from capsnmt.server.models import Model
from capsnmt.server.routing import routing_of
from capsnmt.server.settings import Batching, Limits
from capsnmt.server.waiting import within

_FIRST_GUESS_CHARACTERS_PER_S = 2000.0


@dataclass(frozen=True)
class Ask:
    """What lines must have in common to be translated together."""

    model: Model
    num_best: int = 1
    routing: bool = False


@dataclass(frozen=True)
class Answer:
    """One line's result."""

    translation: Translation
    routing: list[dict[str, Any]] | None = None


_T = TypeVar("_T")
Place = tuple[str, "asyncio.Future[Answer]"]


@dataclass(eq=False)
class _Work:
    """What is left to do of one request."""

    ask: Ask
    places: deque[Place] = field(default_factory=deque)


class Batcher:
    """The queue before the models."""

    def __init__(self, batching: Batching, limits: Limits, metrics: Metrics) -> None:
        self._batching = batching
        self._limits = limits
        self._metrics = metrics
        self._turns: deque[_Work] = deque()
        self._waiting_characters = 0
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="translate")
        self._characters_per_s = _FIRST_GUESS_CHARACTERS_PER_S
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to work; needs a running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Ends after the batch that is under way; who still waits is told to come again."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for work in self._turns:
            for _, future in work.places:
                if not future.done():
                    future.set_exception(Overloaded(1.0))
        self._turns.clear()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)

    def submit(self, ask: Ask, lines: Sequence[str]) -> list[asyncio.Future[Answer]]:
        """Puts lines into the queue. A cancelled future is not translated any more. Raises Overloaded."""
        characters = sum(map(len, lines))
        full = len(self._turns) >= self._limits.waiting_requests
        if full or self._waiting_characters + characters > self._limits.waiting_characters:
            self._metrics.refused.labels("queue").inc()
            raise Overloaded(self._waiting_characters / self._characters_per_s)
        loop = asyncio.get_running_loop()
        work = _Work(ask, deque((line, loop.create_future()) for line in lines))
        futures = [future for _, future in work.places]
        if futures:
            self._turns.append(work)
            self._waiting_characters += characters
            self._measure_queue()
            self._arrived.set()
        return futures

    async def translate(self, ask: Ask, lines: Sequence[str], *, deadline: float) -> list[Answer]:
        """All lines of one request, until `deadline` (of time.monotonic). Raises Overloaded or TooLate."""
        futures = self.submit(ask, lines)
        try:
            return await self.in_time(asyncio.gather(*futures), deadline)
        finally:
            for future in futures:
                future.cancel()

    async def in_time(self, answers: asyncio.Future[_T], deadline: float) -> _T:
        """Waits until `deadline` (of time.monotonic). Raises TooLate."""
        try:
            return await within(deadline - time.monotonic(), answers)
        except asyncio.TimeoutError:
            self._metrics.refused.labels("deadline").inc()
            raise TooLate(self._waiting_characters / self._characters_per_s) from None

    async def _run(self) -> None:
        while True:
            await self._arrived.wait()
            if self._batching.wait_s and self._batching.lines > 1 and self._count() < self._batching.lines:
                await asyncio.sleep(self._batching.wait_s)
            ask, places = self._take()
            if ask is None:
                self._arrived.clear()
            else:
                await self._translate_batch(ask, places)

    def _count(self) -> int:
        return sum(len(work.places) for work in self._turns)

    def _take(self) -> tuple[Ask | None, list[Place]]:
        """The next batch: a line of each request in turn, of those that can go with the first."""
        ask: Ask | None = None
        places: list[Place] = []
        characters = 0
        others: deque[_Work] = deque()
        while self._turns and len(places) < self._batching.lines and characters < self._batching.characters:
            work = self._turns.popleft()
            if ask is not None and work.ask != ask:
                others.append(work)
                continue
            line, future = work.places.popleft()
            self._waiting_characters -= len(line)
            if work.places:
                self._turns.append(work)
            if future.done():  # its client is gone, or too late
                continue
            ask = work.ask
            places.append((line, future))
            characters += len(line)
        self._turns.extendleft(reversed(others))  # they have waited longest
        self._measure_queue()
        return ask, places

    async def _translate_batch(self, ask: Ask, places: Sequence[Place]) -> None:
        lines = [line for line, _ in places]
        started = time.perf_counter()
        loop = asyncio.get_running_loop()
        try:
            answers = await loop.run_in_executor(self._thread, _translated, ask, lines)
        except Exception as error:
            for _, future in places:
                if not future.done():
                    future.set_exception(error)
            return
        elapsed_s = time.perf_counter() - started
        for (_, future), answer in zip(places, answers, strict=True):
            if not future.done():
                future.set_result(answer)
        characters = sum(map(len, lines))
        self._characters_per_s += 0.1 * (characters / max(elapsed_s, 1e-6) - self._characters_per_s)
        self._metrics.measure_batch(lines=len(lines), characters=characters, elapsed_s=elapsed_s)

    def _measure_queue(self) -> None:
        self._metrics.waiting_requests.set(len(self._turns))
        self._metrics.waiting_characters.set(self._waiting_characters)


def _translated(ask: Ask, lines: Sequence[str]) -> list[Answer]:
    """In the thread: one batch through one model."""
    beam = ask.model.translator.decoding.beam
    options = TranslateOptions(num_best=min(ask.num_best, beam))
    found = ask.model.translator.translate_batch(lines, options)
    routes = ask.routing and ask.model.routes
    return [Answer(each, routing_of(ask.model, each.source) if routes else None) for each in found]
