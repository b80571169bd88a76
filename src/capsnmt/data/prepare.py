"""From the text files of a recipe to its store: subwords, then ids, in a folder that appears only when complete."""

from __future__ import annotations

import errno
import json
import logging
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from capsnmt.config import FORMAT_VERSION, FilterConfig, ParallelText, RunConfig, TextConfig, flatten
from capsnmt.data.corpus import files_of, read_pairs
from capsnmt.data.demo import write_demo
from capsnmt.data.filters import EMPTY, HashSet, Pair, Sieve, active_checks, hashes_of, overlap_key
from capsnmt.data.store import ROWS_PER_BATCH, Row, Store, write_store
from capsnmt.errors import CapsNMTError
from capsnmt.text.normalise import normalise
from capsnmt.text.pipeline import TextPipeline, subword_files
from capsnmt.text.spans import mask_pair
from capsnmt.text.subwords import train_subwords

_LOG = logging.getLogger(__name__)

_INFO_FILE = "store.json"
_TRAIN_FILE = "train.arrow"
_VALID_FILE = "valid.arrow"
_PAIRS_PER_LOG_LINE = 100_000
_TOO_LONG = "too_long"  # by data.max_tokens; what the filters of text leave out has names of its own

_NO_FILTERS = flatten({"data": {"filters": FilterConfig().model_dump(mode="json")}})


@dataclass(frozen=True)
class PreparedCorpus:
    """An opened store; `info` is its store.json."""

    folder: Path
    info: dict[str, Any]
    train: Store
    valid: Store


def prepare(config: RunConfig, *, progress: bool = True) -> Path:
    """Prepares the corpus of a recipe and returns its store folder; a store with the same settings is used again."""
    folder = Path(config.data.store)
    if config.data.generate == "demo":
        write_missing_demo(config)
    if folder.is_dir() and any(folder.iterdir()):
        _check_same(folder, config)
        _LOG.info("%s is already prepared", folder)
        return folder
    try:
        info = _build(folder, config, progress=progress)
    except OSError as error:
        raise CapsNMTError(f"cannot write data.store {folder}: {error}; choose another folder or make room") from None
    _LOG.info("%s: train %s, valid %s", folder, info["train"], info["valid"])
    return folder


def load_store(folder: str | Path) -> PreparedCorpus:
    """Opens a prepared corpus."""
    folder = Path(folder)
    info = _read_info(folder)
    return PreparedCorpus(folder, info, Store(folder / _TRAIN_FILE), Store(folder / _VALID_FILE))


