"""Micro-batching: lines of different clients go through a model together, and every client gets its own back.

All of it lives in the event loop but for the translating, which one thread does. Requests take turns line by line, and
a long line piece by piece, so that a long text does not hold up a short one; a line's result does not depend on its
company.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from capsnmt.decoding.line_batch import one_line
from capsnmt.decoding.segments import Segment
from capsnmt.decoding.translation import TranslateOptions, Translation
from capsnmt.server.errors import ClientGoneError, Overloaded, TooLate, too_many_lines
from capsnmt.server.long_lines import LONG_CHARACTERS, LongLine, tokens_of
from capsnmt.server.metrics import Metrics
from capsnmt.server.models import Model
from capsnmt.server.routing import routing_of
from capsnmt.server.settings import Batching, Limits
from capsnmt.server.waiting import within

_FIRST_GUESS_CHARACTERS_PER_S = 2000.0

_T = TypeVar("_T")


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


@dataclass(frozen=True, eq=False)
class Piece:
    """What the thread does at once: a line, or some chunks of a long one."""

    place: int  # of the line in its request
    line: str
    characters: int
    long: LongLine | None = None
    chunks: Sequence[Segment] = ()


class Job:
    """The lines of one request: what is left to do, and what is done."""

    def __init__(self, ask: Ask, lines: Sequence[str]) -> None:
        self.ask = ask
        self.answers: list[Answer | None] = [
            None if _has_something_to_translate(line) else _left_alone(ask, line) for line in lines
        ]
        self.pieces = deque(
            Piece(place, line, len(line) + 1)
            for place, (line, answer) in enumerate(zip(lines, self.answers, strict=True))
            if answer is None
        )
        self.waiting_characters = sum(piece.characters for piece in self.pieces)
        self.error: Exception | None = None
        self._unanswered = len(self.pieces)
        self._progress = asyncio.Event()

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is to be done any more."""
        return self._unanswered == 0 or self.error is not None

    def take(self) -> Piece:
        """Its next piece."""
        piece = self.pieces.popleft()
        self.waiting_characters -= piece.characters
        return piece

    def put_first(self, pieces: Sequence[Piece]) -> None:
        """More to do, before all else: of a line that has begun."""
        self.pieces.extendleft(reversed(pieces))
        self.waiting_characters += sum(piece.characters for piece in pieces)

    def answer(self, place: int, answer: Answer) -> None:
        """One of its lines is done."""
        self.answers[place] = answer
        self._unanswered -= 1
        self._progress.set()

    def fail(self, error: Exception) -> None:
        """Ends it; who waits for it gets the error."""
        self.error = error
        self.pieces.clear()
        self.waiting_characters = 0
        self._progress.set()

    async def all(self) -> list[Answer]:
        """The answers to all lines."""
        while not self.is_over:
            await self._next_progress()
        return [await self.one(place) for place in range(len(self.answers))]

    async def one(self, place: int) -> Answer:
        """The answer to one line."""
        while (answer := self.answers[place]) is None:
            if self.error is not None:
                raise self.error
            await self._next_progress()
        return answer

    async def _next_progress(self) -> None:
        self._progress.clear()
        await self._progress.wait()


