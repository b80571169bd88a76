"""The models that ship. Each is a folder like any other, with nothing but its card and its exported runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from capsnmt.errors import CapsNMTError

Models = str | Path | Sequence[str | Path]  # one model, or those of an ensemble
DEFAULT = "en-de"
_HERE = Path(__file__).parent


def shipped_models() -> dict[str, Path]:
    """Languages, such as en-de → model folder."""
    return {folder.name: folder for folder in sorted(_HERE.iterdir()) if (folder / "runtime").is_dir()}


def model_folder(model: str | Path | None = None) -> Path:
    """The folder that a user means: a path, the languages of a model that ships, or nothing for the usual one.

    A folder of the user's own goes before a shipped model of the same name.
    """
    if model is None:
        return shipped_models().get(DEFAULT, Path(DEFAULT))
    if Path(model).exists():
        return Path(model)
    return shipped_models().get(str(model), Path(model))


def model_folders(models: Models | None = None) -> list[Path]:
    """The folders that a user means, as in `model_folder`: one, or several for an ensemble."""
    if models is None or isinstance(models, str | Path):
        return [model_folder(models)]
    if not models:
        raise CapsNMTError("an ensemble needs at least one model folder")
    return [model_folder(model) for model in models]
