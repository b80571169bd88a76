"""A model folder's weights → its `runtime/`: graphs, one file of shared weights, subwords and the manifest.

Nothing is accepted unseen: the new runtime is made beside the old one, verified against torch and, if it is int8,
against fp32 on real sentences, and only then put in its place.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import onnx

from capsnmt.config import FolderConfig
from capsnmt.errors import CapsNMTError
from capsnmt.folder import WEIGHTS, load_text, read_folder_config
from capsnmt.models.contract import TranslationModel
from capsnmt.runtime.engine import OnnxEngine
from capsnmt.runtime.graphs import (
    SharedWeights,
    selection_graphs,
    shortened,
    step_all_graph,
    step_graph,
    tensor_records,
)
from capsnmt.runtime.lexicon import LEXICON_FILE, Lexicon, learn_lexicon
from capsnmt.runtime.manifest import (
    MANIFEST,
    RUNTIME,
    RUNTIME_VERSION,
    SELECT,
    SPECIAL_IDS,
    STEP,
    STEP_ALL,
    STEP_SELECTED,
    WEIGHTS_FILE,
    FileRecord,
    GraphRecord,
    Manifest,
    Precision,
    read_manifest,
    sha256_of,
    sha256_of_file,
    write_manifest,
)
from capsnmt.runtime.quantise import quantised
from capsnmt.runtime.torch_engine import TorchEngine
from capsnmt.runtime.trace import trace
from capsnmt.runtime.verify import Comparison, Margins, check_against_torch, compare
from capsnmt.text.pipeline import TextPipeline, subword_files

_WORKSHOP = ".exporting-"  # and some letters: where a runtime is made


@dataclass(frozen=True)
class ExportRequest:
    """What to export, and what it is verified on."""

    precision: Precision
    pairs: Sequence[tuple[str, str]] = ()  # sentences and their references; int8 and selection need some
    lexicon_pairs: Sequence[tuple[str, str]] | None = None  # training text; None: no vocabulary selection
    margins: Margins = field(default_factory=Margins)


def export_folder(folder: str | Path, request: ExportRequest) -> Manifest:
    """Exports a model folder; a runtime that fails its checks is refused and the old one stays."""
    folder = Path(folder)
    config = read_folder_config(folder)
    text = load_text(folder, config)
    if not request.pairs and (request.precision == "int8" or request.lexicon_pairs is not None):
        raise CapsNMTError(
            "what int8 and vocabulary selection lose is measured on a validation set: the recipe's own is not readable "
            "or empty, so give --source and --reference, or export with --precision fp32 and no selection"
        )
    engine = TorchEngine.load(folder, device="cpu")
    lexicon = None if request.lexicon_pairs is None else _learn_lexicon(request.lexicon_pairs, text)
    about = {"made_from": sha256_of_file(folder / WEIGHTS)}
    with _workshop(folder) as workshop:
        exact = made = workshop / "fp32"
        write_runtime(engine.model, exact, config, text, precision="fp32", lexicon=lexicon, **about)
        fp32 = OnnxEngine.load(exact, selection=False)
        figures: dict[str, object] = {"max_log_prob_difference": check_against_torch(engine, fp32, config.vocabulary)}
        if request.precision == "int8":
            made = workshop / "int8"
            write_runtime(engine.model, made, config, text, precision="int8", lexicon=lexicon, **about)
            found = compare(fp32, OnnxEngine.load(made, selection=False), text, config, request.pairs)
            figures["int8"] = found.figures()
            _refuse_if_bad("int8", found, request.margins)
        if lexicon is not None:
            all_words, selected = (OnnxEngine.load(made, selection=selection) for selection in (False, True))
            found = compare(all_words, selected, text, config, request.pairs)
            figures["selection"] = found.figures()
            _refuse_if_bad("vocabulary selection", found, request.margins)
        manifest = read_manifest(made).model_copy(update={"verified": figures})
        write_manifest(manifest, made / RUNTIME)
        _replace(folder / RUNTIME, made / RUNTIME)
    return manifest


@contextmanager
def _workshop(folder: Path) -> Iterator[Path]:
    """A folder to make the runtime in, for one export at a time; what a killed one has left is removed."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel frees it however this process ends
        for left in folder.glob(f"{_WORKSHOP}*"):
            shutil.rmtree(left, ignore_errors=True)
    except BlockingIOError:
        os.close(descriptor)
        raise CapsNMTError(f"another process is exporting {folder}; wait for it") from None
    except OSError:  # a file system without locks: nobody knows whose remains they are
        pass
    try:
        with tempfile.TemporaryDirectory(prefix=_WORKSHOP, dir=folder) as temporary:
            yield Path(temporary)
    finally:
        os.close(descriptor)


