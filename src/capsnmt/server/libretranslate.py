"""LibreTranslate's API, as its clients know it.

Deliberate differences: HTML stays escaped, capital letters of a translation are not made small because the source has
none, a batch with `auto` gets the language of each of its texts, and what its parameters cannot be is an error 400.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from capsnmt.server.batching import Answer
from capsnmt.server.documents import MEDIA_TYPES
from capsnmt.server.errors import Refused, brief, missing
from capsnmt.server.fields import Fields, read_fields
from capsnmt.server.html import Markup
from capsnmt.server.languages import NOTHING_FOUND, Detected, detect, name_of, public_code
from capsnmt.server.models import Model
from capsnmt.server.state import AUTO, Server
from capsnmt.server.waiting import off_the_loop, while_connected

_FINAL = "!?.,;。"  # punctuation that a translation ends with exactly if its source does


@dataclass(frozen=True)
class Asked:
    """A request to /translate, checked."""

    texts: list[str]
    is_batch: bool
    source: str
    target: str
    is_html: bool
    alternatives: int


class LibreTranslate:
    """The endpoints; each takes a request and gives a response."""

    def __init__(self, server: Server) -> None:
        self.server = server

    async def translate(self, request: Request) -> Response:
        """POST /translate."""
        deadline = self.server.deadline()
        fields = await read_fields(request)
        key = self.server.admit(request, fields)
        asked = self._asked(fields)
        self.server.check_size(asked.texts, key)
        return JSONResponse(await while_connected(request, self._translated(asked, deadline)))

    async def detect(self, request: Request) -> Response:
        """POST /detect."""
        fields = await read_fields(request)
        key = self.server.admit(request, fields)
        text = fields.string("q")
        if not text:
            raise missing("q")
        self.server.check_size([text], key)
        found = detect(text, self.server.models.codes) or [NOTHING_FOUND]
        return JSONResponse([_detected_fields(each) for each in found])

    async def languages(self, request: Request) -> Response:
        """GET /languages."""
        return JSONResponse(self.server.models.listing())

    async def settings(self, request: Request) -> Response:
        """GET /frontend/settings."""
        models, settings = self.server.models, self.server.settings
        first = models.models[0].target
        return JSONResponse(
            {
                "charLimit": settings.limits.characters,
                "frontendTimeout": 500,
                "apiKeys": settings.keys is not None,
                "keyRequired": settings.key_required,
                "suggestions": False,
                "filesTranslation": True,
                "supportedFilesFormat": list(MEDIA_TYPES),
                "language": {
                    "source": {"code": AUTO, "name": "Auto Detect"},
                    "target": {"code": public_code(first), "name": name_of(first)},
                },
            }
        )

    async def health(self, request: Request) -> Response:
        """GET /health."""
        return JSONResponse({"status": "ok"})

    async def suggest(self, request: Request) -> Response:
        """POST /suggest: this server takes none."""
        raise Refused(403, "Suggestions are disabled on this server.")

    def _asked(self, fields: Fields) -> Asked:
        q = fields.get("q")
        if q is None or q == "" or q == []:
            raise missing("q")
        is_batch = isinstance(q, list)
        texts: list[Any] = list(q) if is_batch else [q]
        if not all(isinstance(text, str) for text in texts):
            raise Refused(400, "Invalid request: q parameter must be a string or a list of strings")
        if not fields.from_json:
            texts = ["\n".join(text.splitlines()) for text in texts]
        source, target = fields.string("source"), fields.string("target")
        for name, value in (("source", source), ("target", target)):
            if not value:
                raise missing(name)
        alternatives = self._alternatives(fields)
        if source.lower() != AUTO:
            source = self.server.known(source)
        target = self.server.known(target)
        form = fields.string("format") or "text"
        if form not in ("text", "html"):
            raise Refused(400, f"{brief(form)} format is not supported")
        return Asked(texts, is_batch, source.lower(), target, form == "html", alternatives)

    def _alternatives(self, fields: Fields) -> int:
        given = fields.get("alternatives")
        try:
            number = max(0, int(given)) if given not in (None, "") else 0
        except (ValueError, TypeError, OverflowError):
            raise Refused(400, "Invalid request: alternatives parameter is not a number") from None
        most = self.server.limits.alternatives
        if number > most:
            raise Refused(400, f"Invalid request: alternatives parameter must be <= {most}")
        return number

    async def _translated(self, asked: Asked, deadline: float) -> dict[str, Any]:
        found = [self.server.detect(text, asked.target) if asked.source == AUTO else None for text in asked.texts]
        sources = [asked.source if each is None else each.language for each in found]
        readings: list[list[str]] = [[text] for text in asked.texts]  # best first
        for source in dict.fromkeys(sources):
            places = [place for place, own in enumerate(sources) if own == source]
            texts = [asked.texts[place] for place in places]
            if not any(any(map(str.isalnum, text)) for text in texts):
                continue  # nothing to translate, so no way is needed
            models = self.server.path(source, asked.target)
            for place, reading in zip(places, await self._read(asked, models, texts, deadline), strict=True):
                readings[place] = reading
        answer: dict[str, Any] = {"translatedText": [reading[0] for reading in readings]}
        if asked.source == AUTO:
            answer["detectedLanguage"] = [_detected_fields(each) for each in found if each is not None]
        if asked.alternatives:
            answer["alternatives"] = [reading[1 : asked.alternatives + 1] for reading in readings]
        return answer if asked.is_batch else {name: values[0] for name, values in answer.items()}

    async def _read(self, asked: Asked, models: list[Model], texts: Sequence[str], deadline: float) -> list[list[str]]:
        if not models:
            return [[text] for text in texts]
        if asked.is_html:
            max_depth = self.server.limits.html_depth
            markups = await off_the_loop(
                sum(map(len, texts)), lambda: [Markup(text, max_depth=max_depth) for text in texts]
            )
            return [[text] for text in await self.server.way(models, deadline).markups(markups)]
        found = await self.server.way(models, deadline, num_best=asked.alternatives + 1).texts(texts)
        return [_readings(lines) for lines in found]


def _readings(lines: Sequence[tuple[Answer, str]]) -> list[str]:
    """A text's translations, all different: of all lines the best together, then the second best, and so on."""
    ranked = [
        [_fitted(text, answer.translation.source) for text, _ in answer.translation.hypotheses]
        or [answer.translation.text]
        for answer, _ in lines
    ]
    found: list[str] = []
    for rank in range(max(map(len, ranked))):
        chosen = (own[min(rank, len(own) - 1)] + end for own, (_, end) in zip(ranked, lines, strict=True))
        found.append("".join(chosen))
    return [found[0], *dict.fromkeys(text for text in found[1:] if text.strip() and text != found[0])]


def _fitted(translation: str, source: str) -> str:
    """A translation of one line with its source's final punctuation and capitals; the source, if there is none."""
    given, text = source.strip(), translation.strip()
    if not given or not text.strip(_FINAL):
        return source
    at = translation.find(text)
    lead, trail = translation[:at], translation[at + len(text) :]
    last = given[-1]
    if last in _FINAL and text[-1] != last and (text[-1] in _FINAL or text[-1].isalnum()):
        text = text.rstrip(_FINAL).rstrip() + last
    elif last not in _FINAL and text[-1] in _FINAL and not text.endswith(".."):
        text = text.rstrip(_FINAL)
    if given.isupper() and len(given) > 1:
        text = text.upper()
    return lead + text + trail


def _detected_fields(found: Detected) -> dict[str, Any]:
    return {"confidence": found.confidence, "language": public_code(found.language)}
