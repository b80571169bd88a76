"""`capsnmt bench`: the options of each benchmark."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from capsnmt import verbs
from capsnmt.bench.requests import (
    LENGTHS,
    GrowthRequest,
    LatencyRequest,
    LimitRequest,
    ParetoRequest,
    Request,
    StartRequest,
    ThroughputRequest,
)
from capsnmt.errors import CapsNMTError

app = typer.Typer(
    help="Measure speed and memory, every system side by side. Run it on a quiet machine; see docs/BENCHMARKS.md.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[Path | None, typer.Option("--json", help="Write the report to this file; - is stdout.")]
Plot = Annotated[Path | None, typer.Option("--plot", help="Draw the report into this PNG.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only errors.")]
Work = Annotated[Path | None, typer.Option(help="Keep the models that are built here, and find them again.")]
Repeats = Annotated[int, typer.Option(help="Visits of each system, in turn.")]
Pause = Annotated[float, typer.Option(help="Seconds before each visit, in which the last one's threads go to sleep.")]
Width = Annotated[int, typer.Option(help="Of all models; recipes and folders have their own.")]
Vocabulary = Annotated[int, typer.Option(help="Words of each language; recipes and folders have their own.")]
Words = Annotated[int, typer.Option(help="Words that vocabulary selection leaves to a sentence, about.")]
Systems = Annotated[
    str, typer.Option(help="Names, recipes or model folders with commas; the first is the base of all ratios.")
]
Beams = Annotated[str, typer.Option(help="Beam sizes with commas.")]
ThreadList = Annotated[str, typer.Option("--threads", help="Numbers of threads with commas.")]
Threads = Annotated[int, typer.Option(help="Number of threads.")]
Length = Annotated[int, typer.Option(help="Tokens of the source and of the forced translation.")]
Models = Annotated[list[Path], typer.Option("--model", "-m", help="A model folder with a runtime/. Repeatable.")]


@app.command()
def latency(
    length: Length = 27,
    beams: Beams = "1,8",
    threads: ThreadList = "1,2",
    source: Annotated[
        Path | None, typer.Option("--source", "-s", help="Test set for the paper's protocol: average over sentences.")
    ] = None,
    sentences: Annotated[int, typer.Option(help="Of the test set.")] = 100,
    passes: Annotated[int, typer.Option(help="Over the test set.")] = 3,
    systems: Systems = "",
    width: Width = 512,
    vocabulary: Vocabulary = 50_000,
    words: Words = 500,
    repeats: Repeats = 9,
    pause: Pause = 0.3,
    work: Work = None,
    json_: Json = None,
    plot: Plot = None,
    quiet: Quiet = False,
) -> None:
    """One sentence at a time: milliseconds a translation, random weights, int8."""
    request = LatencyRequest(
        length=length,
        beams=numbers("--beams", beams),
        threads=numbers("--threads", threads),
        source=source,
        sentences=sentences,
        passes=passes,
        systems=names(systems),
        width=width,
        vocabulary=vocabulary,
        words=words,
        repeats=repeats,
        pause_s=pause,
        work=work,
    )
    _run(request, json_, plot, quiet)


@app.command()
def throughput(
    source: Annotated[Path, typer.Option("--source", "-s", help="Real sentences.")],
    sentences: Annotated[int, typer.Option(help="So many of them.")] = 2000,
    beams: Beams = "1,8",
    threads: Threads = 2,
    batches: Annotated[str, typer.Option(help="Batch sizes to choose from, with commas.")] = "8,16,32,64,128",
    probe: Annotated[int, typer.Option(help="Sentences on which the batch size is chosen.")] = 200,
    systems: Systems = "",
    width: Width = 512,
    vocabulary: Vocabulary = 50_000,
    words: Words = 500,
    repeats: Repeats = 3,
    pause: Pause = 0.3,
    work: Work = None,
    json_: Json = None,
    plot: Plot = None,
    quiet: Quiet = False,
) -> None:
    """Many sentences: sentences per second with the best batch of each system, and its memory."""
    request = ThroughputRequest(
        source=source,
        sentences=sentences,
        beams=numbers("--beams", beams),
        threads=threads,
        batches=numbers("--batches", batches),
        probe=probe,
        systems=names(systems),
        width=width,
        vocabulary=vocabulary,
        words=words,
        repeats=repeats,
        pause_s=pause,
        work=work,
    )
    _run(request, json_, plot, quiet)


@app.command()
def growth(
    lengths: Annotated[str, typer.Option(help="Source tokens, ascending, with commas.")] = ",".join(map(str, LENGTHS)),
    steps: Annotated[int, typer.Option(help="Decoding steps over which the time of one is taken.")] = 32,
    max_target: Annotated[int, typer.Option(help="Longest translation; else as long as its source.")] = LENGTHS[-1],
    fixed_source: Annotated[
        int | None, typer.Option(help="Also time translations of each length from a source of so many tokens.")
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--source", "-s", help="Gives systems on characters or words as many as its subwords have."),
    ] = None,
    beam: Annotated[int, typer.Option(help="Beam size.")] = 1,
    threads: Threads = 2,
    systems: Systems = "",
    width: Width = 512,
    vocabulary: Vocabulary = 50_000,
    repeats: Repeats = 3,
    step_repeats: Annotated[int, typer.Option(help="Visits for the time of a step.")] = 15,
    pause: Pause = 0.3,
    work: Work = None,
    json_: Json = None,
    plot: Plot = None,
    quiet: Quiet = False,
) -> None:
    """Longer and longer sources: decoder time per step, total, memory."""
    request = GrowthRequest(
        lengths=numbers("--lengths", lengths),
        steps=steps,
        max_target=max_target,
        fixed_source=fixed_source,
        source=source,
        beam=beam,
        threads=threads,
        systems=names(systems),
        width=width,
        vocabulary=vocabulary,
        words=min(500, vocabulary // 2),
        repeats=repeats,
        step_repeats=step_repeats,
        pause_s=pause,
        work=work,
    )
    _run(request, json_, plot, quiet)


@app.command()
def limit(
    length: Length = 27,
    beams: Beams = "1,8",
    threads: Threads = 2,
    systems: Systems = "",
    width: Width = 512,
    vocabulary: Vocabulary = 50_000,
    repeats: Repeats = 9,
    pause: Pause = 0.3,
    work: Work = None,
    json_: Json = None,
    plot: Plot = None,
    quiet: Quiet = False,
) -> None:
    """What memory and arithmetic of this machine allow, stage by stage: achieved ÷ floor."""
    request = LimitRequest(
        length=length,
        beams=numbers("--beams", beams),
        threads=threads,
        systems=names(systems),
        width=width,
        vocabulary=vocabulary,
        words=min(500, vocabulary // 2),
        repeats=repeats,
        pause_s=pause,
        work=work,
    )
    _run(request, json_, plot, quiet)


@app.command()
def start(
    model: Models,
    line: Annotated[str, typer.Option(help="What is translated.")] = "hi",
    repeats: Repeats = 9,
    pause: Pause = 0.3,
    json_: Json = None,
    plot: Plot = None,
    quiet: Quiet = False,
) -> None:
    """A cold `echo hi | capsnmt translate MODEL`: time and resident memory."""
    _run(StartRequest(models=tuple(model), line=line, repeats=repeats, pause_s=pause), json_, plot, quiet)


@app.command()
def pareto(
    model: Models,
    source: Annotated[Path, typer.Option("--source", "-s", help="Source text of the test set.")],
    reference: Annotated[Path, typer.Option("--reference", "-r", help="Its reference translation.")],
    beams: Beams = "1,8",
    threads: Threads = 2,
    sentences: Annotated[int | None, typer.Option(help="So many of them; default: all.")] = None,
    repeats: Annotated[int, typer.Option(help="Passes over the test set.")] = 3,
    pause: Pause = 0.3,
    work: Work = None,
    json_: Json = None,
    plot: Plot = None,
    quiet: Quiet = False,
) -> None:
    """BLEU against latency of trained models; our Transformers also in CTranslate2."""
    request = ParetoRequest(
        models=tuple(model),
        source=source,
        reference=reference,
        beams=numbers("--beams", beams),
        threads=threads,
        sentences=sentences,
        repeats=repeats,
        pause_s=pause,
        work=work,
    )
    _run(request, json_, plot, quiet)


def names(text: str) -> tuple[str, ...]:
    """`a,b` → a, b."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def numbers(option: str, text: str) -> tuple[int, ...]:
    """`1,8` → 1, 8."""
    found = names(text)
    if not found or not all(part.isascii() and part.isdecimal() for part in found):
        raise CapsNMTError(f"{option} {text}: expected whole numbers with commas, such as 1,8")
    return tuple(int(part) for part in found)


def _run(request: Request, json_: Path | None, plot: Path | None, quiet: bool) -> None:
    from capsnmt.bench.report import print_report, write_json

    logging.basicConfig(level=logging.WARNING if quiet else logging.INFO, format="%(message)s", stream=sys.stderr)
    for path in (json_, plot):  # before minutes of work, not after
        if path is not None and str(path) != "-" and not path.absolute().parent.is_dir():
            raise CapsNMTError(f"{path} cannot be written: {path.absolute().parent} is no folder")
    report = verbs.bench(request)
    if json_ is not None:
        write_json(report, json_)
    if plot is not None:
        from capsnmt.bench.plots import save_plot

        save_plot(report, plot)
    if json_ is None or str(json_) != "-":
        print_report(report, Console())
