"""What all endpoints share: the models, the queue before them, who may ask, and the limits."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from starlette.requests import Request

from capsnmt.errors import CapsNMTError
from capsnmt.server.batching import Batcher
from capsnmt.server.downloads import Downloads
from capsnmt.server.errors import Refused, brief, too_large
from capsnmt.server.fields import Fields
from capsnmt.server.keys import Key, Keys
from capsnmt.server.languages import NOTHING_FOUND, Detected, detect, inner_code, name_of, public_code
from capsnmt.server.limits import Rates
from capsnmt.server.metrics import Metrics
from capsnmt.server.models import Model, ModelSet, load_models
from capsnmt.server.settings import ServeSettings
from capsnmt.server.translating import Way

log = logging.getLogger(__name__)

AUTO = "auto"


class Server:
    """The state of one running server. All of it is used in the event loop only."""

    def __init__(self, settings: ServeSettings) -> None:
        self.settings = settings
        self.limits = settings.limits
        self.models: ModelSet = load_models(settings.models, threads=settings.threads)
        self.keys = Keys.read(settings.keys) if settings.keys else None
        self.metrics = Metrics()
        self.rates = Rates()
        self.downloads = Downloads(max_bytes=self.limits.downloads_bytes, lifetime_s=self.limits.downloads_s)
        self.batcher: Batcher  # made in the event loop that it works in

    async def start(self) -> None:
        """Opens the queue."""
        self.batcher = Batcher(self.settings.batching, self.limits, self.metrics)
        self.batcher.start()

    async def close(self) -> None:
        """Ends the queue."""
        await self.batcher.close()

    async def reload(self) -> bool:
        """Loads models and keys anew. What is under way ends with the old ones; a failure keeps them."""
        loop = asyncio.get_running_loop()
        try:
            keys = Keys.read(self.settings.keys) if self.settings.keys else None
            models = await loop.run_in_executor(
                None, lambda: load_models(self.settings.models, threads=self.settings.threads)
            )
        except CapsNMTError as error:
            log.error("not reloaded, the old models stay: %s", error)
            self.metrics.reloads.labels("failed").inc()
            return False
        self.models, self.keys = models, keys
        self.metrics.reloads.labels("done").inc()
        log.info("reloaded")
        return True

    def admit(self, request: Request, fields: Fields) -> Key | None:
        """Whether this client may ask now. A key that is not needed is ignored. Raises Refused."""
        key = self._key(request, fields)
        if key is not None:
            self._take(f"key {key.sha256}", key.requests_per_minute or self.limits.requests_per_minute)
        else:
            self._take(request.client.host if request.client else "", self.limits.requests_per_minute)
        return key

    def _key(self, request: Request, fields: Fields) -> Key | None:
        if self.keys is None:
            return None
        given = fields.string("api_key") or request.query_params.get("api_key", "")
        bearer = request.headers.get("authorization", "")
        if not given and bearer.lower().startswith("bearer "):
            given = bearer[7:].strip()
        if given:
            key = self.keys.find(given)
            if key is None:
                raise Refused(403, "Invalid API key")
            return key
        if self.settings.key_required:
            url = self.settings.key_url
            how = f"Visit {url} to get an API key" if url else "Please contact the server operator to get an API key"
            raise Refused(400, how)
        return None

    def _take(self, client: str, per_minute: int) -> None:
        try:
            self.rates.take(client, per_minute)
        except Refused:
            self.metrics.refused.labels("rate").inc()
            raise

    def check_size(self, texts: Sequence[str], key: Key | None) -> None:
        """Items and characters of a request. Raises Refused."""
        if len(texts) > self.limits.items:
            raise too_large(len(texts), self.limits.items)
        most = key.characters if key is not None and key.characters else self.limits.characters
        characters = sum(map(len, texts))
        if characters > most:
            raise too_large(characters, most)

    def check_file_size(self, text: str, key: Key | None) -> None:
        """Characters of a file: a key's limit holds for files, too; the server's own has bytes for them."""
        if key is not None and key.characters and len(text) > key.characters:
            raise too_large(len(text), key.characters)

    def detect(self, text: str, target: str) -> Detected:
        """The likeliest language of a text among those that are served; of several the one that leads to `target`."""
        found = detect(text, self.models.codes)
        likeliest = [each for each in found if each.confidence == found[0].confidence]
        of_use = (each for each in likeliest if self.models.path(each.language, target))
        return next(of_use, likeliest[0] if likeliest else NOTHING_FOUND)

    def known(self, code: str) -> str:
        """A language that a client named, as we call it. Raises Refused."""
        inner = inner_code(code)
        if inner not in self.models.codes:
            raise Refused(400, f"{brief(code)} is not supported")
        return inner

    def path(self, source: str, target: str) -> list[Model]:
        """The models from one language to another. Raises Refused."""
        path = self.models.path(source, target)
        if path is None:
            raise Refused(
                400,
                f"{name_of(target)} ({public_code(target)}) is not available as a target language "
                f"from {name_of(source)} ({public_code(source)})",
            )
        return path

    def deadline(self) -> float:
        """Of a request that arrives now, as time.monotonic has it."""
        return time.monotonic() + self.limits.deadline_s

    def way(self, models: list[Model], deadline: float, *, num_best: int = 1, routing: bool = False) -> Way:
        """How a request is translated."""
        return Way(self.batcher, models, deadline, num_best, routing)
