"""`runtime/manifest.json`: all that translating without torch needs to know of a model, and the hashes of its files.

A manifest may come from a stranger. So it is parsed strictly, its files are plain names inside `runtime/`, and every
file is hashed before it is used.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from capsnmt.config import DecodingConfig, LanguagesConfig, StrictModel, TextConfig, VocabularyRecord, parse
from capsnmt.errors import CapsNMTError
from capsnmt.text.pipeline import TextPipeline
from capsnmt.text.subwords import BOS, EOS, PAD, UNK

RUNTIME, MANIFEST, WEIGHTS_FILE = "runtime", "manifest.json", "weights.bin"
RUNTIME_VERSION = 1  # of the manifest and of the graphs' inputs and outputs
SPECIAL_IDS = {"pad": PAD, "unk": UNK, "bos": BOS, "eos": EOS}

# One graph per thing that may be asked for, because ONNX Runtime computes every output of a graph.
ENCODE, ENCODE_ROUTING, STEP, STEP_ALL = "encode", "encode_routing", "step", "step_all"
SELECT, STEP_SELECTED = "select", "step_selected"
REQUIRED_GRAPHS = (ENCODE, STEP, STEP_ALL)

Precision = Literal["fp32", "int8"]


def _plain_name(name: str) -> str:
    """No folder, no hidden file, nothing that a file system could read as a way out."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
        raise ValueError("must be the plain name of a file inside runtime/")
    return name


FileName = Annotated[str, AfterValidator(_plain_name)]


class FileRecord(StrictModel):
    """A file of `runtime/` and what it holds."""

    file: FileName
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class TensorRecord(StrictModel):
    """An input or output of a graph; a name in the shape is a size that may vary."""

    type: Literal["float", "int8", "int64", "bool"]
    shape: tuple[int | str, ...]


class GraphRecord(FileRecord):
    """One ONNX graph."""

    file: Annotated[FileName, Field(pattern=r"\.onnx$")]
    inputs: dict[str, TensorRecord]
    outputs: dict[str, TensorRecord]


class Manifest(StrictModel):
    """`manifest.json`."""

    runtime_version: int
    system: str
    precision: Precision
    languages: LanguagesConfig
    text: TextConfig
    decoding: DecodingConfig
    vocabulary: VocabularyRecord
    special_ids: dict[str, int]
    memory: tuple[str, ...]  # tensors kept once per sentence
    state: tuple[str, ...]  # tensors kept once per hypothesis
    graphs: dict[str, GraphRecord]
    weights: FileRecord  # external data of all graphs
    subwords: tuple[FileRecord, ...]
    lexicon: FileRecord | None = None  # of vocabulary selection, where it was asked for
    made_from: str = Field(description="SHA-256 of the weights.safetensors that was exported")
    made_with: dict[str, str]  # package → version
    verified: dict[str, Any]  # figures of the checks that export made


def has_runtime(folder: str | Path) -> bool:
    """Whether the model folder can be used without torch."""
    return (Path(folder) / RUNTIME / MANIFEST).is_file()


def read_manifest(folder: str | Path) -> Manifest:
    """The manifest of a model folder's `runtime/`, checked."""
    path = Path(folder) / RUNTIME / MANIFEST
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CapsNMTError(f"{folder} has no {RUNTIME}/{MANIFEST}: run `capsnmt export {folder}` first") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CapsNMTError(f"{path} cannot be read ({error}); export the model again") from None
    version = values.get("runtime_version") if isinstance(values, dict) else None
    if isinstance(version, int) and version > RUNTIME_VERSION:  # before the parsing, which knows no future keys
        raise CapsNMTError(f"{path} has version {version}, this one reads up to {RUNTIME_VERSION}: upgrade capsnmt")
    manifest = parse(Manifest, values, str(path))
    missing = [name for name in REQUIRED_GRAPHS if name not in manifest.graphs]
    if missing:
        raise CapsNMTError(f"{path} names no graph for {', '.join(missing)}; export the model again")
    if manifest.weights.file != WEIGHTS_FILE:  # the one that graphs may read
        raise CapsNMTError(f"{path}: weights.file must be {WEIGHTS_FILE}, not {manifest.weights.file}")
    if manifest.special_ids != SPECIAL_IDS:
        raise CapsNMTError(f"{path}: special_ids are {manifest.special_ids}, this version knows {SPECIAL_IDS}")
    return manifest


def write_manifest(manifest: Manifest, runtime: Path) -> None:
    """Writes `manifest.json` whole or not at all."""
    temporary = runtime / f".writing-{MANIFEST}"
    temporary.write_text(manifest.model_dump_json(indent=1) + "\n", encoding="utf-8")
    temporary.replace(runtime / MANIFEST)


def sha256_of(data: Any) -> str:
    """Of bytes or anything that looks like them."""
    return hashlib.sha256(data).hexdigest()


def sha256_of_file(path: Path) -> str:
    """Read in pieces, so that the size does not matter."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def checked_path(folder: str | Path, record: FileRecord) -> Path:
    """The path of a file of `runtime/`, which is no link out of it."""
    runtime = Path(folder) / RUNTIME
    path = runtime / record.file
    if not path.is_file():
        raise CapsNMTError(f"{path} is missing, but {MANIFEST} names it; export the model again")
    if path.resolve().parent != runtime.resolve():
        raise CapsNMTError(f"{path} points outside of {runtime}; put the file itself there")
    return path


def check_hash(path: Path, found: str, record: FileRecord) -> None:
    """Refuses a file that is not the one that was exported."""
    if found != record.sha256:
        raise CapsNMTError(
            f"{path} is damaged or not the exported file (its SHA-256 begins with {found[:12]}, "
            f"{MANIFEST} says {record.sha256[:12]}); export the model again"
        )


def load_runtime_text(folder: str | Path, manifest: Manifest) -> TextPipeline:
    """The text pipeline of a runtime folder."""
    for record in manifest.subwords:
        path = checked_path(folder, record)
        check_hash(path, sha256_of_file(path), record)
    text = TextPipeline.load(Path(folder) / RUNTIME, manifest.text)
    if text.fingerprint != manifest.vocabulary.fingerprint:
        raise CapsNMTError(
            f"{folder}: the subword model is not the one that the graphs were made for "
            f"(fingerprint {text.fingerprint}, {MANIFEST} says {manifest.vocabulary.fingerprint})"
        )
    return text
