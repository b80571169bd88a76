"""The model folder: one folder on disk that serves every verb.

config.yaml (the recipe as it ran, languages, text pipeline, format, vocabulary fingerprint), subwords.model,
weights.safetensors, metrics.jsonl, card.md; while training also checkpoints/ and tensorboard/.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from capsnmt.config import (
    FORMAT_VERSION,
    FolderConfig,
    RunConfig,
    VocabularyRecord,
    changed_settings,
    dump_yaml,
    load_yaml,
    parse,
)
from capsnmt.errors import CapsNMTError
from capsnmt.text.pipeline import TextPipeline

CONFIG, WEIGHTS, METRICS, CARD = "config.yaml", "weights.safetensors", "metrics.jsonl", "card.md"


def create_folder(
    config: RunConfig, text: TextPipeline, *, whole: Callable[[dict[str, Any]], dict[str, Any]] = dict
) -> Path:
    """Makes the model folder of a run, or checks that an existing one belongs to the same recipe.

    `whole` fills the defaults into a model section: a recipe that spells one out is still the same.
    """
    folder = Path(config.output)
    record = VocabularyRecord(source_size=text.source_size, target_size=text.target_size, fingerprint=text.fingerprint)
    wanted = FolderConfig(**config.model_dump(), format_version=FORMAT_VERSION, vocabulary=record)
    if (folder / CONFIG).exists():
        old = read_folder_config(folder)
        _check_same_run(_with_model(old, whole(old.model)), _with_model(wanted, whole(wanted.model)), folder)
    folder.mkdir(parents=True, exist_ok=True)
    if not _holds_text(folder, text):  # what is there already is not written again: a kill could leave half of it
        text.copy_to(folder)
    temporary = folder / f".{CONFIG}.tmp"
    temporary.unlink(missing_ok=True)  # a link of that name would lead the writing out of the folder
    dump_yaml(wanted, temporary)
    temporary.replace(folder / CONFIG)  # whole or not at all; a resumed run notes its new number of steps
    return folder


def read_folder_config(folder: str | Path) -> FolderConfig:
    """`config.yaml` of a model folder."""
    folder = Path(folder)
    if not os.path.isfile(folder / CONFIG):  # a pipe would never end; Path.is_file raises on impossible names
        raise CapsNMTError(f"{folder} is not a model folder: it has no {CONFIG}")
    values = load_yaml(folder / CONFIG)
    version = values.get("format_version") if isinstance(values, dict) else None
    if isinstance(version, int) and version > FORMAT_VERSION:  # before the parsing, which knows no future keys
        raise CapsNMTError(f"{folder} has format {version}, this version reads up to {FORMAT_VERSION}: upgrade capsnmt")
    return parse(FolderConfig, values, str(folder / CONFIG))


def load_text(folder: str | Path, config: FolderConfig) -> TextPipeline:
    """The text pipeline that the model was trained with."""
    text = TextPipeline.load(Path(folder), config.text)
    if text.fingerprint != config.vocabulary.fingerprint:
        raise CapsNMTError(
            f"{folder}: the subword model is not the one that the weights were trained with "
            f"(fingerprint {text.fingerprint}, config.yaml says {config.vocabulary.fingerprint})"
        )
    sizes = (text.source_size, text.target_size)
    if sizes != (config.vocabulary.source_size, config.vocabulary.target_size):
        raise CapsNMTError(f"{folder}: the subword models have {sizes} pieces, config.yaml says {config.vocabulary}")
    return text


def _holds_text(folder: Path, text: TextPipeline) -> bool:
    try:
        return TextPipeline.load(folder, text.config).fingerprint == text.fingerprint
    except CapsNMTError:
        return False


# What may change between a run and its resumption: how long it goes on and what it prints, not what it computes.
_FREE_KEYS = {"training.steps", "training.keep_last", "training.log_every", "training.patience"}


def _with_model(config: FolderConfig, model: dict[str, Any]) -> FolderConfig:
    return config.model_copy(update={"model": model})


def _check_same_run(old: FolderConfig, new: FolderConfig, folder: Path) -> None:
    changed = changed_settings(old.model_dump(mode="json"), new.model_dump(mode="json"), free=_FREE_KEYS)
    if changed:
        raise CapsNMTError(
            f"{folder} holds a run of another recipe:\n" + "\n".join(changed) + "\n"
            "set another `output`, or delete the folder, or go back to the old values to resume it"
        )
