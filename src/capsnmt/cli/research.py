"""Beyond one model: distilling, looking into routing, whole suites, and speed."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from capsnmt import verbs, zoo
from capsnmt.cli.options import BulkEngine, Data, DeviceName, Engine, Quiet, Workers, log_to_stderr, open_binary
from capsnmt.cluster import BLOCKS_PER_WORKER
from capsnmt.config import parse_language_pair
from capsnmt.decoding.translation import TranslateOptions
from capsnmt.distillation import TEACHER_BEAM, beam_for
from capsnmt.errors import CapsNMTError


def distill(
    source: Annotated[Path, typer.Option("--source", "-s", help="Text to translate: the student's source side.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the new corpus.")],
    teacher: Annotated[
        list[Path] | None, typer.Argument(help="A model folder, ours or CTranslate2's; several are an ensemble.")
    ] = None,
    command: Annotated[
        str | None, typer.Option(help="Instead of a folder: a shell command that maps lines to lines.")
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option("--reference", "-r", help="The original target side, for --choose bleu and --with-original."),
    ] = None,
    languages: Annotated[str | None, typer.Option(help="Such as en-de; our own folders know theirs.")] = None,
    beam: Annotated[int | None, typer.Option(min=1, help="The teacher's beam.", show_default=str(TEACHER_BEAM))] = None,
    num_best: Annotated[int, typer.Option("--n-best", min=1, help="Candidates a line, to choose from.")] = 1,
    choose: Annotated[
        Literal["score", "bleu"], typer.Option(help="The teacher's first, or the nearest to the reference.")
    ] = "score",
    max_ratio: Annotated[float, typer.Option(min=1.0, help="Of lengths in words; more is left out.")] = 4.0,
    min_score: Annotated[float | None, typer.Option(help="A lower score of the teacher is left out.")] = None,
    repetition: Annotated[bool, typer.Option("--filter-repetition/--keep-repetition", help="Leave out loops.")] = True,
    copies: Annotated[bool, typer.Option("--filter-copies/--keep-copies", help="Leave out copied lines.")] = True,
    original: Annotated[bool, typer.Option("--with-original", help="Add the original pairs, too.")] = False,
    split: Annotated[
        bool | None,
        typer.Option(
            "--split/--no-split",
            help="Lines of several sentences one by one; only our own models do, all other teachers get whole lines.",
            show_default="split",
        ),
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(
            help="i/n: translate only this part; without it: the rest, and join all. torchrun's processes have one each"
        ),
    ] = None,
    batch_lines: Annotated[
        int,
        typer.Option(
            min=1, help=f"Lines that a kill can lose at most; with --engine ray {BLOCKS_PER_WORKER} x as many a worker."
        ),
    ] = 256,
    subwords: Annotated[list[str] | None, typer.Option(help="SentencePiece files of a CTranslate2 model.")] = None,
    engine: BulkEngine = "auto",
    device: DeviceName = "auto",
    workers: Workers = None,
    quiet: Quiet = False,
) -> None:
    """Write a corpus as a teacher would have; the same command goes on after a kill. Then train on it as on any."""
    from capsnmt.distillation.choosing import Filters
    from capsnmt.distillation.distill import DistillRequest
    from capsnmt.distillation.journal import Shard

    log_to_stderr(quiet)
    request = DistillRequest(
        source=source,
        output=output,
        reference=reference,
        languages=None if languages is None else parse_language_pair(languages),
        shard=Shard.of_this_process() if shard is None else Shard.parse(shard),
        batch_lines=batch_lines,
        choose=choose,
        filters=Filters(max_ratio=max_ratio, min_score=min_score, repetition=repetition, copy=copies),
        with_original=original,
    )
    if beam is not None and beam < num_best:
        raise CapsNMTError(f"--beam {beam} gives {beam} candidates at the most, --n-best {num_best} wants more")
    asked = beam is not None or num_best > 1 or split is not None
    options = TranslateOptions(beam=beam or beam_for(num_best), num_best=num_best, split=split is not False)
    manifest = verbs.distill(
        teacher or None,
        request,
        command=command,
        options=options if asked else None,
        subwords=subwords or [],
        engine=engine,
        device=device,
        workers=workers,
        show=not quiet,
    )
    if manifest is not None:
        typer.echo(json.dumps({key: manifest[key] for key in ("pairs", "verdicts", "original_pairs", "files")}))


def routing(
    sentence: Annotated[
        list[str],
        typer.Argument(
            metavar="[MODEL] SENTENCE",
            help=f"A model folder, or languages of a model that ships (default: {zoo.DEFAULT}); sentences in quotes.",
            show_default=False,
        ),
    ],
    html: Annotated[Path | None, typer.Option(help="Write a page that needs nothing from outside.")] = None,
    picture: Annotated[Path | None, typer.Option("--png", help="Write a picture (PNG, SVG or PDF).")] = None,
    json_: Annotated[Path | None, typer.Option("--json", help="Write the coefficients; - is stdout.")] = None,
    engine: Engine = "auto",
) -> None:
    """Show which capsule takes which word, iteration by iteration: in colours, as a page, a picture, or numbers."""
    from capsnmt.analysis.routing_map import for_terminal, picture_kind, save_picture, to_html

    model = sentence[0] if _is_model(*sentence) else None
    sentences = sentence if model is None else sentence[1:]
    if not sentences:
        raise CapsNMTError(f'which sentence? capsnmt routing {model} "A sentence in quotes."')
    kind = None if picture is None else picture_kind(picture)  # a wrong name is told before the model works
    maps = verbs.routing(model, sentences, engine=engine)
    if html is not None:
        with open_binary(html, "wb") as file:
            file.write(to_html(maps).encode("utf-8"))
    if picture is not None and kind is not None:
        with open_binary(picture, "wb") as file:
            save_picture(maps, file, kind)
    if json_ is not None:
        with open_binary(json_, "wb") as file:
            text = json.dumps([found.to_dict() for found in maps], ensure_ascii=False)
            file.write(text.encode("utf-8") + b"\n")
    if "-" not in map(str, (html, picture, json_)):
        console = Console()
        colours = console.color_system is not None and not console.no_color
        for found in maps:
            console.print(for_terminal(found, colours=colours), soft_wrap=not console.is_terminal)


def _is_model(word: str, *sentences: str) -> bool:
    """A path or a language pair of which there is no model is a mistyped one, not a sentence."""
    if os.path.isdir(word) or re.fullmatch("[a-z]{2,3}-[a-z]{2,3}", word):
        return True
    return bool(sentences) and "/" in word and " " not in word  # alone it is and/or


def reproduce(
    suite: Annotated[Path, typer.Argument(help="A suite, such as suites/routing-multi30k-en-de.yaml.")],
    data: Data = None,
    jobs: Annotated[int, typer.Option(min=1, help="Trainings side by side; each has its share of the cores.")] = 1,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Of one training, such as one on each GPU; default: the suite's.")
    ] = None,
    rows: Annotated[str, typer.Option(help="Train or plan only these, as in capsule,simple; the report has all.")] = "",
    train: Annotated[
        bool, typer.Option("--train/--no-train", help="Or only write the report of what is finished.")
    ] = True,
    measure: Annotated[
        bool | None,
        typer.Option(
            "--measure/--no-measure",
            help="Run the report's benchmarks, on a quiet machine; default: yes, but not with --rows or --no-train.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")] = False,
    devices: Annotated[
        str | None, typer.Option(help="With --dry-run: say also what it costs on them, as in 8xM40 or 2xcpu.")
    ] = None,
    pairs: Annotated[
        int | None, typer.Option(min=1, help="With --devices: size of the corpus, if its files are not here.")
    ] = None,
) -> None:
    """Train, evaluate and report all runs of a suite: tables, figures and the command behind every number."""
    if not dry_run and (devices is not None or pairs is not None):
        given = f"--pairs {pairs}" if devices is None else f"--devices {devices}"
        raise CapsNMTError(f"{given} is for --dry-run; trainings run where this command does")
    only = [row for row in rows.split(",") if row]
    if dry_run:
        from capsnmt.analysis.reproduction import absent_from, cost_of, plan_of
        from capsnmt.analysis.suite import read_suite

        planned = read_suite(suite, processes)
        costs = [] if devices is None else cost_of(planned, devices, data, only, pairs=pairs)
        for step in plan_of(planned, data, only):
            state = "done" if step["done"] else "to do"
            state = state if step["processes"] == 1 else f"{step['processes']} processes, {state}"
            typer.echo(f"{step['run']}: {step['updates']:,} updates, {step['tokens']:,} tokens at most, {state}")
        for line in costs:
            typer.echo(line)
        if absent := absent_from(planned, data, only):
            typer.echo(f"here it would end: {absent}", err=True)
        return
    folder = verbs.reproduce(
        suite,
        data=data,
        jobs=jobs,
        processes=processes,
        only=only,
        train=train,
        measure=measure,
        say=lambda text: typer.echo(text, err=True),
    )
    typer.echo(folder)


def bench(context: typer.Context) -> None:
    """Measure latency, throughput, growth, limit, start or pareto: `capsnmt bench --help`."""
    from capsnmt.bench.command import app as benchmarks  # its many options would slow down the start of all verbs

    benchmarks(args=context.args, prog_name="capsnmt bench")
