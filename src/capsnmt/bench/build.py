"""Model folders with random weights, built once and found again: a folder's name hashes all that it is made of."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from capsnmt.bench.peer_model import convert_folder, random_transformer, write_peer
from capsnmt.bench.peer_tokens import token_of
from capsnmt.bench.requests import MOST_POSITIONS, RandomModels
from capsnmt.bench.systems import PEER_PACKAGE, BenchSystem, model_section, num_heads, vocabulary_sizes
from capsnmt.config import FORMAT_VERSION, FolderConfig, parse
from capsnmt.folder import WEIGHTS
from capsnmt.runtime.identity import code_hash, hash_of_files
from capsnmt.runtime.lexicon import Lexicon
from capsnmt.runtime.manifest import sha256_of_file
from capsnmt.text.subwords import EOS, UNK

if TYPE_CHECKING:
    import onnx

_LOG = logging.getLogger(__name__)

SEED = 1
FIRST_ID = 4  # after the special ids
PAPER_LENGTH = 27  # tokens of a sentence, for which a selection has the number of words that was asked for
PEER_CODE = Path(__file__).with_name("peer_model.py")
PEAK_SIZE = 1024  # of the square products that show a machine's peak


@contextmanager
def work_folder(work: Path | None) -> Iterator[Path]:
    """The folder that is kept, or one that is gone afterwards."""
    if work is not None:
        work.mkdir(parents=True, exist_ok=True)
        yield work
        return
    with tempfile.TemporaryDirectory(prefix="capsnmt-bench-") as temporary:
        yield Path(temporary)


def build_all(systems: Mapping[str, BenchSystem], request: RandomModels, work: Path) -> dict[str, Path]:
    """The model folder of each system."""
    return {name: build(system, request, work) for name, system in systems.items()}


def build(system: BenchSystem, request: RandomModels, work: Path) -> Path:
    """A system's model folder; systems that differ in nothing but how they are run share one."""
    if system.kind == "ours":
        model = model_section(system, request.width)
        sizes = vocabulary_sizes(system, request.vocabulary)
        # A recipe's words are not chosen from: its vocabulary may be smaller than the choice.
        words = request.words if system.vocabulary is None else None
        about = {"vocabulary": sizes, "words": words, "seed": SEED, "model": model, "code": _exporter_hash()}
        lexicon = None if words is None else made_lexicon(request)
        return _kept(work, str(model["system"]), about, lambda folder: _write_ours(model, sizes, lexicon, folder))
    about = {"vocabulary": request.vocabulary, "words": request.words, "seed": SEED}
    about |= {"layers": system.layers, "width": request.width, "map": system.selection}
    about |= {"version": version(PEER_PACKAGE), "code": hash_of_files([Path(__file__), PEER_CODE])}
    return _kept(work, "ctranslate2", about, lambda folder: _write_peer(system, request, folder))


def build_converted(folder: Path, work: Path) -> Path:
    """CTranslate2's form of one of our trained Transformers."""
    about = {"weights": sha256_of_file(folder / WEIGHTS), "version": version(PEER_PACKAGE)}
    about["code"] = hash_of_files([PEER_CODE])
    return _kept(work, "converted", about, lambda target: convert_folder(folder, target, num_positions=MOST_POSITIONS))


