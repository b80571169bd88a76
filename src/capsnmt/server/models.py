"""The models that are served, and the ways between languages that they give."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from capsnmt.decoding.line_batch import LineBatch
from capsnmt.decoding.translation import TranslateOptions
from capsnmt.decoding.translator import LineTranslator
from capsnmt.errors import CapsNMTError
from capsnmt.runtime.engine import OnnxEngine
from capsnmt.runtime.manifest import ENCODE_ROUTING, load_runtime_text
from capsnmt.server.languages import inner_code, load_detector, name_of, public_code
from capsnmt.text.pipeline import TextPipeline
from capsnmt.zoo import model_folder

log = logging.getLogger(__name__)

PIVOT = "en"


@dataclass(frozen=True, eq=False)
class Model:
    """One model folder, loaded."""

    name: str
    source: str
    target: str
    engine: OnnxEngine
    text: TextPipeline
    translator: LineTranslator

    @property
    def routes(self) -> bool:
        """Whether it can say which capsule took which word."""
        return ENCODE_ROUTING in self.engine.manifest.graphs

    def line_batch(self, options: TranslateOptions) -> LineBatch:
        """The steps of its translator, for those who take them one by one."""
        translator = self.translator
        return LineBatch(
            engine=translator.engine,
            text=translator.text,
            language=translator.language,
            batch_tokens=translator.batch_tokens,
            options=options,
            settings=translator.decoding,
            first_line=0,
        )


class ModelSet:
    """All models of a server. It never changes: a reload makes a new one."""

    def __init__(self, models: Sequence[Model]) -> None:
        self._pairs: dict[tuple[str, str], Model] = {}
        for model in models:
            if (model.source, model.target) in self._pairs:
                raise CapsNMTError(f"two models translate {model.source}-{model.target}: serve one of them")
            self._pairs[model.source, model.target] = model
        self.codes = sorted({code for pair in self._pairs for code in pair})
        self.sources = [code for code in self.codes if any(source == code for source, _ in self._pairs)]

    @property
    def models(self) -> list[Model]:
        """In the order in which they were given."""
        return list(self._pairs.values())

    def path(self, source: str, target: str) -> list[Model] | None:
        """The models to go through: none for the same language, two through English; None where there is no way."""
        if source == target:
            return []
        direct = self._pairs.get((source, target))
        if direct is not None:
            return [direct]
        first, second = self._pairs.get((source, PIVOT)), self._pairs.get((PIVOT, target))
        return [first, second] if first is not None and second is not None else None

    def targets(self, source: str) -> list[str]:
        """What a language can be translated to; as LibreTranslate lists them, with itself."""
        return [target for target in self.codes if self.path(source, target) is not None]

    def listing(self) -> list[dict[str, object]]:
        """The answer to GET /languages."""
        return [
            {
                "code": public_code(source),
                "name": name_of(source),
                "targets": [public_code(target) for target in self.targets(source)],
            }
            for source in self.codes
        ]


def load_models(folders: Sequence[str | Path | None], *, threads: int | None = None) -> ModelSet:
    """Loads exported model folders, each of which must have its `runtime/`, and what detects languages."""
    load_detector()
    return ModelSet([_load(model_folder(folder), threads) for folder in folders])


def _load(folder: Path, threads: int | None) -> Model:
    engine = OnnxEngine.load(folder, threads=threads)
    manifest = engine.manifest
    text = load_runtime_text(folder, manifest)
    translator = LineTranslator(
        engine=engine, text=text, decoding=manifest.decoding, language=manifest.languages.source
    )
    source, target = inner_code(manifest.languages.source), inner_code(manifest.languages.target)
    # The first sentence is the slowest: better now than in somebody's request.
    translator.translate("1 a")
    if ENCODE_ROUTING in manifest.graphs:
        engine.routing([text.source_ids("1 a")])
    log.info("%s translates %s to %s (%s, %s)", folder, source, target, manifest.system, manifest.precision)
    return Model(folder.resolve().name, source, target, engine, text, translator)
