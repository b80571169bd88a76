"""From a corpus to a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from capsnmt import verbs
from capsnmt.cli.options import Data, Folder, Output, Quiet, Recipe, Set, log_to_stderr, open_binary
from capsnmt.config import parse_language_pair


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
        with open_binary(json_, "wb") as file:
            file.write(json.dumps(report.to_dict(), indent=1, ensure_ascii=False).encode("utf-8") + b"\n")
    if json_ is None or str(json_) != "-":
        from capsnmt.data.doctor import print_report

        print_report(report, Console())
    raise typer.Exit(1 if report.would_stop else 0)


def prepare(recipe: Recipe, set_: Set = None, data: Data = None, quiet: Quiet = False) -> None:
    """Train the subwords of a recipe and write its token store."""
    log_to_stderr(quiet)
    typer.echo(verbs.prepare(verbs.recipe(recipe, overrides=set_ or [], data=data), show=not quiet))


def train(recipe: Recipe, set_: Set = None, data: Data = None, output: Output = None, quiet: Quiet = False) -> None:
    """Train a recipe; the same command again resumes it. Prepares the corpus first if need be."""
    log_to_stderr(quiet)
    typer.echo(verbs.train(verbs.recipe(recipe, overrides=set_ or [], data=data, output=output), show=not quiet))


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
        with open_binary(json_, "wb") as file:
            file.write(json.dumps(found.to_dict(), indent=1).encode("utf-8") + b"\n")
    if json_ is None or str(json_) != "-":
        for line in found.lines:
            typer.echo(line)


def average(
    model: Folder,
    last: Annotated[int, typer.Option(min=1, help="Number of newest checkpoints to average.")] = 5,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Weights file; default: the folder's.")] = None,
) -> None:
    """Average the last checkpoints of a run into its weights."""
    typer.echo(verbs.average(model, last=last, output=output))
