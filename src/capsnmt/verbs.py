"""The verbs as Python functions. The command line is a thin layer over these.

Rooms that need torch are imported inside the verbs that need them, so that the others start at once.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from capsnmt.config import DecodingConfig, FolderConfig, LanguagesConfig, ParallelText, RunConfig, load_recipe
from capsnmt.decoding.engine import Engine
from capsnmt.decoding.formats import FORMATS
from capsnmt.decoding.streams import batches_from_stream
from capsnmt.decoding.translation import TranslateOptions, Translation
from capsnmt.decoding.translator import LineTranslator
from capsnmt.errors import CapsNMTError
from capsnmt.folder import CONFIG, WEIGHTS, load_text, read_folder_config
from capsnmt.text.pipeline import TextPipeline
from capsnmt.zoo import model_folder

if TYPE_CHECKING:
    from capsnmt.data.doctor import DoctorReport
    from capsnmt.evaluation.report import EvaluationReport
    from capsnmt.runtime.manifest import Manifest, Precision
    from capsnmt.runtime.verify import Margins


class Translator(LineTranslator):
    """Loads a model and translates strings: lines in = lines out.

    `folder` may also be the languages of a model that ships, such as en-de; without one it is the usual of them.
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        *,
        engine: str = "auto",
        device: str = "auto",
        decoding: DecodingConfig | None = None,
        selection: bool = True,
    ) -> None:
        from capsnmt.runtime.allocator import keep_freed_memory
        from capsnmt.runtime.choice import choose_engine

        folder = model_folder(folder)
        if choose_engine(folder, engine, device) == "onnx":
            from capsnmt.runtime.engine import OnnxEngine
            from capsnmt.runtime.manifest import load_runtime_text

            loaded = OnnxEngine.load(folder, selection=selection)
            about: Manifest | FolderConfig = loaded.manifest
            self._open(loaded, load_runtime_text(folder, loaded.manifest), about, decoding)
            return
        _need_torch()
        from capsnmt.runtime.torch_engine import TorchEngine

        keep_freed_memory()
        about = read_folder_config(folder)
        self._open(TorchEngine.load(folder, device=device), load_text(folder, about), about, decoding)

    def _open(
        self, engine: Engine, text: TextPipeline, about: Manifest | FolderConfig, decoding: DecodingConfig | None
    ) -> None:
        self.languages = about.languages
        self.pipeline = text
        super().__init__(engine=engine, text=text, decoding=decoding or about.decoding, language=about.languages.source)


def recipe(
    path: str | Path, *, overrides: Sequence[str] = (), data: str | None = None, output: str | None = None
) -> RunConfig:
    """Reads a recipe and changes what differs from machine to machine."""
    # As JSON strings, which YAML reads back as they are: a folder may be called 2024 or no.
    extra = [f"data.root={json.dumps(data)}"] if data else []
    extra += [f"output={json.dumps(output)}"] if output else []
    return load_recipe(path, [*overrides, *extra])


def prepare(config: RunConfig, *, show: bool = True) -> Path:
    """Trains the subwords and writes the token store of a recipe. Returns the store's folder."""
    _need("pyarrow", "preparing a corpus")
    from capsnmt.data.prepare import prepare as prepare_store

    return prepare_store(config, progress=show)


def doctor(
    config: RunConfig | None = None,
    *,
    source: str | Path | None = None,
    target: str | Path | None = None,
    languages: LanguagesConfig | None = None,
) -> DoctorReport:
    """Examines the corpus of a recipe (a missing demo corpus is written first), or two aligned files."""
    from capsnmt.data.doctor import examine_files, examine_recipe

    if config is not None and source is None and target is None and languages is None:
        return examine_recipe(config)
    if config is None and source is not None and target is not None:
        return examine_files(source, target, languages=languages)
    raise CapsNMTError("doctor needs either a recipe, or --source and --target (and --languages, such as en-de)")


def train(config: RunConfig, *, show: bool = True) -> Path:
    """Trains a recipe, or resumes it; prepares its corpus first if need be. Returns the model folder."""
    _need_torch()
    from capsnmt.training.loop import train as train_loop

    return train_loop(config, show=show)


