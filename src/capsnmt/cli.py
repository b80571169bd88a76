"""The command `capsnmt`: thin verbs over verbs.py. Exit codes: 0 done, 1 an error, 2 wrong usage, 130 Ctrl-C."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from capsnmt import __version__, verbs, zoo
from capsnmt.config import LengthPenaltyType, parse_language_pair
from capsnmt.data.corpus import read_lines
from capsnmt.decoding.translation import SamplingOptions, TranslateOptions
from capsnmt.errors import CapsNMTError

app = typer.Typer(
    name="capsnmt",
    help="Linear-time neural machine translation with capsule networks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Recipe = Annotated[Path, typer.Argument(help="A recipe, such as recipes/demo/capsnmt.yaml.", show_default=False)]
Folder = Annotated[Path, typer.Argument(help="A model folder.", show_default=False)]
Folders = Annotated[list[Path], typer.Argument(help="A model folder; several are an ensemble.", show_default=False)]
Models = Annotated[
    list[str] | None,
    typer.Argument(
        help="A model folder, or the languages of a model that ships; several folders are an ensemble.",
        show_default=zoo.DEFAULT,
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, e.g. training.steps=1000. Repeatable."),
]
Data = Annotated[str | None, typer.Option("--data", help="Folder of the corpora (data.root of the recipe).")]
Output = Annotated[str | None, typer.Option("--output", "-o", help="Model folder to write (output of the recipe).")]
Engine = Annotated[
    str, typer.Option(help="onnx: the exported runtime; torch: the weights; auto: the runtime where there is one.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only errors.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"capsnmt {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Linear-time neural machine translation with capsule networks."""


@app.command()
def doctor(
    recipe: Annotated[
        Path | None, typer.Argument(help="A recipe, or --source and --target.", show_default=False)
    ] = None,
    set_: Set = None,
    data: Data = None,
    source: Annotated[Path | None, typer.Option("--source", "-s", help="Source text, without a recipe.")] = None,
    target: Annotated[Path | None, typer.Option("--target", "-t", help="Its translation, line by line.")] = None,
    languages: Annotated[str | None, typer.Option(help="Such as en-de; a recipe knows its own.")] = None,
    json_: Annotated[Path | None, typer.Option("--json", help="Write the report to this file; - is stdout.")] = None,
) -> None:
    """Examine a corpus before it is prepared. Exits with 1 if `prepare` would stop at it."""
    report = verbs.doctor(
        None if recipe is None else verbs.recipe(recipe, overrides=set_ or [], data=data),
        source=source,
        target=target,
        languages=None if languages is None else parse_language_pair(languages),
    )
    if json_ is not None:
        with _open(json_, "wb") as file:
            file.write(json.dumps(report.to_dict(), indent=1, ensure_ascii=False).encode("utf-8") + b"\n")
    if json_ is None or str(json_) != "-":
        from capsnmt.data.doctor import print_report

        print_report(report, Console())
    raise typer.Exit(1 if report.would_stop else 0)


@app.command()
def prepare(recipe: Recipe, set_: Set = None, data: Data = None, quiet: Quiet = False) -> None:
    """Train the subwords of a recipe and write its token store."""
    _log_to_stderr(quiet)
    typer.echo(verbs.prepare(verbs.recipe(recipe, overrides=set_ or [], data=data), show=not quiet))


@app.command()
def train(recipe: Recipe, set_: Set = None, data: Data = None, output: Output = None, quiet: Quiet = False) -> None:
    """Train a recipe; the same command again resumes it. Prepares the corpus first if need be."""
    _log_to_stderr(quiet)
    typer.echo(verbs.train(verbs.recipe(recipe, overrides=set_ or [], data=data, output=output), show=not quiet))


