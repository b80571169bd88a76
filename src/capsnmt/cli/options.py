"""Arguments and options that several verbs share, and the files they name."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from capsnmt import zoo
from capsnmt.errors import CapsNMTError

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
BulkEngine = Annotated[
    str, typer.Option(help="auto, onnx, torch; or ray: over a cluster, or the cores of this machine, in bulk.")
]
DeviceName = Annotated[str, typer.Option("--device", help="auto, cpu or cuda (torch only).")]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes of engine ray; default: all CPUs.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only errors.")]


@contextmanager
def open_binary(path: Path, mode: Literal["rb", "wb"]) -> Iterator[Any]:
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


def log_to_stderr(quiet: bool) -> None:
    """Progress and warnings go where translations do not."""
    logging.basicConfig(level=logging.WARNING if quiet else logging.INFO, format="%(message)s", stream=sys.stderr)
