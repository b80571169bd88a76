"""From one model folder or several to what translates strings, on the engine that fits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from capsnmt.config import DecodingConfig, FolderConfig
from capsnmt.decoding.engine import Engine
from capsnmt.decoding.ensemble import EnsembleEngine
from capsnmt.decoding.segments import Segment, innermost
from capsnmt.decoding.translator import LineTranslator
from capsnmt.errors import CapsNMTError
from capsnmt.extras import need_torch
from capsnmt.folder import load_text, read_folder_config
from capsnmt.text.pipeline import TextPipeline
from capsnmt.text.spans import restore
from capsnmt.zoo import Models, model_folders

if TYPE_CHECKING:
    from capsnmt.runtime.manifest import Manifest


class Translator(LineTranslator):
    """Loads a model and translates strings: lines in = lines out.

    `folder` may also be the languages of a model that ships, such as en-de; without one it is the usual of them.
    Several folders with the same vocabulary are an ensemble, of any mix of systems; its first sets languages, text and
    decoding.
    """

    def __init__(
        self,
        folder: Models | None = None,
        *,
        engine: str = "auto",
        device: str = "auto",
        decoding: DecodingConfig | None = None,
        selection: bool = True,
    ) -> None:
        folders = model_folders(folder)
        models = [_load(each, engine=engine, device=device, selection=selection) for each in folders]
        first = models[0]
        for name, model in zip(folders[1:], models[1:], strict=True):
            _check_partner(str(folders[0]), first, str(name), model)
        self.languages = first.about.languages
        self.pipeline = first.text
        super().__init__(
            engine=first.engine if len(models) == 1 else EnsembleEngine([model.engine for model in models]),
            text=first.text,
            decoding=decoding or first.about.decoding,
            language=first.about.languages.source,
        )

    def routing(self, text: str) -> Iterator[tuple[tuple[str, ...], npt.NDArray[np.float32]]]:
        """Pieces and coefficients (iterations, pieces, M) of each part of a text that the model gets at once.

        The parts are those that are translated; a protected span is one piece.
        """
        parts = self.line_batch().plan(0, text, "")
        segments = innermost(part for part in parts if isinstance(part, Segment))
        if not segments:
            raise CapsNMTError(f"{text!r} has no word to translate, so nothing is routed; give a sentence")
        for segment in segments:
            for ids in segment.chunks:
                alpha = self.engine.routing([ids])[0]  # type: ignore[attr-defined]  # both of our engines can
                pieces = self.pipeline.source.pieces(ids)
                yield tuple(restore(piece, segment.masked.spans).text for piece in pieces), alpha


class _Model(NamedTuple):
    engine: Engine
    text: TextPipeline
    about: Manifest | FolderConfig


def _load(folder: Path, *, engine: str, device: str, selection: bool) -> _Model:
    from capsnmt.runtime.allocator import keep_freed_memory
    from capsnmt.runtime.choice import choose_engine

    if choose_engine(folder, engine, device) == "onnx":
        from capsnmt.runtime.engine import OnnxEngine
        from capsnmt.runtime.manifest import load_runtime_text

        loaded = OnnxEngine.load(folder, selection=selection)
        return _Model(loaded, load_runtime_text(folder, loaded.manifest), loaded.manifest)
    need_torch()
    from capsnmt.runtime.torch_engine import TorchEngine

    keep_freed_memory()
    config = read_folder_config(folder)
    return _Model(TorchEngine.load(folder, device=device), load_text(folder, config), config)


def _check_partner(first_name: str, first: _Model, name: str, model: _Model) -> None:
    """The models of an ensemble must read the same ids and mean the same by them."""

    def compared(each: _Model) -> dict[str, object]:
        text = each.about.text
        return {
            "languages": each.about.languages,
            "the vocabulary": each.text.fingerprint,
            "text.normalise": text.normalise,
            "text.protect": text.protect,
        }

    expected, found = compared(first), compared(model)
    for what in expected:
        if found[what] != expected[what]:
            raise CapsNMTError(
                f"{name} cannot be in an ensemble with {first_name}, because {what} differs: {found[what]} and "
                f"{expected[what]}; train both on one store (data.store), with the same text section"
            )
