"""The verbs as Python functions. The command line is a thin layer over these.

Rooms that need torch are imported inside the verbs that need them, so that the others start at once.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from capsnmt import cluster
from capsnmt.cluster import Block, BlockTranslator, Job
from capsnmt.config import LanguagesConfig, ParallelText, RunConfig, load_recipe
from capsnmt.decoding.formats import FORMATS
from capsnmt.decoding.streams import IDLE_S, batches_from_stream
from capsnmt.decoding.translation import TranslateOptions, Translation
from capsnmt.errors import CapsNMTError
from capsnmt.extras import need, need_torch
from capsnmt.folder import CONFIG, WEIGHTS, read_folder_config
from capsnmt.translator import Translator
from capsnmt.zoo import Models, model_folder, model_folders

if TYPE_CHECKING:
    from capsnmt.analysis.routing_map import RoutingMap
    from capsnmt.bench.report import BenchReport
    from capsnmt.bench.requests import Request
    from capsnmt.data.doctor import DoctorReport
    from capsnmt.distillation.distill import DistillRequest
    from capsnmt.evaluation.report import EvaluationReport
    from capsnmt.planning.plan import Plan
    from capsnmt.runtime.manifest import Manifest, Precision
    from capsnmt.runtime.verify import Margins


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
    need("pyarrow", "preparing a corpus")
    from capsnmt.data.prepare import prepare as prepare_store

    return prepare_store(config, progress=show, verify=True)


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
    need_torch()
    from capsnmt.training.loop import train as train_loop

    return train_loop(config, show=show)


def plan(config: RunConfig, *, devices: str = "1xcpu", pairs: int | None = None) -> Plan:
    """What a recipe costs on such devices (as in 8xM40): hours, memory, disk."""
    need_torch()
    from capsnmt.planning.plan import plan as make_plan

    return make_plan(config, devices, pairs=pairs)


def translate(
    folder: Models | None,
    lines: Iterable[str],
    *,
    options: TranslateOptions | None = None,
    engine: str = "auto",
    device: str = "auto",
) -> Iterator[Translation]:
    """Translates lines with a model folder, or an ensemble of several, in order, lazily."""
    translator = Translator(folder, engine=engine, device=device)
    return translator.translate_lines(lines, options=options or TranslateOptions())


def translate_stream(
    folder: Models | None,
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
    workers: int | None = None,
) -> int:
    """Translates a binary stream line by line; what has arrived is answered and flushed at once. Returns the count."""
    if format_ not in FORMATS:
        raise CapsNMTError(f"--format {format_}: unknown; known formats: {', '.join(FORMATS)}")
    options = options or TranslateOptions()
    if options.num_best > 1 and format_ == "text":
        raise CapsNMTError("more than one translation per line needs --format json or nbest")
    job = Job(tuple(map(str, model_folders(folder))), options, prefix, engine, device, selection)
    # A cluster's answers come while this process waits for lines, so it may not wait for long.
    blocks = batches_from_stream(read, batch_lines, idle_s=IDLE_S if engine == "ray" else None)
    number = 0
    for translations in translate_blocks(job, blocks, workers=workers):
        for translation in translations:
            write.write(FORMATS[format_](number, translation).encode("utf-8", errors="replace") + b"\n")
            number += 1
        write.flush()
    return number


def translate_blocks(
    job: Job, blocks: Iterable[Sequence[str]], *, workers: int | None = None
) -> Iterator[list[Translation]]:
    """The translations of blocks of lines, in order, lazily: here, or over a cluster with engine ray."""
    numbered = _numbered(blocks)
    if job.engine == "ray":
        folders = model_folders(job.folders)
        for folder in folders:
            languages_of(folder)  # what is no model folder is told now, not by a worker
        anywhere = tuple(str(folder.resolve()) for folder in folders)  # workers start elsewhere
        return cluster.translate_blocks(job._replace(folders=anywhere, engine="auto"), numbered, workers=workers)
    return map(BlockTranslator(job).translate, numbered)


def _numbered(blocks: Iterable[Sequence[str]]) -> Iterator[Block]:
    first_line = 0
    for lines in blocks:
        yield Block(first_line, lines)
        first_line += len(lines)


def read_glossary(path: str | Path) -> dict[str, str]:
    """Terms from a TSV: source and target, or a term alone that is not to be translated."""
    from capsnmt.data.corpus import read_lines

    pairs = (line.split("\t") for line in read_lines(path) if line.strip())
    return {columns[0].strip(): columns[-1].strip() for columns in pairs}


def evaluate(
    sources: Sequence[str],
    references: Sequence[str],
    *,
    folder: Models | None = None,
    hypotheses: Sequence[str] | None = None,
    languages: LanguagesConfig | None = None,
    options: TranslateOptions | None = None,
    num_bootstrap: int = 1000,
    split_compounds: bool = False,
    moses: bool = False,
    engine: str = "auto",
    name: str | None = None,
    origin: str | None = None,
) -> tuple[EvaluationReport, list[str]]:
    """Scores a model folder on a test set, or `hypotheses` that any system wrote. Returns report and outputs.

    `name` and `origin`, where hypotheses come from, stand in the report.
    `moses`: the system reads and writes Moses tokens. Sources and references are plain text all the same, and so are
    the outputs that are scored and returned: else its scores could not stand beside those of other systems.
    """
    need("sacrebleu", "evaluating")
    from capsnmt.evaluation.metrics import require_equal_counts
    from capsnmt.evaluation.report import evaluate_outputs
    from capsnmt.text.moses import detokenise, tokenise

    require_equal_counts({"sources": sources, "references": references})  # before the model works for nothing
    if hypotheses is None:
        if origin is not None:
            raise CapsNMTError("--origin says where --hypotheses come from: give both, or --name alone")
        if folder is None:
            raise CapsNMTError("evaluate needs a model folder, or --hypotheses with --languages such as en-de")
        translator = Translator(folder, engine=engine)
        languages = translator.languages
        asked = [tokenise(line, languages.source) for line in sources] if moses else sources
        done = translator.translate_lines(asked, options=options or TranslateOptions())
        hypotheses = [each.text for each in done]
    elif engine != "auto" or (options is not None and options.beam is not None):
        raise CapsNMTError("--beam and --engine are of translating, and --hypotheses are translated already")
    elif folder is not None:
        languages = languages_of(folder if isinstance(folder, str | Path) else folder[0])
    if languages is None:
        raise CapsNMTError("--hypotheses without a model folder needs --languages, such as en-de")
    if moses:
        hypotheses = [detokenise(line, languages.target) for line in hypotheses]
    report = evaluate_outputs(
        sources,
        hypotheses,
        references,
        languages=languages,
        num_bootstrap=num_bootstrap,
        split_compounds=split_compounds,
    )
    return replace(report, system=name, origin=origin), list(hypotheses)


def languages_of(folder: str | Path) -> LanguagesConfig:
    """The languages of a model folder, also of one that has nothing but its runtime."""
    from capsnmt.runtime.manifest import has_runtime, read_manifest

    folder = model_folder(folder)
    runtime_only = has_runtime(folder) and not (Path(folder) / CONFIG).exists()
    return read_manifest(folder).languages if runtime_only else read_folder_config(folder).languages


def score(folder: Models, sources: Sequence[str], targets: Sequence[str], *, engine: str = "auto") -> list[float]:
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


def routing(model: str | Path | None, sentences: Sequence[str], *, engine: str = "auto") -> list[RoutingMap]:
    """Which capsule took which subword of each sentence, in every iteration; without a model in the one that ships."""
    from capsnmt.analysis.routing_map import RoutingMap

    translator = Translator(model_folder(model), engine=engine)
    return [RoutingMap(*routed) for sentence in sentences for routed in translator.routing(sentence)]


def reproduce(
    suite: str | Path,
    *,
    data: str | None = None,
    jobs: int = 1,
    processes: int | None = None,
    only: Sequence[str] = (),
    train: bool = True,
    measure: bool | None = None,
    say: Callable[[str], None] = print,
) -> Path:
    """Trains, evaluates and reports a suite of runs; what is there already is kept. Returns the report's folder.

    Options are those of the command: `only` trains some rows and reports all, `train=False` reports what is finished.
    """
    need_torch()
    from capsnmt.analysis.reproduction import reproduce as reproduce_suite
    from capsnmt.analysis.suite import read_suite

    read = read_suite(suite, processes)
    return reproduce_suite(read, routing, data=data, jobs=jobs, only=only, train=train, measure=measure, say=say)


def average(folder: str | Path, *, last: int, output: str | Path | None = None) -> Path:
    """Averages the last checkpoints of a run into a weights file (by default the folder's own)."""
    need_torch()
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


def distill(
    teacher: Models | None,
    request: DistillRequest,
    *,
    command: str | None = None,
    options: TranslateOptions | None = None,
    subwords: Sequence[str] = (),
    engine: str = "auto",
    device: str = "auto",
    workers: int | None = None,
    show: bool = False,
) -> dict[str, Any] | None:
    """A corpus as a teacher would have written it: model folder, ensemble, CTranslate2 model or shell command."""
    need("sacrebleu", "distilling")
    from capsnmt.distillation import TEACHER_BEAM
    from capsnmt.distillation.distill import distill as distill_corpus
    from capsnmt.distillation.progress import shown_progress
    from capsnmt.distillation.teachers import open_teacher

    if (teacher is None) == (command is None):
        raise CapsNMTError("distill needs one teacher: a model folder, or --command that maps lines to lines")
    models = [] if teacher is None else [teacher] if isinstance(teacher, str | Path) else list(teacher)
    if command is not None and (request.choose == "bleu" or request.filters.min_score is not None):
        raise CapsNMTError("a command gives one translation a line and no score: neither --choose bleu nor --min-score")
    if command is not None and options is not None:
        raise CapsNMTError(
            "a command gets whole lines and searches as it does: leave out --beam, --n-best, --split and --no-split"
        )
    options = options or TranslateOptions(beam=TEACHER_BEAM)
    if request.choose == "bleu" and options.num_best == 1:
        raise CapsNMTError("--choose bleu chooses among candidates: give --n-best, such as 8")
    opened = open_teacher(models, command, options, subwords=subwords, engine=engine, device=device, workers=workers)
    with shown_progress(show) as report:
        return distill_corpus(opened, request, report)


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
    need_torch()
    need("onnx", "exporting")
    from capsnmt.runtime.export import ExportRequest, export_folder
    from capsnmt.runtime.verify import Margins

    data = read_folder_config(folder).data
    if pairs is None:
        pairs = _pairs_if_there(data.valid, data.root, max_sentences)
    training_text = None
    if selection:
        corpora = data.train.corpora
        training_text = [pair for text in corpora for pair in _pairs_if_there(text, data.root, 500_000 // len(corpora))]
    request = ExportRequest(precision, list(pairs)[:max_sentences], training_text, margins or Margins())
    return export_folder(folder, request)


def bench(request: Request) -> BenchReport:
    """Runs one benchmark, a `LatencyRequest` or another of `capsnmt.bench.requests`; docs/BENCHMARKS.md says how."""
    from capsnmt.bench.kinds import KINDS

    kind = KINDS[type(request)]
    for module in kind.needs:
        need(module, "this benchmark")
    return kind.run(request)


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
        need(module, "serving", "serve")


def _pairs_if_there(text: ParallelText, root: str, limit: int) -> list[tuple[str, str]]:
    from capsnmt.data.corpus import files_of, read_pairs

    there = all(file.is_file() for file in files_of(text, root))
    return list(itertools.islice(read_pairs(text, root), limit)) if there else []