def translate(
    folder: str | Path | None,
    lines: Iterable[str],
    *,
    options: TranslateOptions | None = None,
    engine: str = "auto",
    device: str = "auto",
) -> Iterator[Translation]:
    """Translates lines with a model folder, in order, lazily."""
    translator = Translator(folder, engine=engine, device=device)
    return translator.translate_lines(lines, options=options or TranslateOptions())


def translate_stream(
    folder: str | Path | None,
    read: BinaryIO,
    write: BinaryIO,
    *,
    options: TranslateOptions | None = None,
    prefix: str = "",
    format_: str = "text",
    batch_lines: int = 64,
    engine: str = "auto",
    device: str = "auto",
    selection: bool = True,
) -> int:
    """Translates a binary stream line by line; what has arrived is answered and flushed at once. Returns the count."""
    if format_ not in FORMATS:
        raise CapsNMTError(f"--format {format_}: unknown; known formats: {', '.join(FORMATS)}")
    options = options or TranslateOptions()
    if options.num_best > 1 and format_ == "text":
        raise CapsNMTError("more than one translation per line needs --format json or nbest")
    translator = Translator(folder, engine=engine, device=device, selection=selection)
    number = 0
    for lines in batches_from_stream(read, batch_lines):
        prefixes = [prefix] * len(lines) if prefix else None
        for translation in translator.translate_batch(lines, options, prefixes=prefixes, first_line=number):
            write.write(FORMATS[format_](number, translation).encode("utf-8", errors="replace") + b"\n")
            number += 1
        write.flush()
    return number


def read_glossary(path: str | Path) -> dict[str, str]:
    """Terms from a TSV: source and target, or a term alone that is not to be translated."""
    from capsnmt.data.corpus import read_lines

    pairs = (line.split("\t") for line in read_lines(path) if line.strip())
    return {columns[0].strip(): columns[-1].strip() for columns in pairs}


def evaluate(
    sources: Sequence[str],
    references: Sequence[str],
    *,
    folder: str | Path | None = None,
    hypotheses: Sequence[str] | None = None,
    languages: LanguagesConfig | None = None,
    options: TranslateOptions | None = None,
    num_bootstrap: int = 1000,
    split_compounds: bool = False,
    engine: str = "auto",
) -> tuple[EvaluationReport, list[str]]:
    """Scores a model folder on a test set, or `hypotheses` that any system wrote. Returns report and outputs."""
    _need("sacrebleu", "evaluating")
    from capsnmt.evaluation.metrics import require_equal_counts
    from capsnmt.evaluation.report import evaluate_outputs

    require_equal_counts({"sources": sources, "references": references})  # before the model works for nothing
    if hypotheses is None:
        if folder is None:
            raise CapsNMTError("evaluate needs a model folder, or --hypotheses with --languages such as en-de")
        translator = Translator(folder, engine=engine)
        languages = translator.languages
        done = translator.translate_lines(sources, options=options or TranslateOptions())
        hypotheses = [each.text for each in done]
    elif folder is not None:
        languages = languages_of(folder)
    if languages is None:
        raise CapsNMTError("--hypotheses without a model folder needs --languages, such as en-de")
    report = evaluate_outputs(
        sources,
        hypotheses,
        references,
        languages=languages,
        num_bootstrap=num_bootstrap,
        split_compounds=split_compounds,
    )
    return report, list(hypotheses)


def languages_of(folder: str | Path) -> LanguagesConfig:
    """The languages of a model folder, also of one that has nothing but its runtime."""
    from capsnmt.runtime.manifest import has_runtime, read_manifest

    folder = model_folder(folder)
    runtime_only = has_runtime(folder) and not (Path(folder) / CONFIG).exists()
    return read_manifest(folder).languages if runtime_only else read_folder_config(folder).languages


