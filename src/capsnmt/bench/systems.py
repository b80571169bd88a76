"""The systems that are measured: ours, and CTranslate2's Transformers of the same width as the peers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from capsnmt.config import PieceType, load_recipe
from capsnmt.errors import CapsNMTError
from capsnmt.folder import read_folder_config

PEER_PACKAGE = "ctranslate2"
INSTALL_PEER = "pip install 'capsnmt[bench]'"


@dataclass(frozen=True)
class BenchSystem:
    """One row of the tables."""

    label: str
    kind: Literal["ours", "peer"]
    model: dict[str, Any] = field(default_factory=dict)  # of ours: the `model` section of a recipe, widths or none
    layers: tuple[int, int] = (0, 0)  # of a peer: encoder and decoder
    selection: bool = False  # vocabulary selection, which CTranslate2 calls a vocabulary map
    vocabulary: tuple[int, int] | None = None  # of a recipe or a model folder, source and target: measured as it is
    pieces: PieceType = "bpe"  # what it cuts sentences into


def _capsnmt(num_capsules: int, **changes: Any) -> dict[str, Any]:
    """The paper's base model, spelt out: the floors of `limit` are computed from these numbers.

    Its three tables are tied as those of the peers: tables take memory, never time.
    """
    sizes = {"encoder_layers": 4, "decoder_layers": 3, "num_capsules": [num_capsules], "num_iterations": 3}
    return {"system": "capsnmt", "tie_embeddings": "all", **sizes, **changes}


SYSTEMS: dict[str, BenchSystem] = {
    "capsnmt": BenchSystem("CapsNMT M = 6", "ours", _capsnmt(6)),
    "capsnmt-m4": BenchSystem("CapsNMT M = 4", "ours", _capsnmt(4)),
    "capsnmt-m8": BenchSystem("CapsNMT M = 8", "ours", _capsnmt(8)),
    "capsnmt-attention": BenchSystem("CapsNMT M = 6, attention", "ours", _capsnmt(6, attention="capsules")),
    "capsnmt-selection": BenchSystem("CapsNMT M = 6, selection", "ours", _capsnmt(6), selection=True),
    "transformer": BenchSystem(
        "our Transformer 6+6", "ours", {"system": "transformer", "encoder_layers": 6, "decoder_layers": 6}
    ),
    "ct2-6+6": BenchSystem("CTranslate2 6+6", "peer", layers=(6, 6)),
    "ct2-6+2": BenchSystem("CTranslate2 6+2", "peer", layers=(6, 2)),
    "ct2-12+1": BenchSystem("CTranslate2 12+1", "peer", layers=(12, 1)),
    "ct2-6+6-map": BenchSystem("CTranslate2 6+6, map", "peer", layers=(6, 6), selection=True),
    "ct2-6+2-map": BenchSystem("CTranslate2 6+2, map", "peer", layers=(6, 2), selection=True),
    "ct2-12+1-map": BenchSystem("CTranslate2 12+1, map", "peer", layers=(12, 1), selection=True),
}


def model_section(system: BenchSystem, width: int) -> dict[str, Any]:
    """The `model` section of one of our systems at this width; all else is the system's own default.

    That of a recipe or a model folder is taken as it is.
    """
    if system.vocabulary is not None:
        return system.model
    widths: dict[str, Any] = {"width": width}
    if system.model["system"] == "transformer":
        widths |= {"inner_width": 4 * width, "num_heads": num_heads(width)}
    return {**system.model, **widths}


def vocabulary_sizes(system: BenchSystem, vocabulary: int) -> tuple[int, int]:
    """Of source and target: a recipe's own, else as many words as were asked for."""
    return system.vocabulary or (vocabulary, vocabulary)


def num_heads(width: int) -> int:
    """64 dimensions each, as in the base model, and never less than one."""
    return max(1, width // 64)


def chosen_systems(names: Sequence[str], default: Sequence[str]) -> tuple[dict[str, BenchSystem], list[str]]:
    """The systems by name, and a note if the peer's are left out because it is not installed."""
    wanted = {name: _system(name) for name in dict.fromkeys(names or default)}
    if find_spec(PEER_PACKAGE) is not None:
        return wanted, []
    found = {name: system for name, system in wanted.items() if system.kind == "ours"}
    if not found:
        raise CapsNMTError(f"--systems {','.join(wanted)}: CTranslate2 is not installed; {INSTALL_PEER}")
    return found, [] if len(found) == len(wanted) else [missing_peer_note()]


def _system(name: str) -> BenchSystem:
    """One of `SYSTEMS`, or any system as a recipe or a model folder has it."""
    if name in SYSTEMS:
        return SYSTEMS[name]
    if Path(name).is_dir():
        config = read_folder_config(name)
        sizes = config.vocabulary.source_size, config.vocabulary.target_size
        return BenchSystem(Path(name).name, "ours", config.model, vocabulary=sizes, pieces=config.text.subwords.type)
    if name.endswith(".yaml"):
        recipe = load_recipe(name)
        subwords = recipe.text.subwords
        sizes = subwords.size_of("source"), subwords.size_of("target")
        return BenchSystem(Path(name).stem, "ours", recipe.model, vocabulary=sizes, pieces=subwords.type)
    known = f"{', '.join(SYSTEMS)}, any recipe (.yaml) and any model folder"
    raise CapsNMTError(f"--systems {name}: unknown; known systems: {known}")


def missing_peer_note() -> str:
    """What stands in a report whose peer rows are missing."""
    return f"CTranslate2 is not installed, so its rows are left out; {INSTALL_PEER} adds them"