@app.command()
def plan(
    recipe: Recipe,
    devices: Annotated[str, typer.Option(help="Such as 8xM40 or 2xcpu (cores of this machine).")] = "1xcpu",
    pairs: Annotated[int | None, typer.Option(min=1, help="Size of the corpus, if it is not prepared yet.")] = None,
    set_: Set = None,
    json_: Annotated[Path | None, typer.Option("--json", help="Write the plan to this file; - is stdout.")] = None,
) -> None:
    """Say what a recipe costs before it runs: hours, memory, disk, with the arithmetic (docs/SCALING.md)."""
    found = verbs.plan(verbs.recipe(recipe, overrides=set_ or []), devices=devices, pairs=pairs)
    if json_ is not None:
        with _open(json_, "wb") as file:
            file.write(json.dumps(found.to_dict(), indent=1).encode("utf-8") + b"\n")
    if json_ is None or str(json_) != "-":
        for line in found.lines:
            typer.echo(line)


@app.command()
def translate(
    model: Models = None,
    input_: Annotated[Path, typer.Option("--input", "-i", help="File to translate; - is standard input.")] = Path("-"),
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write; - is standard output.")] = Path("-"),
    beam: Annotated[int | None, typer.Option(min=1, help="Beam size; default: the model's.")] = None,
    length_penalty: Annotated[float | None, typer.Option(min=0.0, help="Exponent alpha.")] = None,
    length_penalty_type: Annotated[
        LengthPenaltyType | None, typer.Option(help="wu: ((5+n)/6)^alpha; len: n^alpha; default: the model's.")
    ] = None,
    coverage_penalty: Annotated[float | None, typer.Option(min=0.0, help="Factor beta (gnmt).")] = None,
    max_length_ratio: Annotated[
        float | None, typer.Option(min=0.1, help="Longest output in tokens, relative to the source.")
    ] = None,
    num_best: Annotated[int, typer.Option("--n-best", min=1, help="Translations per line (needs --format).")] = 1,
    sample: Annotated[bool, typer.Option("--sample", help="Sample instead of searching.")] = False,
    temperature: Annotated[float, typer.Option(min=0.0, help="Of sampling.")] = 1.0,
    top_k: Annotated[int, typer.Option(min=0, help="Sample among the k likeliest; 0 = all.")] = 0,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0, help="Sample among the likeliest with this mass.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of sampling.")] = 1,
    split: Annotated[
        bool, typer.Option("--split/--no-split", help="Translate a line of several sentences one by one.")
    ] = True,
    glossary: Annotated[
        Path | None, typer.Option(help="TSV of terms and their translations; a term alone stays as it is.")
    ] = None,
    prefix: Annotated[str, typer.Option(help="Every translation starts with this text.")] = "",
    format_: Annotated[str, typer.Option("--format", help="text, json (a line each) or nbest (Moses style).")] = "text",
    batch_lines: Annotated[int, typer.Option(min=1, help="Lines translated together when they are there.")] = 64,
    engine: Annotated[
        str,
        typer.Option(help="auto, onnx, torch; or ray: over a cluster, or the cores of this machine, in bulk."),
    ] = "auto",
    workers: Annotated[int | None, typer.Option(min=1, help="Processes of engine ray; default: all CPUs.")] = None,
    selection: Annotated[
        bool, typer.Option("--selection/--no-selection", help="Use the exported lexicon, where there is one.")
    ] = True,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda (torch only).")] = "auto",
) -> None:
    """Translate line by line: one line in, one line out, flushed."""
    sampling = SamplingOptions(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed) if sample else None
    options = TranslateOptions(
        num_best=num_best,
        beam=beam,
        length_penalty=length_penalty,
        length_penalty_type=length_penalty_type,
        coverage_penalty=coverage_penalty,
        max_length_ratio=max_length_ratio,
        sampling=sampling,
        split=split,
        terms={} if glossary is None else verbs.read_glossary(glossary),
    )
    with _open(input_, "rb") as read, _open(output, "wb") as write:
        verbs.translate_stream(
            model or None,
            read,
            write,
            options=options,
            prefix=prefix,
            format_=format_,
            batch_lines=batch_lines,
            engine=engine,
            selection=selection,
            device=device,
            workers=workers,
        )


