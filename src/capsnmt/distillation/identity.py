"""Who teaches: what a teacher's models were made from and how they are asked, in whatever versions of packages."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from capsnmt.cluster import Job
from capsnmt.config import FolderConfig, changed_settings
from capsnmt.decoding.translation import TranslateOptions
from capsnmt.distillation import MANIFEST, beam_for
from capsnmt.errors import CapsNMTError
from capsnmt.folder import WEIGHTS, read_folder_config
from capsnmt.runtime.choice import choose_engine
from capsnmt.runtime.manifest import Manifest, read_manifest, sha256_of_file
from capsnmt.zoo import model_folders

NAMES = {"teacher.models", "teacher.ctranslate2"}  # for the reader only: the same teacher may lie elsewhere


def about_models(job: Job) -> dict[str, Any]:
    """Of a model folder or an ensemble.

    Settings are those that differ from their defaults: one that a later version adds must not make another teacher.
    """
    names = list(job.folders)
    models = [_translating(folder, job) for folder in model_folders(names)]
    settings = models[0].settings  # an ensemble has those of its first
    asked, usual = asdict(job.options), asdict(TranslateOptions())
    return {
        "models": names,
        "weights": [model.weights for model in models],
        "precision": [model.precision for model in models],
        "selection": [model.selection for model in models],
        "text": settings.text.model_dump(mode="json", exclude_defaults=True),
        "decoding": settings.decoding.model_dump(mode="json", exclude_defaults=True)
        | {name: value for name, value in asked.items() if value != usual[name]},
    }


class _Translating(NamedTuple):
    """What translates in a model folder: its weights, or the runtime that was exported from some."""

    weights: str  # their SHA-256
    precision: str
    selection: bool  # of output words
    settings: Manifest | FolderConfig


def _translating(folder: Path, job: Job) -> _Translating:
    engine = "auto" if job.engine == "ray" else job.engine
    if choose_engine(folder, engine, job.device) == "onnx":
        manifest = read_manifest(folder)
        return _Translating(manifest.made_from, manifest.precision, manifest.lexicon is not None, manifest)
    config = read_folder_config(folder)
    if not (folder / WEIGHTS).is_file():
        raise CapsNMTError(f"{folder / WEIGHTS} does not exist: is the training finished?")
    return _Translating(sha256_of_file(folder / WEIGHTS), "fp32", False, config)


def is_distilled_by(
    folder: Path, source: Path, reference: Path, output: Path, *, best_of: int, with_original: bool
) -> bool:
    """Whether there is a whole corpus that this folder's weights, in fp32, made of these texts in this manner.

    A text that is gone is taken for unchanged.
    """
    if not (output / MANIFEST).exists():
        return False
    found = json.loads((output / MANIFEST).read_text(encoding="utf-8"))
    options = TranslateOptions(beam=beam_for(best_of), num_best=best_of)
    teacher = about_models(Job((str(folder),), options, engine="torch"))
    if changed_settings({"teacher": found["teacher"]}, {"teacher": teacher}, free=NAMES):
        return False
    if (found["choose"] == "bleu", found["original_pairs"] > 0) != (best_of > 1, with_original):
        return False
    texts = [(source, found["source"]), *([(reference, found["reference"])] if found["reference"] else [])]
    if any(text.exists() and sha256_of_file(text) != noted["sha256"] for text, noted in texts):
        return False
    files = {output / name: sha256 for name, sha256 in found["files"].items()}
    return all(path.is_file() and sha256_of_file(path) == sha256 for path, sha256 in files.items())
