"""Our own API: what LibreTranslate's cannot say. N-best lists with scores, the status of each line, the routing."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sse_starlette import EventSourceResponse, JSONServerSentEvent
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from capsnmt.server.batching import Answer
from capsnmt.server.errors import Refused, error_event, missing
from capsnmt.server.fields import Fields, parse_json
from capsnmt.server.languages import Detected, public_code
from capsnmt.server.models import Model
from capsnmt.server.state import AUTO, Server
from capsnmt.server.translating import Way, answer_fields, sentences_of
from capsnmt.server.waiting import off_the_loop, while_connected


class V1Request(BaseModel):
    """POST /v1/translate."""

    model_config = ConfigDict(extra="forbid", strict=True)

    q: str | Annotated[list[str], Field(min_length=1)] = Field(description="a text, or several")
    source: str = Field(AUTO, description="language code, or auto")
    target: str = Field(description="language code")
    n_best: int = Field(1, ge=1, description="translations of each line; at most the model's beam")
    routing: bool = Field(False, description="which capsule takes which word, in each iteration")
    stream: bool = Field(False, description="server-sent events, one for each sentence")
    api_key: str = ""


class V1:
    """The endpoints of our own API."""

    def __init__(self, server: Server) -> None:
        self.server = server

    async def translate(self, request: Request) -> Response:
        """POST /v1/translate."""
        started = time.perf_counter()
        deadline = self.server.deadline()
        values = parse_json(await request.body())
        key = self.server.admit(request, Fields(values, True))
        asked = _parsed(values)
        texts = asked.q if isinstance(asked.q, list) else [asked.q]
        self.server.check_size(texts, key)
        if asked.n_best > self.server.limits.alternatives + 1:
            raise Refused(400, f"Invalid request: n_best must be <= {self.server.limits.alternatives + 1}")
        found, models = self._models(asked, texts)
        way = self.server.way(models, deadline, num_best=asked.n_best, routing=asked.routing)
        head = self._head(asked, found, models)
        if asked.stream:
            return await self._stream(request, way, texts, head, started)
        lines = await while_connected(request, way.texts(texts))
        translations = [
            {
                "text": "".join(answer.translation.text + end for answer, end in each),
                "lines": [answer_fields(answer) | {"end": end} for answer, end in each],
            }
            for each in lines
        ]
        return JSONResponse({**head, "translations": translations, "elapsed_ms": _ms_since(started)})

    async def models(self, request: Request) -> Response:
        """GET /v1/models."""
        return JSONResponse(
            [
                {
                    "name": model.name,
                    "source": public_code(model.source),
                    "target": public_code(model.target),
                    "system": model.engine.manifest.system,
                    "precision": model.engine.manifest.precision,
                    "beam": model.translator.decoding.beam,
                    "routing": model.routes,
                }
                for model in self.server.models.models
            ]
        )

    def _models(self, asked: V1Request, texts: Sequence[str]) -> tuple[Detected | None, list[Model]]:
        found: Detected | None = None
        target = self.server.known(asked.target)
        if asked.source.lower() == AUTO:
            found = self.server.detect("\n".join(texts), target)
            source = found.language if found.confidence > 0 else target  # without a letter nothing is translated
        else:
            source = self.server.known(asked.source)
        return found, self.server.path(source, target)

    def _head(self, asked: V1Request, found: Detected | None, models: Sequence[Model]) -> dict[str, Any]:
        target = self.server.known(asked.target)
        path = [*(model.source for model in models), target]
        head: dict[str, Any] = {"path": [public_code(code) for code in path]}
        if found is not None:
            head["detected"] = {"language": public_code(found.language), "confidence": found.confidence}
        return head

    async def _stream(
        self, request: Request, way: Way, texts: Sequence[str], head: dict[str, Any], started: float
    ) -> Response:
        """Server-sent events; what goes wrong before the first sentence is an answer with its own status."""
        places = await off_the_loop(sum(map(len, texts)), lambda: _places(way, texts))
        answers = way.each([place.sentence for place in places])
        first = await while_connected(request, answers.__anext__())
        return EventSourceResponse(_events(head, places, first, answers, started), ping=15)


class _Place(NamedTuple):
    """A sentence of a stream, and where it stands."""

    item: int
    line: int
    sentence: str
    end: str


def _places(way: Way, texts: Sequence[str]) -> list[_Place]:
    return [
        _Place(item, number, sentence, end if last else "")
        for item, lines in enumerate(way.split(texts))
        for number, (line, end) in enumerate(lines)
        for sentence, last in _marked_last(sentences_of(line, way.models[0]) if way.models else [line])
    ]


async def _events(
    head: dict[str, Any],
    places: Sequence[_Place],
    first: Answer,
    answers: AsyncGenerator[Answer, None],
    started: float,
) -> AsyncIterator[JSONServerSentEvent]:
    """`start`, one `sentence` after the other, `done`; `error` ends the stream."""
    async with aclosing(answers):
        yield JSONServerSentEvent(head, event="start")
        try:
            for number, place in enumerate(places):
                answer = await answers.__anext__() if number else first
                fields = {"item": place.item, "line": place.line, **answer_fields(answer), "end": place.end}
                yield JSONServerSentEvent(fields, event="sentence")
        except Refused as error:
            yield JSONServerSentEvent(error_event(error), event="error")
            return
        yield JSONServerSentEvent({"elapsed_ms": _ms_since(started)}, event="done")


def _parsed(values: dict[str, Any]) -> V1Request:
    """Checked, with an error that names the parameter and nothing that stood in it."""
    try:
        asked = V1Request.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        name = str(first["loc"][0]) if first["loc"] else ""
        if first["type"] == "missing":
            raise missing(name) from None
        if first["type"] == "extra_forbidden":
            known = ", ".join(V1Request.model_fields)
            raise Refused(400, f"Invalid request: unknown parameter; known are {known}") from None
        raise Refused(400, f"Invalid request: {name} parameter: {first['msg']}") from None
    if asked.q == "":
        raise missing("q")
    return asked


def _marked_last(sentences: Sequence[str]) -> list[tuple[str, bool]]:
    *others, last = sentences or [""]
    return [*((sentence, False) for sentence in others), (last, True)]


def _ms_since(started: float) -> float:
    return round(1000 * (time.perf_counter() - started), 1)
