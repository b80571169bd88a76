"""The models that ship. Each is a folder like any other, with nothing but its card and its exported runtime."""

from __future__ import annotations

from pathlib import Path

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
        return shipped_models()[DEFAULT]
    if Path(model).exists():
        return Path(model)
    return shipped_models().get(str(model), Path(model))
