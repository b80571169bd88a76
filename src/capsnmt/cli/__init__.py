"""The command `capsnmt`: thin verbs over verbs.py. Exit codes: 0 done, 1 an error, 2 wrong usage, 130 Ctrl-C."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer
from rich.console import Console

from capsnmt import __version__
from capsnmt.cli.research import bench, distill, reproduce, routing
from capsnmt.cli.training import average, doctor, plan, prepare, train
from capsnmt.cli.translating import evaluate, export, score, serve, translate
from capsnmt.errors import CapsNMTError

app = typer.Typer(
    name="capsnmt",
    help="Linear-time neural machine translation with capsule networks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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


_VERBS = doctor, prepare, plan, train, average, translate, evaluate, score, export, serve, distill, routing, reproduce
for _verb in _VERBS:
    app.command()(_verb)
# bench has a command of its own for each kind
app.command(add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(bench)


def main(argv: list[str] | None = None) -> None:
    """Runs the command and turns every ending into an exit code."""
    if "CAPSNMT_PARENT" in os.environ:
        from capsnmt.analysis.processes import end_with_parent

        end_with_parent()
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
