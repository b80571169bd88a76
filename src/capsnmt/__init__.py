"""CapsNMT: linear-time neural machine translation with capsule networks.

    from capsnmt import Translator
    Translator("runs/demo/capsnmt").translate("The old man sees a dog.")

Every verb of the command is a function here: doctor, prepare, train, translate, score, evaluate, average, export,
distill, routing, reproduce, serve. Names are looked up when they are used, so `import capsnmt` is fast and needs no
torch.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

try:
    __version__ = version("capsnmt")
except PackageNotFoundError:  # run from a source tree that was not installed
    __version__ = "0+unknown"

__all__ = [
    "CapsNMTError",
    "Translator",
    "average",
    "distill",
    "doctor",
    "evaluate",
    "export",
    "prepare",
    "reproduce",
    "routing",
    "score",
    "serve",
    "train",
    "translate",
]

_HOMES = {
    "CapsNMTError": "capsnmt.errors",
    "Translator": "capsnmt.translator",
    "average": "capsnmt.verbs",
    "distill": "capsnmt.verbs",
    "doctor": "capsnmt.verbs",
    "evaluate": "capsnmt.verbs",
    "export": "capsnmt.verbs",
    "prepare": "capsnmt.verbs",
    "reproduce": "capsnmt.verbs",
    "routing": "capsnmt.verbs",
    "score": "capsnmt.verbs",
    "serve": "capsnmt.verbs",
    "train": "capsnmt.verbs",
    "translate": "capsnmt.verbs",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'capsnmt' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
