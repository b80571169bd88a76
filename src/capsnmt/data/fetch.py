"""Corpora by name: `mtdata` downloads what a recipe's `data.fetch` names, and its parts become the recipe's files.

mtdata is run as a command, not imported: it asks for older versions of packages that we use, so it may live in an
environment of its own (`pipx install mtdata`).
"""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, NamedTuple, cast

from capsnmt.config import ParallelText, RunConfig
from capsnmt.data.corpus import files_of, holds_tokens, open_binary, read_lines
from capsnmt.errors import CapsNMTError
from capsnmt.text.moses import tokenise


class NamedCorpus(NamedTuple):
    """mtdata's names of the parts, and of both languages."""

    languages: tuple[str, str]
    train: tuple[str, ...]
    valid: tuple[str, ...]
    test: tuple[str, ...]


# WMT14's training data as mtdata (0.4, 0.5) has it; the validation and test sets are those of Wang et al. 2019.
NAMED = {
    "wmt14-en-de": NamedCorpus(
        languages=("eng", "deu"),
        train=(
            "Statmt-europarl_wmt13-7-deu-eng",
            "Statmt-commoncrawl_wmt13-1-deu-eng",
            "OPUS-news_commentary-v9.1-deu-eng",
        ),
        valid=("Statmt-newstest-2012-eng-deu", "Statmt-newstest-2013-eng-deu"),
        test=("Statmt-newstest_deen-2014-deu-eng",),
    ),
    "wmt14-en-fr": NamedCorpus(
        languages=("eng", "fra"),
        train=(
            "Statmt-europarl_wmt13-7-fra-eng",
            "Statmt-commoncrawl_wmt13-1-fra-eng",
            "OPUS-multiun-v1-eng-fra",
            "OPUS-news_commentary-v9.1-eng-fra",
            "OPUS-giga_fren-v2-eng-fra",
        ),
        valid=("Statmt-newstest-2012-eng-fra", "Statmt-newstest-2013-eng-fra"),
        test=("Statmt-newstest_fren-2014-fra-eng",),
    ),
}


def fetch_missing(config: RunConfig) -> None:
    """Downloads the corpus that `data.fetch` names into the files of the recipe, unless they are there."""
    data = config.data
    assert data.fetch is not None
    named = NAMED[data.fetch]
    wanted = {"train": data.train, "valid": data.valid, "test": data.test}
    parts: dict[str, tuple[str, ...]] = {"train": named.train, "valid": named.valid, "test": named.test}
    missing = {
        name: text
        for name, text in wanted.items()
        if text is not None and not all(file.is_file() for file in files_of(text, data.root))
    }
    if not missing:
        return
    if any(text.source is None for text in missing.values()):
        raise CapsNMTError(f"data.fetch: {data.fetch} needs `source` and `target` in data.{', data.'.join(missing)}")
    download = Path(data.root) / f".{data.fetch}.mtdata"  # kept after a failure: mtdata goes on with what it has
    _run_mtdata(config, named, download)
    for name, text in missing.items():
        folder = download / ("train-parts" if name == "train" else "tests")
        sides = (config.languages.source, config.languages.target)
        for file, code, language in zip(files_of(text, data.root), named.languages, sides, strict=True):
            _join([folder / f"{part}.{code}" for part in parts[name]], file, language)
    shutil.rmtree(download, ignore_errors=True)


def _run_mtdata(config: RunConfig, named: NamedCorpus, download: Path) -> None:
    command = shutil.which("mtdata")
    if command is None:
        raise CapsNMTError(
            f"data.fetch: {config.data.fetch} needs the command mtdata: pipx install mtdata\n{_by_hand(config, named)}"
        )
    download.mkdir(parents=True, exist_ok=True)
    pair, held_out = "-".join(named.languages), [*named.valid, *named.test]
    words = [command, "get", "-l", pair, "-tr", *named.train, "-ts", *held_out, "--fail", "-o", str(download)]
    ended = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if ended.returncode != 0 or "ConnectionError" in ended.stdout:
        said = ended.stdout.strip().rpartition("\n")[2][:500]
        offline = any(sign in ended.stdout for sign in ("ConnectionError", "NameResolutionError", "Max retries"))
        reason = "there is no network, or the server does not answer" if offline else f"exit code {ended.returncode}"
        raise CapsNMTError(
            f"mtdata could not download {config.data.fetch} ({reason}): {said}\n{_by_hand(config, named)}"
        )


def _by_hand(config: RunConfig, named: NamedCorpus) -> str:
    """What to bring, and where to put it."""
    data = config.data
    texts: list[tuple[ParallelText | None, Sequence[str]]] = [
        (data.train, named.train),
        (data.valid, named.valid),
        (data.test, named.test),
    ]
    lines = [
        "To bring the files by hand, download them where there is a network (https://www.statmt.org/wmt14) and put"
    ]
    tokenised = False
    for text, parts in texts:
        if text is not None:
            files = files_of(text, data.root)
            tokenised |= any(map(holds_tokens, files))
            lines.append(f"  {', '.join(parts)}, one after the other, into {' and '.join(map(str, files))}")
    if tokenised:
        codes = " and ".join(repr(code) for code in (config.languages.source, config.languages.target))
        lines.append(
            "Files with .tok. in their names hold Moses tokens without XML escapes: send each line through "
            f"sacremoses.MosesTokenizer(lang).tokenize(line, return_str=True, escape=False) with {codes} first."
        )
    return "\n".join([*lines, "Line n of one file must be the translation of line n of the other."])


def _join(parts: list[Path], file: Path, language: str) -> None:
    """Writes the parts one after the other, as tokens if the name says so; the file appears when it is complete."""
    for part in parts:
        if not part.is_file():
            raise CapsNMTError(f"mtdata has not written {part}; delete {part.parents[1]} and try again")
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        copy = _token_writer(language) if holds_tokens(file) else _copy
        with _compressed(temporary, file.suffix) as target:
            for part in parts:
                copy(part, target)
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


def _copy(part: Path, target: IO[bytes]) -> None:
    with open_binary(part) as source:
        shutil.copyfileobj(source, target, 1 << 20)


def _token_writer(language: str) -> Callable[[Path, IO[bytes]], None]:
    """Like `_copy`, but each line becomes its Moses tokens."""

    def write(part: Path, target: IO[bytes]) -> None:
        for line in read_lines(part):
            target.write(f"{tokenise(line, language)}\n".encode())

    return write


@contextmanager
def _compressed(path: Path, suffix: str) -> Iterator[IO[bytes]]:
    """A file to write, compressed as its final name says."""
    with ExitStack() as stack:
        raw = stack.enter_context(path.open("wb"))
        if suffix == ".gz":
            yield cast("IO[bytes]", stack.enter_context(gzip.GzipFile(fileobj=raw, mode="wb")))
        elif suffix == ".zst":
            import zstandard

            yield cast("IO[bytes]", stack.enter_context(zstandard.ZstdCompressor(level=3).stream_writer(raw)))
        else:
            yield raw