def score(folder: str | Path, sources: Sequence[str], targets: Sequence[str], *, engine: str = "auto") -> list[float]:
    """Log-probability of each given translation, </s> included: what the search itself would say of it."""
    from capsnmt.decoding.scoring import score as score_ids

    if len(sources) != len(targets):
        raise CapsNMTError(f"{len(sources)} sources but {len(targets)} translations; give one translation per source")
    translator = Translator(folder, engine=engine)
    text = translator.pipeline
    found: list[float] = []
    for start in range(0, len(sources), 64):
        batch = slice(start, start + 64)
        source_ids = [text.source_ids(line) for line in sources[batch]]
        target_ids = [text.target_prefix_ids(line) for line in targets[batch]]
        found += [float(log_probs.sum()) for log_probs in score_ids(translator.engine, source_ids, target_ids)]
    return found


def average(folder: str | Path, *, last: int, output: str | Path | None = None) -> Path:
    """Averages the last checkpoints of a run into a weights file (by default the folder's own)."""
    _need_torch()
    from capsnmt.models.weights import save_weights
    from capsnmt.training.average import average_weights
    from capsnmt.training.checkpoint import checkpoint_weights, checkpoints_in

    read_folder_config(folder)
    found = checkpoints_in(Path(folder) / "checkpoints")
    if len(found) < last:
        raise CapsNMTError(f"{folder} has {len(found)} checkpoints, {last} were asked for")
    path = Path(output) if output else Path(folder) / WEIGHTS
    save_weights(average_weights([checkpoint_weights(checkpoint) for checkpoint in found[-last:]]), path)
    return path


def export(
    folder: str | Path,
    *,
    precision: Precision = "int8",
    pairs: Sequence[tuple[str, str]] | None = None,
    max_sentences: int = 200,
    margins: Margins | None = None,
    selection: bool = False,
) -> Manifest:
    """Writes `runtime/`, which translates without torch, verified on `pairs` or the recipe's validation set."""
    _need_torch()
    _need("onnx", "exporting")
    from capsnmt.runtime.export import ExportRequest, export_folder
    from capsnmt.runtime.verify import Margins

    data = read_folder_config(folder).data
    if pairs is None:
        pairs = _pairs_if_there(data.valid, data.root, max_sentences)
    training_text = _pairs_if_there(data.train, data.root, 500_000) if selection else None
    request = ExportRequest(precision, list(pairs)[:max_sentences], training_text, margins or Margins())
    return export_folder(folder, request)


def serve(
    models: Sequence[str | Path] | None = None,
    *,
    limits: Mapping[str, Any] | None = None,
    batching: Mapping[str, Any] | None = None,
    **settings: Any,
) -> None:
    """Serves exported model folders over HTTP until it is told to stop; see server/settings.py for what may be set."""
    _need_server()
    from capsnmt.server.run import serve as run
    from capsnmt.server.settings import Batching, Limits, ServeSettings

    folders = tuple(models) if models else (None,)
    run(ServeSettings(folders, limits=Limits(**(limits or {})), batching=Batching(**(batching or {})), **settings))


def new_key(path: str | Path | None, name: str) -> str:
    """Makes an API key and stores its hash in a file; the key itself is only returned."""
    from capsnmt.server.keys import new_key as make

    if path is None:
        raise CapsNMTError("--new-key needs --keys FILE, where its hash is stored")
    return make(Path(path), name)


def _need_server() -> None:
    for module in ("fastapi", "uvicorn", "sse_starlette", "prometheus_client", "python_multipart", "py3langid"):
        _need(module, "serving", "serve")


def _pairs_if_there(text: ParallelText, root: str, limit: int) -> list[tuple[str, str]]:
    from capsnmt.data.corpus import files_of, read_pairs

    there = all(file.is_file() for file in files_of(text, root))
    return list(itertools.islice(read_pairs(text, root), limit)) if there else []


def _need_torch() -> None:
    _need("torch", "this verb")


def _need(module: str, purpose: str, extra: str = "train") -> None:
    from importlib.util import find_spec

    if find_spec(module) is None:
        raise CapsNMTError(f"{purpose} needs {module}: pip install 'capsnmt[{extra}]'")