def made_lexicon(request: RandomModels) -> Lexicon:
    """About `words` words for a sentence of the usual length: half of them always, the others by its tokens."""
    rng = np.random.default_rng(SEED)
    half = request.words // 2
    ids = np.arange(FIRST_ID, request.vocabulary, dtype=np.int32)
    always = np.unique(np.concatenate([rng.choice(ids, half, replace=False), [UNK, EOS]])).astype(np.int32)
    each = max(1, half // PAPER_LENGTH)
    return Lexicon(always, rng.choice(ids, (request.vocabulary, each)).astype(np.int32))


def write_vocabulary_map(lexicon: Lexicon, path: Path) -> None:
    """The same words as CTranslate2 reads them: n-gram, tab, words; an empty n-gram stands for all sentences."""
    lines = ["\t" + " ".join(map(token_of, lexicon.always.tolist()))]
    for source, words in enumerate(lexicon.translations.tolist()):
        lines.append(f"{token_of(source)}\t" + " ".join(map(token_of, words)))
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def build_peaks(work: Path) -> dict[str, Path]:
    """Graphs of one large product each, whose speed is the machine's peak in that type."""
    paths = {name: work / f"peak-{name}-{PEAK_SIZE}.onnx" for name in ("fp32", "int8")}
    for name, path in paths.items():
        if not path.exists():
            temporary = path.with_suffix(f".{os.getpid()}.tmp")
            temporary.write_bytes(_peak_graph(name).SerializeToString())
            temporary.replace(path)
    return paths


def _kept(work: Path, name: str, about: dict[str, Any], write: Callable[[Path], None]) -> Path:
    """`work/NAME-HASH`, whole or not there."""
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]
    folder = work / f"{name}-{digest}"
    if not folder.exists():
        _LOG.info("building %s", folder.name)
        with tempfile.TemporaryDirectory(prefix=".building-", dir=work) as temporary:
            made = Path(temporary) / "model"
            write(made)
            shutil.move(made, folder)
    return folder


def _write_ours(model: dict[str, Any], vocabulary: tuple[int, int], lexicon: Lexicon | None, folder: Path) -> None:
    import torch

    from capsnmt.models import build_model
    from capsnmt.runtime.export import write_runtime

    sizes = {"source_size": vocabulary[0], "target_size": vocabulary[1]}
    values = {
        "languages": {"source": "en", "target": "de"},
        "data": {"train": {"tsv": "none"}, "valid": {"tsv": "none"}, "store": "none"},
        "text": {},
        "model": model,
        "training": {"steps": 1, "learning_rate": 1.0},
        "output": "none",
        "format_version": FORMAT_VERSION,
        "vocabulary": {**sizes, "fingerprint": "none"},
    }
    config = parse(FolderConfig, values, "bench")
    torch.manual_seed(SEED)
    made = build_model(model, **sizes).eval()
    about = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
    write_runtime(made, folder, config, None, precision="int8", made_from=about, lexicon=lexicon)


def _write_peer(system: BenchSystem, request: RandomModels, folder: Path) -> None:
    arrays = random_transformer(
        layers=system.layers,
        width=request.width,
        num_heads=num_heads(request.width),
        vocabulary=request.vocabulary,
        num_positions=MOST_POSITIONS,
        seed=SEED,
    )
    folder.mkdir(parents=True)
    vocabulary_map = None
    if system.selection:  # not in the other folders: CTranslate2 loads a map where there is one
        vocabulary_map = folder / "made.txt"
        write_vocabulary_map(made_lexicon(request), vocabulary_map)
    write_peer(arrays, folder, vocabulary_map=vocabulary_map)


def _peak_graph(name: str) -> onnx.ModelProto:
    from onnx import TensorProto, helper, numpy_helper

    kinds: dict[str, tuple[str, int, int, type[np.number[Any]]]] = {
        "fp32": ("MatMul", TensorProto.FLOAT, TensorProto.FLOAT, np.float32),
        "int8": ("MatMulInteger", TensorProto.UINT8, TensorProto.INT32, np.int8),  # as our runtime: u8 times s8
    }
    operation, read, made, kept = kinds[name]
    weight = np.random.default_rng(SEED).integers(-63, 64, (PEAK_SIZE, PEAK_SIZE)).astype(kept)
    shape = [PEAK_SIZE, PEAK_SIZE]
    graph = helper.make_graph(
        [helper.make_node(operation, ["x", "weight"], ["y"])],
        "peak",
        [helper.make_tensor_value_info("x", read, shape)],
        [helper.make_tensor_value_info("y", made, shape)],
        [numpy_helper.from_array(weight, "weight")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _exporter_hash() -> str:
    """Of the code that makes a runtime: another exporter makes other folders."""
    return code_hash("runtime", "models") + hash_of_files([Path(__file__)])