@app.command()
def evaluate(
    source: Annotated[Path, typer.Option("--source", "-s", help="Source text of the test set.")],
    reference: Annotated[Path, typer.Option("--reference", "-r", help="Its reference translation.")],
    model: Annotated[
        list[Path] | None, typer.Argument(help="A model folder; several are an ensemble.", show_default=False)
    ] = None,
    hypotheses: Annotated[Path | None, typer.Option(help="Score this file instead of translating.")] = None,
    name: Annotated[str | None, typer.Option(help="The system's name in the report, e.g. 'Buck et al. 2014'.")] = None,
    origin: Annotated[str | None, typer.Option(help="Where --hypotheses come from: a citation, an address.")] = None,
    languages: Annotated[str | None, typer.Option(help="Such as en-de; a model folder knows its own.")] = None,
    beam: Annotated[int | None, typer.Option(min=1, help="Beam size; default: the model's.")] = None,
    bootstrap: Annotated[int, typer.Option(min=0, help="Resamples for the 95 % confidence; 0 = none.")] = 1000,
    split_compounds: Annotated[
        bool, typer.Option("--split-compounds", help="Add the paper's metric with hyphens split.")
    ] = False,
    save: Annotated[Path | None, typer.Option(help="Write the translations to this file.")] = None,
    engine: Engine = "auto",
    json_: Annotated[Path | None, typer.Option("--json", help="Write the report to this file; - is stdout.")] = None,
) -> None:
    """Translate a test set and score it: BLEU, chrF, the paper's metric, and BLEU by source length."""
    report, outputs = verbs.evaluate(
        list(read_lines(source)),
        list(read_lines(reference)),
        folder=model or None,
        hypotheses=None if hypotheses is None else list(read_lines(hypotheses)),
        languages=None if languages is None else parse_language_pair(languages),
        options=TranslateOptions(beam=beam),
        num_bootstrap=bootstrap,
        split_compounds=split_compounds,
        engine=engine,
    )
    if save is not None:
        with _open(save, "wb") as file:
            file.write("".join(line + "\n" for line in outputs).encode("utf-8"))
    report = replace(report, system=name, origin=origin)
    text = json.dumps(report.to_dict(), indent=1, ensure_ascii=False)
    if json_ is not None and str(json_) == "-":
        typer.echo(text)
        return
    if json_ is not None:
        with _open(json_, "wb") as file:
            file.write(text.encode("utf-8") + b"\n")
    from capsnmt.evaluation.report import print_report  # brings sacreBLEU, which translating does not need

    print_report(report, Console())


@app.command()
def score(
    model: Folders,
    source: Annotated[Path, typer.Option("--source", "-s", help="Source text.")],
    target: Annotated[Path, typer.Option("--target", "-t", help="Its translations, to be scored.")],
    engine: Engine = "auto",
) -> None:
    """Print the log-probability of each given translation."""
    for log_prob in verbs.score(model, list(read_lines(source)), list(read_lines(target)), engine=engine):
        typer.echo(f"{log_prob:.6f}")


