"""Which engine translates with a model folder."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from capsnmt.errors import CapsNMTError
from capsnmt.folder import CONFIG, WEIGHTS
from capsnmt.runtime.manifest import has_runtime, read_manifest, sha256_of_file

log = logging.getLogger(__name__)

ENGINES = ("auto", "torch", "onnx")


def choose_engine(folder: str | Path, engine: str = "auto", device: str = "auto") -> Literal["torch", "onnx"]:
    """`auto` takes the runtime if there is one that was made from the folder's weights as they are now."""
    if engine not in ENGINES:
        raise CapsNMTError(f"engine {engine!r} is unknown; choose {', '.join(ENGINES)}")
    if engine == "onnx" and device == "cuda":
        raise CapsNMTError("device cuda needs engine torch: the exported runtime runs on CPUs")
    if engine == "onnx":
        return "onnx"
    if engine == "torch" or device == "cuda" or not has_runtime(folder):
        _check_not_only_exported(Path(folder), engine, device)
        return "torch"
    if _is_stale(Path(folder)):
        use_torch = find_spec("torch") is not None
        log.warning(
            "%s: runtime/ was exported from other weights than the folder holds now; %s. Run `capsnmt export` again",
            folder,
            "torch translates with the new ones" if use_torch else "it is used, because there is no torch",
        )
        return "torch" if use_torch else "onnx"
    return "onnx"


def _check_not_only_exported(folder: Path, engine: str, device: str) -> None:
    if has_runtime(folder) and not (folder / CONFIG).is_file():
        asked = "engine torch" if engine == "torch" else f"device {device}"
        raise CapsNMTError(
            f"{folder} has only its exported runtime, which runs on CPUs without torch; leave out {asked}, or give a "
            f"folder with {CONFIG} and {WEIGHTS}"
        )


def _is_stale(folder: Path) -> bool:
    weights = folder / WEIGHTS
    return weights.is_file() and sha256_of_file(weights) != read_manifest(folder).made_from
