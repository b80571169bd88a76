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

from capsnmt.config import FORMAT_VERSION, RunConfig, flatten
from capsnmt.data.corpus import files_of, read_pairs
from capsnmt.data.demo import write_demo
from capsnmt.data.store import ROWS_PER_BATCH, Row, Store, write_store
from capsnmt.errors import CapsNMTError
from capsnmt.text.normalise import normalise
from capsnmt.text.pipeline import TextPipeline, subword_files
from capsnmt.text.subwords import train_subwords

_LOG = logging.getLogger(__name__)

_INFO_FILE = "store.json"
_TRAIN_FILE = "train.arrow"
_VALID_FILE = "valid.arrow"
_PAIRS_PER_LOG_LINE = 100_000

Pair = tuple[str, str]


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
        _write_missing_demo(config)
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
    with _progress_bar(progress) as bar:
        pairs_read = None
        if config.data.subwords_from is None:
            pairs_read = _train_all_subwords(folder, config, bar)
        else:
            TextPipeline.load(Path(config.data.subwords_from), config.text).copy_to(folder)
        pipeline = TextPipeline.load(folder, config.text)
        train_counts: Counter[str] = Counter()
        pairs = _watched(read_pairs(config.data.train, config.data.root), bar, "encoding train", pairs_read)
        rows = _count_and_filter(_encode(pairs, pipeline), train_counts, max_tokens=config.data.max_tokens)
        train_counts["kept"] = write_store(folder / _TRAIN_FILE, rows)
        pairs = _watched(read_pairs(config.data.valid, config.data.root), bar, "encoding valid", None)
        # Valid keeps every pair: leaving out hard ones would flatter the model.
        valid_kept = write_store(folder / _VALID_FILE, _encode(pairs, pipeline))
    if train_counts["kept"] == 0:
        raise CapsNMTError(
            f"no training pair is left of {train_counts['read']} (empty side: {train_counts['empty']}, longer than "
            f"data.max_tokens {config.data.max_tokens}: {train_counts['too_long']}); check both keys"
        )
    info = {
        "format_version": FORMAT_VERSION,
        "settings": _settings(config),
        "file_sizes": sizes,
        "train": {key: train_counts[key] for key in ("read", "kept", "empty", "too_long")},
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


def _train_all_subwords(folder: Path, config: RunConfig, bar: Progress) -> int:
    """Trains on the training text only and returns its number of pairs."""
    subwords = config.text.subwords
    source_file, target_file = (folder / name for name in subword_files(subwords.joint))
    counter: Counter[str] = Counter()

    def pairs(label: str) -> Iterator[Pair]:
        counter["pairs"] = 0
        for pair in _watched(read_pairs(config.data.train, config.data.root), bar, label, None):
            counter["pairs"] += 1
            yield pair

    def lines(label: str, sides: tuple[int, ...]) -> Iterator[str]:
        return (normalise(pair[side], config.text.normalise) for pair in pairs(label) for side in sides)

    if subwords.joint:
        train_subwords(lines("subwords", (0, 1)), subwords, source_file)
    else:
        train_subwords(lines("source subwords", (0,)), subwords, source_file)
        train_subwords(lines("target subwords", (1,)), subwords, target_file)
    return counter["pairs"]


def _encode(pairs: Iterable[Pair], pipeline: TextPipeline) -> Iterator[Row]:
    remaining = iter(pairs)
    while chunk := list(islice(remaining, ROWS_PER_BATCH)):
        sources = [pipeline.normalise(source) for source, _ in chunk]
        targets = [pipeline.normalise(target) for _, target in chunk]
        source_ids = pipeline.encode_normalised(sources, "source")
        target_ids = pipeline.encode_normalised(targets, "target")
        yield from map(Row, sources, targets, source_ids, target_ids)


def _count_and_filter(rows: Iterable[Row], counts: Counter[str], *, max_tokens: int) -> Iterator[Row]:
    for row in rows:
        counts["read"] += 1
        if not row.source.strip() or not row.target.strip():
            counts["empty"] += 1
        elif max(len(row.source_ids), len(row.target_ids)) > max_tokens:
            counts["too_long"] += 1
        else:
            yield row


def _settings(config: RunConfig) -> dict[str, Any]:
    """What decides the content of a store, by dotted key. `data.root` is no part of it: a corpus may move."""
    text = config.text.model_dump(mode="json")
    text["subwords"].pop("dropout")  # applied while training
    data = config.data.model_dump(mode="json", include={"train", "valid", "max_tokens", "subwords_from"})
    return flatten({"data": data, "text": text})


def _file_sizes(config: RunConfig) -> dict[str, int]:
    """Bytes of each text file that is there, by its name in the config."""
    names = [text.model_dump(exclude_none=True) for text in (config.data.train, config.data.valid)]
    files = [files_of(text, config.data.root) for text in (config.data.train, config.data.valid)]
    return {
        name: file.stat().st_size
        for text_names, text_files in zip(names, files, strict=True)
        for name, file in zip(text_names.values(), text_files, strict=True)
        if file.is_file()
    }


def _check_same(folder: Path, config: RunConfig) -> None:
    """Raises unless the store in this folder is complete and was made from these settings and files."""
    info = _read_info(folder)
    was, now = info["settings"], _settings(config)
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


def _write_missing_demo(config: RunConfig) -> None:
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