@app.command()
def export(
    model: Folder,
    precision: Annotated[Literal["int8", "fp32"], typer.Option(help="Of weights and arithmetic.")] = "int8",
    source: Annotated[Path | None, typer.Option("--source", "-s", help="Sentences to measure int8 on.")] = None,
    reference: Annotated[Path | None, typer.Option("--reference", "-r", help="Their reference translations.")] = None,
    sentences: Annotated[int, typer.Option(min=1, help="At most so many are translated.")] = 200,
    max_bleu_loss: Annotated[float, typer.Option(help="A larger loss of int8 in BLEU is refused.")] = 0.5,
    max_chrf_loss: Annotated[float, typer.Option(help="The same in chrF.")] = 0.5,
    min_speed_up: Annotated[float, typer.Option(help="int8 must be so many times as fast as fp32.")] = 1.0,
    selection: Annotated[
        bool, typer.Option("--selection", help="Learn a lexicon that selects each sentence's output words.")
    ] = False,
) -> None:
    """Write runtime/: graphs that translate without torch, verified before they are accepted."""
    from capsnmt.runtime.verify import Margins

    if (source is None) != (reference is None):
        raise CapsNMTError("give both --source and --reference, or neither to take the recipe's validation set")
    pairs = None
    if source is not None and reference is not None:
        lines = list(read_lines(source)), list(read_lines(reference))
        if len(lines[0]) != len(lines[1]):
            raise CapsNMTError(f"{source} has {len(lines[0])} lines, but {reference} has {len(lines[1])}")
        pairs = list(zip(*lines, strict=True))
    margins = Margins(bleu_loss=max_bleu_loss, chrf_loss=max_chrf_loss, speed_up=min_speed_up)
    manifest = verbs.export(
        model, precision=precision, pairs=pairs, max_sentences=sentences, margins=margins, selection=selection
    )
    typer.echo(json.dumps(manifest.verified))


@app.command()
def distill(
    source: Annotated[Path, typer.Option("--source", "-s", help="Text to translate: the student's source side.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the new corpus.")],
    teacher: Annotated[
        list[Path] | None, typer.Argument(help="A model folder, ours or CTranslate2's; several are an ensemble.")
    ] = None,
    command: Annotated[
        str | None, typer.Option(help="Instead of a folder: a shell command that maps lines to lines.")
    ] = None,
    reference: Annotated[Path | None, typer.Option("--reference", "-r", help="The original target side.")] = None,
    languages: Annotated[str | None, typer.Option(help="Such as en-de; our own folders know theirs.")] = None,
    beam: Annotated[int, typer.Option(min=1, help="The teacher's beam.")] = 5,
    num_best: Annotated[int, typer.Option("--n-best", min=1, help="Candidates a line, to choose from.")] = 1,
    choose: Annotated[
        Literal["score", "bleu"], typer.Option(help="The teacher's first, or the nearest to the reference.")
    ] = "score",
    max_ratio: Annotated[float, typer.Option(min=1.0, help="Of lengths in words; more is left out.")] = 4.0,
    min_score: Annotated[float | None, typer.Option(help="A lower score of the teacher is left out.")] = None,
    repetition: Annotated[bool, typer.Option("--filter-repetition/--keep-repetition", help="Leave out loops.")] = True,
    copies: Annotated[bool, typer.Option("--filter-copies/--keep-copies", help="Leave out copied lines.")] = True,
    original: Annotated[bool, typer.Option("--with-original", help="Add the original pairs, too.")] = False,
    split: Annotated[bool, typer.Option("--split/--no-split", help="Lines of several sentences one by one.")] = True,
    shard: Annotated[str | None, typer.Option(help="i/n: translate this part only; without it, join all.")] = None,
    batch_lines: Annotated[int, typer.Option(min=1, help="Lines that a kill can lose at most.")] = 256,
    subwords: Annotated[list[str] | None, typer.Option(help="SentencePiece files of a CTranslate2 model.")] = None,
    engine: Engine = "auto",
    quiet: Quiet = False,
) -> None:
    """Write a corpus as a teacher would have; the same command goes on after a kill. Then train on it as on any."""
    from capsnmt.distillation.choosing import Filters
    from capsnmt.distillation.distill import DistillRequest
    from capsnmt.distillation.journal import Shard

    _log_to_stderr(quiet)
    request = DistillRequest(
        source=source,
        output=output,
        reference=reference,
        languages=None if languages is None else parse_language_pair(languages),
        shard=None if shard is None else Shard.parse(shard),
        batch_lines=batch_lines,
        choose=choose,
        filters=Filters(max_ratio=max_ratio, min_score=min_score, repetition=repetition, copy=copies),
        with_original=original,
    )
    options = TranslateOptions(beam=max(beam, num_best), num_best=num_best, split=split)
    manifest = verbs.distill(
        teacher or None,
        request,
        command=command,
        options=options,
        subwords=subwords or [],
        engine=engine,
        show=not quiet,
    )
    if manifest is not None:
        typer.echo(json.dumps({key: manifest[key] for key in ("pairs", "verdicts", "original_pairs", "files")}))


