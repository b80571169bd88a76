"""The folder of a distilled corpus: its files, what must not be overwritten there, and writes that no kill tears."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout

from capsnmt.config import LanguagesConfig
from capsnmt.distillation import MANIFEST, VERDICTS
from capsnmt.distillation.journal import journals_in
from capsnmt.errors import CapsNMTError


def corpus_files(folder: Path, languages: LanguagesConfig) -> list[Path]:
    """Source side, target side, verdicts."""
    return [folder / name for name in (f"train.{languages.source}", f"train.{languages.target}", VERDICTS)]


def check_nothing_is_overwritten(folder: Path, written: Sequence[Path], read: Sequence[Path]) -> None:
    """What is written may be neither what is read, by whatever name, nor a file that somebody else put there."""
    there = [path for path in written if os.path.lexists(path)]
    for path in there:
        for text in read:
            if os.path.exists(path) and os.path.exists(text) and os.path.samefile(path, text):
                raise CapsNMTError(
                    f"--output {folder}: its {path.name} would overwrite {text}, which is read; choose another folder"
                )
    if there and not _is_ours(folder):
        names = ", ".join(path.name for path in there)
        raise CapsNMTError(
            f"--output {folder} has {names} already, which `distill` did not write; choose another folder, or move the "
            "files away"
        )


def _is_ours(folder: Path) -> bool:
    """Whether a distillation has begun or ended there."""
    if journals_in(folder):
        return True
    try:
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and {"teacher", "verdicts"} <= found.keys()


def make_folder(folder: Path) -> None:
    """The folder, unless it is there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CapsNMTError(
            f"--output {folder}: this folder cannot be made ({error.strerror}); choose another"
        ) from None


def write_line(file: BinaryIO, text: str) -> None:
    """In UTF-8, with its end."""
    file.write(text.encode("utf-8") + b"\n")


@contextmanager
def written_whole(paths: Sequence[Path]) -> Iterator[list[BinaryIO]]:
    """Files that get their names when all of them are written: a kill leaves the old ones."""
    temporary = [path.with_name(f".{path.name}.writing") for path in paths]
    with ExitStack() as opened:
        yield [opened.enter_context(path.open("wb")) for path in temporary]
    for written, path in zip(temporary, paths, strict=True):
        written.replace(path)


@contextmanager
def alone_with(path: Path) -> Iterator[None]:
    """Nobody else writes a file meanwhile."""
    try:
        lock = FileLock(path.with_suffix(".lock"), timeout=0).acquire()
    except Timeout:
        raise CapsNMTError(f"another process is writing {path}; wait for it, or take another --shard") from None
    except OSError as error:
        raise CapsNMTError(
            f"--output {path.parent}: no file can be written there ({error.strerror}); choose another"
        ) from None
    with lock:
        yield
