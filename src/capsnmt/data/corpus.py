"""Reading parallel text, line by line and strictly: a misread line break misaligns the rest of a corpus."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from capsnmt.config import ParallelText
from capsnmt.errors import CapsNMTError

try:
    import zstandard
except ModuleNotFoundError:  # it comes with the training extra; plain and .gz files do without
    zstandard = None  # type: ignore[assignment]

BOM = b"\xef\xbb\xbf"
READ_ERRORS = (OSError, EOFError, zlib.error, *(() if zstandard is None else (zstandard.ZstdError,)))


def read_lines(path: str | Path) -> Iterator[str]:
    """The lines of a UTF-8 file, plain, .gz or .zst. Only LF and CRLF end a line, never U+2028 and its kin."""
    file = Path(path)
    number = 0
    try:
        with open_binary(file) as stream:
            for number, raw in enumerate(stream, start=1):
                line = raw.removesuffix(b"\n").removesuffix(b"\r")
                if number == 1:
                    line = line.removeprefix(BOM)
                yield line.decode("utf-8")
    except FileNotFoundError:
        raise CapsNMTError(f"{file} does not exist") from None
    except UnicodeDecodeError as error:
        raise CapsNMTError(
            f"{file}, line {number}: not valid UTF-8 (byte {error.start + 1} of the line is "
            f"0x{error.object[error.start]:02x}); convert the file, for example with iconv -t UTF-8"
        ) from None
    except READ_ERRORS as error:
        raise CapsNMTError(f"{file}: cannot be read after line {number} ({error}); is the file complete?") from None


def open_binary(file: Path) -> IO[bytes]:
    """The bytes of a plain, .gz or .zst file."""
    if file.suffix == ".gz":
        return cast("IO[bytes]", gzip.open(file, "rb"))
    if file.suffix == ".zst":
        if zstandard is None:
            raise CapsNMTError(f"{file}: reading .zst needs zstandard: pip install 'capsnmt[train]'")
        # Parallel compressors write several frames; without this only the first would be read.
        reader = zstandard.ZstdDecompressor().stream_reader(file.open("rb"), read_across_frames=True)
        return io.BufferedReader(cast("io.RawIOBase", reader), buffer_size=1 << 20)
    return file.open("rb", buffering=1 << 20)


def names_of(text: ParallelText) -> list[str]:
    """The one or two files of a parallel text, as the recipe names them."""
    return [name for name in (text.source, text.target, text.tsv) if name is not None]


def files_of(text: ParallelText, root: str) -> list[Path]:
    """The one or two files of a parallel text; relative names start at `root`."""
    return [Path(root) / name for name in names_of(text)]


def holds_tokens(file: Path) -> bool:
    """Recipes on words read files of Moses tokens, and their names say so."""
    return ".tok." in file.name


def read_pairs(text: ParallelText, root: str) -> Iterator[tuple[str, str]]:
    """Source and target line by line, from two files or from a TSV."""
    files = files_of(text, root)
    for file in files:
        if not file.exists():
            raise CapsNMTError(f"{file} does not exist; relative names of data start at `data.root`, check both")
    return _read_tsv(files[0]) if text.tsv is not None else _read_two_files(files[0], files[1])


def _read_tsv(file: Path) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(read_lines(file), start=1):
        columns = line.split("\t")
        if len(columns) < 2:
            raise CapsNMTError(f"{file}, line {number}: no tab; each line must be source, tab, target")
        yield columns[0], columns[1]


def _read_two_files(source_file: Path, target_file: Path) -> Iterator[tuple[str, str]]:
    sources, targets = read_lines(source_file), read_lines(target_file)
    pairs = 0
    while True:
        source, target = next(sources, None), next(targets, None)
        if source is None and target is None:
            return
        if source is None or target is None:
            source_count = pairs + (source is not None) + sum(1 for _ in sources)
            target_count = pairs + (target is not None) + sum(1 for _ in targets)
            raise CapsNMTError(
                f"{source_file} has {source_count} lines, but {target_file} has {target_count}; "
                "line n of one must be the translation of line n of the other"
            )
        pairs += 1
        yield source, target