@app.command()
def routing(
    model: Folder,
    sentences: Annotated[list[str], typer.Argument(help="Sentences, each in quotes.", show_default=False)],
    html: Annotated[Path | None, typer.Option(help="Write a page that needs nothing from outside.")] = None,
    picture: Annotated[Path | None, typer.Option("--png", help="Write a picture (PNG, SVG or PDF).")] = None,
    json_: Annotated[Path | None, typer.Option("--json", help="Write the coefficients; - is stdout.")] = None,
    engine: Engine = "auto",
) -> None:
    """Show which capsule takes which word, iteration by iteration: in colours, as a page, a picture, or numbers."""
    from capsnmt.analysis.routing_map import for_terminal, save_picture, to_html

    maps = verbs.routing(model, sentences, engine=engine)
    if html is not None:
        with _open(html, "wb") as file:
            file.write(to_html(maps).encode("utf-8"))
    if picture is not None:
        save_picture(maps, picture)
    if json_ is not None:
        with _open(json_, "wb") as file:
            text = json.dumps([found.to_dict() for found in maps], ensure_ascii=False)
            file.write(text.encode("utf-8") + b"\n")
    if json_ is None or str(json_) != "-":
        console = Console()
        for found in maps:
            console.print(for_terminal(found))


@app.command()
def reproduce(
    suite: Annotated[Path, typer.Argument(help="A suite, such as suites/routing-multi30k-en-de.yaml.")],
    data: Data = None,
    jobs: Annotated[int, typer.Option(min=1, help="Trainings side by side; each has its share of the cores.")] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")] = False,
) -> None:
    """Train, evaluate and report all runs of a suite: tables, figures and the command behind every number."""
    if dry_run:
        from capsnmt.analysis.reproduction import plan_of
        from capsnmt.analysis.suite import read_suite

        for step in plan_of(read_suite(suite), data):
            state = "done" if step["done"] else "to do"
            typer.echo(f"{step['run']}: {step['updates']:,} updates, {step['tokens']:,} tokens at most, {state}")
        return
    typer.echo(verbs.reproduce(suite, data=data, jobs=jobs, say=lambda text: typer.echo(text, err=True)))


