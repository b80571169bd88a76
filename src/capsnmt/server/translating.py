"""Texts of any form through the models: lines of a text, two models where English stands between, tags, files."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from capsnmt.decoding.translation import Status, Translation
from capsnmt.server.batching import Answer, Ask, Batcher
from capsnmt.server.documents import split_lines
from capsnmt.server.html import Markup
from capsnmt.server.models import Model
from capsnmt.server.waiting import off_the_loop
from capsnmt.text.sentences import split_sentences
from capsnmt.text.spans import restore

_WORST_LAST: tuple[Status, ...] = get_args(Status)


@dataclass(frozen=True)
class Way:
    """How one request is translated."""

    batcher: Batcher
    models: list[Model]  # in the order in which a line goes through them; none: it stays as it is
    deadline: float  # of time.monotonic
    num_best: int = 1
    routing: bool = False

    async def lines(self, lines: Sequence[str]) -> list[Answer]:
        """Each line through all models. N-best lists and scores are the last model's, routing is the first one's."""
        answers = [Answer(_unchanged(line)) for line in lines]
        for number, model in enumerate(self.models):
            last = number == len(self.models) - 1
            ask = Ask(model, self.num_best if last else 1, self.routing and number == 0)
            sources = [answer.translation.text if number else line for answer, line in zip(answers, lines, strict=True)]
            found = await self.batcher.translate(ask, sources, deadline=self.deadline)
            answers = found if number == 0 else [joined(*pair) for pair in zip(answers, found, strict=True)]
        return answers

    async def each(self, lines: Sequence[str]) -> AsyncGenerator[Answer, None]:
        """Like `lines`, but each as soon as it and those before it are there."""
        if not self.models:
            for line in lines:
                yield Answer(_unchanged(line))
            return
        first, *others = self.models
        ask = Ask(first, self.num_best if not others else 1, self.routing)
        job = self.batcher.submit(ask, lines)
        try:
            for place in range(len(lines)):
                answer = await self.batcher.in_time(job.one(place), self.deadline)
                for model in others:
                    following = Ask(model, self.num_best)
                    found = await self.batcher.translate(following, [answer.translation.text], deadline=self.deadline)
                    answer = joined(answer, found[0])
                yield answer
        finally:
            self.batcher.cancel(job)

    def check_lines(self, texts: Sequence[str]) -> None:
        """Whether texts may have so many lines; counting them is far cheaper than splitting. Raises Refused."""
        self.batcher.check_lines(sum(len(text.splitlines()) for text in texts))

    def split(self, texts: Sequence[str]) -> list[list[tuple[str, str]]]:
        """For each text its lines, and what ends each line. Raises Refused for too many."""
        self.check_lines(texts)
        return [split_lines(text) for text in texts]

    async def texts(self, texts: Sequence[str]) -> list[list[tuple[Answer, str]]]:
        """For each text its lines' answers, and what ends each line."""
        split = self.split(texts)
        answers = iter(await self.lines([line for lines in split for line, _ in lines]))
        return [[(next(answers), end) for _, end in lines] for lines in split]

    async def markups(self, markups: Sequence[Markup]) -> list[str]:
        """HTML: runs of text with their tags, and once more in pieces where a model has moved the tags."""
        size = sum(len(markup.source) for markup in markups)
        firsts = await self._texts_of([markup.lines for markup in markups])
        again = await off_the_loop(
            size, lambda: [markup.pieces(first) for markup, first in zip(markups, firsts, strict=True)]
        )
        seconds = await self._texts_of(again) if any(again) else again
        return await off_the_loop(
            size, lambda: [markup.finish(*found) for markup, *found in zip(markups, firsts, seconds, strict=True)]
        )

    async def _texts_of(self, groups: Sequence[Sequence[str]]) -> list[list[str]]:
        plain = replace(self, num_best=1, routing=False)
        found = iter(await plain.lines([line for group in groups for line in group]))
        return [[next(found).translation.text for _ in group] for group in groups]


def _unchanged(line: str) -> Translation:
    return Translation(line, line, None, (), "empty", ("same_language",))


def joined(first: Answer, second: Answer) -> Answer:
    """What two models said of one line, as one answer."""
    one, two = first.translation, second.translation
    status = max(one.status, two.status, key=_WORST_LAST.index)
    notes = tuple(sorted({*one.notes, *two.notes, "pivot"}))
    if "failed" in (one.status, two.status):  # half of the way is no translation
        return Answer(Translation(one.source, one.source, None, (), "failed", notes), first.routing)
    return Answer(replace(two, source=one.source, status=status, notes=notes), first.routing)


def sentences_of(line: str, model: Model) -> list[str]:
    """A line's sentences as the translator would split it; joined they are the line."""
    masked = model.translator.text.mask(line, {})
    sentences = split_sentences(masked.text, model.translator.language)
    return [restore(sentence, masked.spans).text for sentence in sentences]


def answer_fields(answer: Answer) -> dict[str, Any]:
    """One line's answer for JSON."""
    translation = answer.translation
    return {
        "source": translation.source,
        "text": translation.text,
        "score": finite(translation.score),
        "status": translation.status,
        "notes": list(translation.notes),
        "hypotheses": [{"text": text, "score": finite(score)} for text, score in translation.hypotheses],
        "routing": answer.routing,
    }


def finite(score: float | None) -> float | None:
    """JSON has no infinity: the score of what the model finds impossible is null."""
    return score if score is not None and abs(score) < float("inf") else None