def _build(folder: Path, config: RunConfig, *, progress: bool) -> dict[str, Any]:
    """Fills a temporary folder and renames it, so that `folder` never holds half a store."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Beside its final place, because only a rename within one file system is atomic.
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        temporary.chmod(0o755)  # mkdtemp makes folders that colleagues cannot read
        info = _fill(temporary, config, progress=progress)
        _move_into_place(temporary, folder, config)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return info


def _fill(folder: Path, config: RunConfig, *, progress: bool) -> dict[str, Any]:
    """Writes every file of the store, store.json last."""
    sizes = _file_sizes(config)  # before reading, so that a file that grows meanwhile is noticed later
    sieve = _sieve(config)
    with _progress_bar(progress) as bar:
        pairs_read = None
        if config.data.subwords_from is None:
            pairs_read = _train_all_subwords(folder, config, sieve, bar)
        else:
            TextPipeline.load(Path(config.data.subwords_from), config.text).copy_to(folder)
        pipeline = TextPipeline.load(folder, config.text)
        counts: Counter[str] = Counter()
        pairs = _watched(_read_normalised(config, config.data.train), bar, "encoding train", pairs_read)
        rows = _encode(_sieved(pairs, sieve, counts), pipeline)
        counts["kept"] = write_store(folder / _TRAIN_FILE, _short_enough(rows, config.data.max_tokens, counts))
        pairs = _watched(_read_normalised(config, config.data.valid), bar, "encoding valid", None)
        # Valid keeps every pair: leaving out hard ones would flatter the model.
        valid_kept = write_store(folder / _VALID_FILE, _encode(pairs, pipeline))
    if counts["kept"] == 0:
        raise _nothing_left(counts, config, sieve)
    info = {
        "format_version": FORMAT_VERSION,
        "settings": _settings(config),
        "file_sizes": sizes,
        "train": {key: counts[key] for key in ("read", "kept", EMPTY, _TOO_LONG, *sieve.reasons)},
        "valid": {"read": valid_kept, "kept": valid_kept},
        "vocabulary": {
            "source_size": pipeline.source_size,
            "target_size": pipeline.target_size,
            "fingerprint": pipeline.fingerprint,
        },
    }
    temporary = folder / f"{_INFO_FILE}.tmp"
    temporary.write_text(json.dumps(info, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    temporary.replace(folder / _INFO_FILE)
    return info


def _train_all_subwords(folder: Path, config: RunConfig, sieve: Sieve, bar: Progress) -> int:
    """Trains on the training text only and returns its number of pairs.

    What the filters leave out must not take up places in the vocabulary; a pair with one empty side is text enough.
    """
    subwords = config.text.subwords
    source_file, target_file = (folder / name for name in subword_files(subwords.joint))
    counts: Counter[str] = Counter()

    def lines(label: str, sides: tuple[int, ...]) -> Iterator[str]:
        counts.clear()
        for pair, reason in sieve.judge(_watched(_read_normalised(config, config.data.train), bar, label, None)):
            counts.update(["read", reason or "kept"])
            if reason is None or reason == EMPTY:
                masked = _masked(pair, config.text)
                yield from (masked[side] for side in sides)

    try:
        if subwords.joint:
            train_subwords(lines("subwords", (0, 1)), subwords, source_file)
        else:
            train_subwords(lines("source subwords", (0,)), subwords, source_file)
            train_subwords(lines("target subwords", (1,)), subwords, target_file)
    except CapsNMTError:
        if counts["kept"] == 0 and any(counts[reason] for reason in sieve.reasons):
            raise _nothing_left(counts, config, sieve) from None  # not the fault of the subwords
        raise
    return counts["read"]


def _nothing_left(counts: Counter[str], config: RunConfig, sieve: Sieve) -> CapsNMTError:
    filtered = "".join(f", data.filters, {reason}: {counts[reason]}" for reason in sieve.reasons)
    return CapsNMTError(
        f"no training pair is left of {counts['read']} (empty side: {counts[EMPTY]}, longer than "
        f"data.max_tokens {config.data.max_tokens}: {counts[_TOO_LONG]}{filtered}); check these keys and the text"
    )


def _read_normalised(config: RunConfig, text: ParallelText) -> Iterator[Pair]:
    """The pairs as the filters, the subwords and the store see them."""
    settings = config.text.normalise
    for source, target in read_pairs(text, config.data.root):
        yield normalise(source, settings), normalise(target, settings)


def _sieve(config: RunConfig) -> Sieve:
    """The filters of a recipe; those that look for overlap read valid and test first."""
    held_out = HashSet()
    if config.data.filters.drop_overlap:
        _, *others = _texts_read(config)
        for text in others:
            pairs = _read_normalised(config, text)
            while chunk := list(islice(pairs, ROWS_PER_BATCH)):
                held_out.add(hashes_of(overlap_key(source) for source, _ in chunk))
    return Sieve(active_checks(config.data.filters, languages=config.languages, held_out=held_out))


def _sieved(pairs: Iterable[Pair], sieve: Sieve, counts: Counter[str]) -> Iterator[Pair]:
    """The pairs that stay; the others are counted, each by its first reason."""
    for pair, reason in sieve.judge(pairs):
        counts["read"] += 1
        if reason is None:
            yield pair
        else:
            counts[reason] += 1


def _masked(pair: Pair, text: TextConfig) -> Pair:
    """The pair as the model sees it: protected spans of both sides as reserved symbols."""
    return mask_pair(*pair, text.protect, text.subwords.protected_symbols) if text.protect else pair


def _encode(pairs: Iterable[Pair], pipeline: TextPipeline) -> Iterator[Row]:
    remaining = (_masked(pair, pipeline.config) for pair in pairs)
    while chunk := list(islice(remaining, ROWS_PER_BATCH)):
        sources, targets = (list(side) for side in zip(*chunk, strict=True))
        source_ids = pipeline.encode_normalised(sources, "source")
        target_ids = pipeline.encode_normalised(targets, "target")
        yield from map(Row, sources, targets, source_ids, target_ids)


def _short_enough(rows: Iterable[Row], max_tokens: int, counts: Counter[str]) -> Iterator[Row]:
    for row in rows:
        if max(len(row.source_ids), len(row.target_ids)) > max_tokens:
            counts[_TOO_LONG] += 1
        else:
            yield row


def _settings(config: RunConfig) -> dict[str, Any]:
    """What decides the content of a store, by dotted key. `data.root` is no part of it: a corpus may move."""
    text = config.text.model_dump(mode="json")
    text["subwords"].pop("dropout")  # applied while training
    filters = config.data.filters
    deciding = {"train", "valid", "max_tokens", "subwords_from", "filters"}
    if filters.drop_overlap:
        deciding.add("test")
    sections = {"data": config.data.model_dump(mode="json", include=deciding), "text": text}
    if filters.wrong_language:
        sections["languages"] = config.languages.model_dump(mode="json")
    return flatten(sections)


def _texts_read(config: RunConfig) -> list[ParallelText]:
    """The texts that the store depends on: test only where its sentences are kept out of train."""
    test = config.data.test if config.data.filters.drop_overlap else None
    return [text for text in (config.data.train, config.data.valid, test) if text is not None]


def _file_sizes(config: RunConfig) -> dict[str, int]:
    """Bytes of each text file that is there, by its name in the config."""
    texts = _texts_read(config)
    names = [name for text in texts for name in text.model_dump(exclude_none=True).values()]
    files = [file for text in texts for file in files_of(text, config.data.root)]
    return {name: file.stat().st_size for name, file in zip(names, files, strict=True) if file.is_file()}


def _check_same(folder: Path, config: RunConfig) -> None:
    """Raises unless the store in this folder is complete and was made from these settings and files."""
    info = _read_info(folder)
    # A store from before the filters or the protected spans was made without them, which is what their defaults say.
    was, now = {**_NO_FILTERS, "text.protect": [], **info["settings"]}, _settings(config)
    differing = [key for key in sorted(was.keys() | now.keys()) if was.get(key) != now.get(key)]
    faults = [f"{key}: the store has {was.get(key)!r}, the recipe {now.get(key)!r}" for key in differing]
    # A text that is gone or elsewhere does not matter, a text that was edited since does.
    sizes = _file_sizes(config)
    faults += [
        f"{name}: had {size} bytes, now has {sizes[name]}"
        for name, size in info["file_sizes"].items()
        if sizes.get(name, size) != size
    ]
    if faults:
        listed = "\n".join(f"  {fault}" for fault in faults)
        raise CapsNMTError(
            f"the store {folder} was prepared from something else:\n{listed}\n"
            "choose another folder as `data.store`, or delete this one to prepare it again"
        )


def _read_info(folder: Path) -> dict[str, Any]:
    try:
        info: dict[str, Any] = json.loads((folder / _INFO_FILE).read_text(encoding="utf-8"))
        version = info["format_version"]
    except (OSError, ValueError, KeyError, TypeError):
        raise CapsNMTError(
            f"{folder} is no complete store (no readable {_INFO_FILE}); prepare the corpus first, "
            "or choose another folder as `data.store`"
        ) from None
    if version != FORMAT_VERSION:
        raise CapsNMTError(
            f"the store {folder} has format {version}, this version reads {FORMAT_VERSION}; delete it and prepare again"
        )
    return info


def _move_into_place(temporary: Path, folder: Path, config: RunConfig) -> None:
    try:
        temporary.rename(folder)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        _check_same(folder, config)  # another process was faster: its store serves as well


def write_missing_demo(config: RunConfig) -> None:
    """Writes the made-up corpus of a recipe with `data.generate: demo`, unless it is there."""
    texts = [text for text in (config.data.train, config.data.valid, config.data.test) if text is not None]
    if not all(file.is_file() for text in texts for file in files_of(text, config.data.root)):
        write_demo(Path(config.data.root))


@contextmanager
def _progress_bar(wanted: bool) -> Iterator[Progress]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(
        *columns, TimeRemainingColumn(), console=console, disable=not (wanted and console.is_terminal)
    ) as bar:
        yield bar


def _watched(pairs: Iterable[Pair], bar: Progress, label: str, total: int | None) -> Iterator[Pair]:
    """Passes the pairs on; shows a bar, or logs a line now and then where there is no terminal."""
    task = bar.add_task(label, total=total)
    number = 0
    for number, pair in enumerate(pairs, start=1):
        yield pair
        if number % 1000 == 0:
            bar.update(task, completed=number)
        if bar.disable and number % _PAIRS_PER_LOG_LINE == 0:
            _LOG.info("%s: %d pairs", label, number)
    bar.update(task, completed=number, total=number)