@app.command()
def serve(
    models: Annotated[
        list[str] | None,
        typer.Argument(help="Exported model folders, or languages of models that ship.", show_default=zoo.DEFAULT),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is all of them.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 5000,
    allowed_host: Annotated[
        list[str] | None, typer.Option(help="A name under which clients may call, besides localhost and addresses.")
    ] = None,
    keys: Annotated[Path | None, typer.Option(help="File of the hashes of API keys.")] = None,
    new_key: Annotated[str | None, typer.Option(metavar="NAME", help="Add a key to --keys, print it, exit.")] = None,
    require_key: Annotated[bool, typer.Option("--require-key", help="Nobody translates without a key.")] = False,
    key_url: Annotated[str | None, typer.Option(help="Where users get a key; shown to those without one.")] = None,
    char_limit: Annotated[int, typer.Option(min=1, help="Characters of a request.")] = 10_000,
    batch_limit: Annotated[int, typer.Option(min=1, help="Texts of a request.")] = 100,
    alternatives_limit: Annotated[int, typer.Option(min=0, help="Alternatives of a text.")] = 5,
    file_limit: Annotated[int, typer.Option(min=1, help="Bytes of a file.")] = 512 << 10,
    requests_per_minute: Annotated[int, typer.Option(min=0, help="Of a client without a key; 0: no limit.")] = 0,
    deadline: Annotated[float, typer.Option(min=0.1, help="Seconds after which a request is given up.")] = 30.0,
    body_timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for headers, and again for a body.")] = 20.0,
    batch_lines: Annotated[int, typer.Option(min=1, help="Lines translated together; 1: no batching.")] = 32,
    batch_wait: Annotated[float, typer.Option(min=0.0, help="Milliseconds to wait for company.")] = 3.0,
    threads: Annotated[int | None, typer.Option(min=1, help="Of the model; default: one per core.")] = None,
    metrics_token: Annotated[
        str | None, typer.Option(envvar="CAPSNMT_METRICS_TOKEN", help="Who asks for /metrics must show it.")
    ] = None,
    public_url: Annotated[str | None, typer.Option(help="What clients call this server, behind a proxy.")] = None,
    access_log: Annotated[bool, typer.Option("--access-log/--no-access-log", help="A line per request.")] = True,
) -> None:
    """Serve models over HTTP: LibreTranslate's API, our own, and a page to try them in."""
    if new_key is not None:
        typer.echo(verbs.new_key(keys, new_key))
        return
    verbs.serve(
        models,
        limits={
            "characters": char_limit,
            "items": batch_limit,
            "alternatives": alternatives_limit,
            "file_bytes": file_limit,
            "body_bytes": max(1 << 20, 2 * file_limit),
            "requests_per_minute": requests_per_minute,
            "deadline_s": deadline,
            "body_s": body_timeout,
        },
        batching={"lines": batch_lines, "wait_s": batch_wait / 1000},
        host=host,
        port=port,
        allowed_hosts=tuple(allowed_host or ()),
        keys=keys,
        key_required=require_key,
        key_url=key_url,
        metrics_token=metrics_token,
        public_url=public_url,
        threads=threads,
        access_log=access_log,
    )


@app.command()
def average(
    model: Folder,
    last: Annotated[int, typer.Option(min=1, help="Number of newest checkpoints to average.")] = 5,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Weights file; default: the folder's.")] = None,
) -> None:
    """Average the last checkpoints of a run into its weights."""
    typer.echo(verbs.average(model, last=last, output=output))


@app.command(add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def bench(context: typer.Context) -> None:
    """Measure latency, throughput, growth, limit, start or pareto: `capsnmt bench --help`."""
    from capsnmt.bench.command import app as benchmarks  # its many options would slow down the start of all verbs

    benchmarks(args=context.args, prog_name="capsnmt bench")


@contextmanager
def _open(path: Path, mode: Literal["rb", "wb"]) -> Iterator[Any]:
    """A file, or standard input or output for `-`."""
    if str(path) == "-":
        yield sys.stdin.buffer if mode == "rb" else sys.stdout.buffer
        return
    try:
        file = path.open(mode)
    except OSError as error:
        raise CapsNMTError(f"cannot open {path}: {error.strerror}") from None
    with file:  # outside of the try: a broken pipe while translating is no fault of this file
        yield file


def _log_to_stderr(quiet: bool) -> None:
    logging.basicConfig(level=logging.WARNING if quiet else logging.INFO, format="%(message)s", stream=sys.stderr)


def main(argv: list[str] | None = None) -> None:
    """Runs the command and turns every ending into an exit code."""
    try:
        app(args=argv, standalone_mode=True)
    except CapsNMTError as error:
        Console(stderr=True).print(f"capsnmt: {error}", highlight=False, markup=False, soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except SystemExit as end:
        if not isinstance(end.__context__, BrokenPipeError):  # which typer has turned into an exit with 1
            raise
        # The reader had enough. Python would complain again when it flushes stdout at exit, so that goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(0)