class Batcher:
    """The queue before the models."""

    def __init__(self, batching: Batching, limits: Limits, metrics: Metrics) -> None:
        self._batching = batching
        self._limits = limits
        self._metrics = metrics
        self._turns: deque[Job] = deque()  # those with pieces that wait
        self._under_way: set[Job] = set()
        self._gave_up = False
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
        self.give_up()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)

    def give_up(self) -> None:
        """Tells all who wait, and all who come from now on, to come again."""
        self._gave_up = True
        for job in list(self._under_way):
            self._end(job, Overloaded(1.0))

    def check_lines(self, lines: int) -> None:
        """Whether a request may have so many. Raises Refused."""
        if lines > self._limits.lines:
            raise too_many_lines(lines, self._limits.lines)

    def submit(self, ask: Ask, lines: Sequence[str]) -> Job:
        """Puts lines into the queue; `cancel` takes them out again. Raises Overloaded, and Refused for too many."""
        self.check_lines(len(lines))
        job = Job(ask, lines)
        if job.is_over:
            return job
        waiting = self._waiting_characters()
        full = len(self._turns) >= self._limits.waiting_requests or self._gave_up
        if full or waiting + job.waiting_characters > self._limits.waiting_characters:
            self._metrics.refused.labels("queue").inc()
            raise Overloaded(waiting / self._characters_per_s)
        self._under_way.add(job)
        self._queue(job)
        return job

    def cancel(self, job: Job) -> None:
        """Nobody waits for it any more: what is left of it leaves the queue."""
        if not job.is_over:
            self._end(job, ClientGoneError())

    async def translate(self, ask: Ask, lines: Sequence[str], *, deadline: float) -> list[Answer]:
        """All lines of one request, until `deadline` (of time.monotonic). Raises Overloaded or TooLate."""
        job = self.submit(ask, lines)
        try:
            return await self.in_time(job.all(), deadline)
        finally:
            self.cancel(job)

    async def in_time(self, answers: Awaitable[_T], deadline: float) -> _T:
        """Waits until `deadline` (of time.monotonic). Raises TooLate."""
        try:
            return await within(deadline - time.monotonic(), answers)
        except asyncio.TimeoutError:
            self._metrics.refused.labels("deadline").inc()
            raise TooLate(self._waiting_characters() / self._characters_per_s) from None

    async def _run(self) -> None:
        while True:
            await self._arrived.wait()
            if self._batching.wait_s and self._batching.lines > 1 and self._count() < self._batching.lines:
                await asyncio.sleep(self._batching.wait_s)
            ask, batch = self._take()
            if ask is None:
                self._arrived.clear()
            else:
                await self._translate_batch(ask, batch)

    def _count(self) -> int:
        return sum(len(job.pieces) for job in self._turns)

    def _waiting_characters(self) -> int:
        return sum(job.waiting_characters for job in self._turns)

    def _take(self) -> tuple[Ask | None, list[tuple[Job, Piece]]]:
        """The next batch: a piece of each request in turn, of those that can go with the first."""
        ask: Ask | None = None
        batch: list[tuple[Job, Piece]] = []
        characters = 0
        others: deque[Job] = deque()
        while self._turns and len(batch) < self._batching.lines and characters < self._batching.characters:
            job = self._turns.popleft()
            if ask is not None and job.ask != ask:
                others.append(job)
                continue
            ask = job.ask
            piece = job.take()
            batch.append((job, piece))
            characters += piece.characters
            if job.pieces:
                self._turns.append(job)
        self._turns.extendleft(reversed(others))  # they have waited longest
        self._measure_queue()
        return ask, batch

    async def _translate_batch(self, ask: Ask, batch: Sequence[tuple[Job, Piece]]) -> None:
        pieces = [piece for _, piece in batch]
        started = time.perf_counter()
        loop = asyncio.get_running_loop()
        try:
            outcomes = await loop.run_in_executor(self._thread, _worked_on, ask, pieces)
        except Exception as error:
            for job, _ in batch:
                if not job.is_over:
                    self._end(job, error)
            return
        elapsed_s = time.perf_counter() - started
        for (job, piece), outcome in zip(batch, outcomes, strict=True):
            if not job.is_over:
                self._note(job, piece, outcome)
        searched = [piece for piece in pieces if not _is_to_be_cut(piece)]
        characters = sum(piece.characters for piece in searched)
        if characters:
            self._characters_per_s += 0.1 * (characters / max(elapsed_s, 1e-6) - self._characters_per_s)
            self._metrics.measure_batch(lines=len(searched), characters=characters, elapsed_s=elapsed_s)

    def _note(self, job: Job, piece: Piece, outcome: Answer | Sequence[Piece]) -> None:
        """A piece of a job is done: it was its line's last, or more of the line is to follow."""
        if isinstance(outcome, Answer):
            job.answer(piece.place, outcome)
            if job.is_over:
                self._under_way.discard(job)
        elif outcome:
            job.put_first(outcome)
            self._queue(job)

    def _queue(self, job: Job) -> None:
        if job not in self._turns:
            self._turns.append(job)
        self._measure_queue()
        self._arrived.set()

    def _end(self, job: Job, error: Exception) -> None:
        job.fail(error)
        self._under_way.discard(job)
        if job in self._turns:
            self._turns.remove(job)
        self._measure_queue()

    def _measure_queue(self) -> None:
        self._metrics.waiting_requests.set(len(self._turns))
        self._metrics.waiting_characters.set(self._waiting_characters())


def _has_something_to_translate(line: str) -> bool:
    return any(map(str.isalnum, line))


def _left_alone(ask: Ask, line: str) -> Answer:
    """What the translator answers without a look into the model; there may be very many such lines."""
    notes = ("invalid_characters",) if "\ufffd" in line else ()
    translation = Translation(line, one_line(line.rstrip("\r\n")), None, (), "empty", notes)
    return Answer(translation, [] if ask.routing and ask.model.routes else None)


def _is_to_be_cut(piece: Piece) -> bool:
    return piece.long is None and len(piece.line) > LONG_CHARACTERS


def _worked_on(ask: Ask, pieces: Sequence[Piece]) -> list[Answer | list[Piece]]:
    """In the thread: one batch through one model. Of each piece its line's answer, or what is to be done for it yet."""
    options = TranslateOptions(num_best=min(ask.num_best, ask.model.translator.decoding.beam))
    short = [piece.line for piece in pieces if len(piece.line) <= LONG_CHARACTERS]
    translations = iter(ask.model.translator.translate_batch(short, options) if short else ())
    chunks = [chunk for piece in pieces for chunk in piece.chunks]
    if chunks:
        ask.model.line_batch(options).search(chunks)
    return [
        _answer(ask, next(translations)) if len(piece.line) <= LONG_CHARACTERS else _long(ask, options, piece)
        for piece in pieces
    ]


def _long(ask: Ask, options: TranslateOptions, piece: Piece) -> Answer | list[Piece]:
    if piece.long is None:
        line = LongLine(ask.model.line_batch(options), piece.line)
        following = line.pieces()
    else:
        line = piece.long
        following = line.after_a_piece()
    if line.is_searched:
        return _answer(ask, line.finish())
    tokens = sum(map(tokens_of, following))
    return [
        Piece(piece.place, piece.line, max(1, len(piece.line) * tokens_of(chunks) // tokens), line, chunks)
        for chunks in following
    ]


def _answer(ask: Ask, translation: Translation) -> Answer:
    routes = ask.routing and ask.model.routes
    return Answer(translation, routing_of(ask.model, translation.source) if routes else None)