def _learn_lexicon(pairs: Sequence[tuple[str, str]], text: TextPipeline) -> Lexicon:
    ids = [(text.source_ids(source), text.target_ids(target)) for source, target in pairs]
    return learn_lexicon(ids, source_size=text.source_size, target_size=text.target_size)


def write_runtime(
    model: TranslationModel,
    folder: Path,
    config: FolderConfig,
    text: TextPipeline | None,
    *,
    precision: Precision,
    made_from: str,
    lexicon: Lexicon | None = None,
) -> Manifest:
    """Traces a model and writes `folder/runtime`, not verified yet."""
    runtime = folder / RUNTIME
    runtime.mkdir(parents=True)
    traced = trace(model, source_size=config.vocabulary.source_size)
    if precision == "int8":
        traced = {name: quantised(graph, is_step=name == STEP) for name, graph in traced.items()}
    core = traced[STEP]
    graphs = traced | {STEP: step_graph(core), STEP_ALL: step_all_graph(core)}
    if lexicon is not None:
        selection = selection_graphs(core, config.vocabulary.target_size)
        if selection is None:
            raise CapsNMTError(
                f"the output layer of {config.model['system']} has no rows to select; leave out --selection"
            )
        graphs[SELECT], graphs[STEP_SELECTED] = selection
        lexicon.save(runtime / LEXICON_FILE)
    manifest = Manifest(
        runtime_version=RUNTIME_VERSION,
        system=config.model["system"],
        precision=precision,
        languages=config.languages,
        text=config.text,
        decoding=config.decoding,
        vocabulary=config.vocabulary,
        special_ids=SPECIAL_IDS,
        memory=_names(core, "memory."),
        state=_names(core, "state."),
        graphs=_write_graphs(graphs, runtime),
        weights=_record(runtime / WEIGHTS_FILE),
        subwords=() if text is None else _write_subwords(text, runtime),
        lexicon=None if lexicon is None else _record(runtime / LEXICON_FILE),
        made_from=made_from,
        made_with={"python": platform.python_version()}
        | {name: version(name) for name in ("capsnmt", "numpy", "onnx", "onnxruntime", "torch")},
        verified={},
    )
    write_manifest(manifest, runtime)
    return manifest


def _names(core: onnx.ModelProto, prefix: str) -> tuple[str, ...]:
    return tuple(value.name.removeprefix(prefix) for value in core.graph.input if value.name.startswith(prefix))


def _write_graphs(graphs: dict[str, onnx.ModelProto], runtime: Path) -> dict[str, GraphRecord]:
    weights = SharedWeights()
    records = {}
    for name, model in graphs.items():
        file = f"{name}.onnx"
        content = weights.take_from(shortened(model)).SerializeToString(deterministic=True)
        (runtime / file).write_bytes(content)
        records[name] = GraphRecord(
            file=file,
            sha256=sha256_of(content),
            inputs=tensor_records(model.graph.input),
            outputs=tensor_records(model.graph.output),
        )
    weights.write(runtime)
    return records


def _write_subwords(text: TextPipeline, runtime: Path) -> tuple[FileRecord, ...]:
    text.copy_to(runtime)
    return tuple(_record(runtime / name) for name in dict.fromkeys(subword_files(text.config.subwords.joint)))


def _record(path: Path) -> FileRecord:
    return FileRecord(file=path.name, sha256=sha256_of_file(path))


def _refuse_if_bad(what: str, found: Comparison, margins: Margins) -> None:
    faults = found.faults(margins)
    if faults:
        raise CapsNMTError(
            f"{what} is refused: " + "; ".join(faults) + f". Measured on {found.sentences} sentences: "
            f"{found.summary()}. Export without it, or widen the margin"
        )


def _replace(old: Path, new: Path) -> None:
    """The manifest goes first and comes last: there is never one beside files that it does not describe."""
    (old / MANIFEST).unlink(missing_ok=True)
    if old.exists():
        shutil.rmtree(old)
    new.rename(old)
