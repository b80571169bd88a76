"""From the text files of a recipe to its store: the three stages, in a folder that appears only when complete."""

from __future__ import annotations

import errno
import fcntl
import glob
import json
import logging
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capsnmt.config import FORMAT_VERSION, FilterConfig, ParallelText, RunConfig, flatten
from capsnmt.data.corpus import files_of
from capsnmt.data.demo import write_demo
from capsnmt.data.filters import EMPTY, active_reasons
from capsnmt.data.stages import Stages, encode_train, encode_valid, progress_bar, read_train, train_all_subwords
from capsnmt.data.store import Store
from capsnmt.data.workers import default_workers
from capsnmt.errors import CapsNMTError
from capsnmt.text.pipeline import TextPipeline

_LOG = logging.getLogger(__name__)

_INFO_FILE = "store.json"
_TRAIN_FILE = "train.arrow"
_VALID_FILE = "valid.arrow"
_UNFINISHED = ".unfinished"  # ends the names of folders that are being filled
_TEXT_FILE = "text.arrow"  # what is left of train, until it is encoded
_BYTES_FOR_WORKERS = 8_000_000  # of text; with less they would take longer to start than to do it
_TOO_LONG = "too_long"  # by data.max_tokens; what the filters of text leave out has names of its own

_NO_FILTERS = flatten({"data": {"filters": FilterConfig().model_dump(mode="json")}})


@dataclass(frozen=True)
class PreparedCorpus:
    """An opened store; `info` is its store.json."""

    folder: Path
    info: dict[str, Any]
    train: Store
    valid: Store


def prepare(config: RunConfig, *, progress: bool = True, workers: int | None = None) -> Path:
    """Prepares the corpus of a recipe and returns its store folder; a store with the same settings is used again.

    The store is the same for any number of `workers`; by default large corpora get one for each core, up to four.
    """
    folder = Path(config.data.store)
    if config.data.generate == "demo":
        write_missing_demo(config)
    _remove_abandoned(folder)
    if folder.is_dir() and any(folder.iterdir()):
        _check_same(folder, config)
        _LOG.info("%s is already prepared", folder)
        return folder
    try:
        info = _build(folder, config, progress=progress, workers=workers)
    except OSError as error:
        raise CapsNMTError(f"cannot write data.store {folder}: {error}; choose another folder or make room") from None
    _LOG.info("%s: train %s, valid %s", folder, info["train"], info["valid"])
    return folder


def load_store(folder: str | Path) -> PreparedCorpus:
    """Opens a prepared corpus."""
    folder = Path(folder)
    info = _read_info(folder)
    return PreparedCorpus(folder, info, Store(folder / _TRAIN_FILE), Store(folder / _VALID_FILE))


def _build(folder: Path, config: RunConfig, *, progress: bool, workers: int | None) -> dict[str, Any]:
    """Fills a temporary folder and renames it, so that `folder` never holds half a store."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        with _locked(folder.parent, wait=True):  # nobody may take the new folder for an abandoned one
            # Beside its final place, because only a rename within one file system is atomic.
            name = tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=_UNFINISHED, dir=folder.parent)
            held.callback(shutil.rmtree, name, ignore_errors=True)
            held.enter_context(_locked(Path(name)))
        temporary = Path(name)
        temporary.chmod(0o755)  # mkdtemp makes folders that colleagues cannot read
        with progress_bar(progress) as bar:
            stages = Stages(bar)
            info = _fill(temporary, config, stages, workers)
        stages.log(info["train"]["read"])
        _move_into_place(temporary, folder, config)
    return info


def _remove_abandoned(folder: Path) -> None:
    """Removes what killed processes left of this store; what a living one is filling stays."""
    with suppress(OSError), _locked(folder.parent, wait=True):
        for left in folder.parent.glob(f".{glob.escape(folder.name)}.*{_UNFINISHED}"):
            with suppress(FileNotFoundError), _locked(left) as abandoned:  # it may get its final name at any moment
                if abandoned:
                    shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _locked(folder: Path, *, wait: bool = False) -> Iterator[bool]:
    """Locks a folder; the kernel frees it when this process dies, however it dies. False if it could not be locked."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            locked = True
        except OSError:  # held by another process, or a file system without locks
            locked = False
        yield locked
    finally:
        os.close(descriptor)


def _fill(folder: Path, config: RunConfig, stages: Stages, workers: int | None) -> dict[str, Any]:
    """Writes every file of the store, store.json last."""
    sizes = _file_sizes(config)  # before reading, so that a file that grows meanwhile is noticed later
    if workers is None:
        workers = default_workers() if sum(sizes.values()) >= _BYTES_FOR_WORKERS else 1
    texts = folder / _TEXT_FILE
    counts = read_train(texts, config, stages, workers)
    if counts["left"] == 0:
        raise _nothing_left(counts, config)
    if config.data.subwords_from is None:
        train_all_subwords(folder, texts, counts["left"], config, stages=stages, workers=workers)
    else:
        TextPipeline.load(Path(config.data.subwords_from), config.text).copy_to(folder)
    num_valid = encode_valid(folder / _VALID_FILE, config, stages)  # before train, so that its faults are told soon
    counts["kept"] = encode_train(folder / _TRAIN_FILE, texts, counts["left"], config, stages=stages, workers=workers)
    counts[_TOO_LONG] = counts["left"] - counts["kept"]
    texts.unlink()
    if counts["kept"] == 0:
        raise _nothing_left(counts, config)
    pipeline = TextPipeline.load(folder, config.text)
    info = {
        "format_version": FORMAT_VERSION,
        "settings": _settings(config),
        "file_sizes": sizes,
        "train": {key: counts[key] for key in ("read", "kept", EMPTY, _TOO_LONG, *active_reasons(config.data.filters))},
        "valid": {"read": num_valid, "kept": num_valid},
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


def _nothing_left(counts: Counter[str], config: RunConfig) -> CapsNMTError:
    filtered = "".join(f", data.filters, {reason}: {counts[reason]}" for reason in active_reasons(config.data.filters))
    return CapsNMTError(
        f"no training pair is left of {counts['read']} (empty side: {counts[EMPTY]}, longer than "
        f"data.max_tokens {config.data.max_tokens}: {counts[_TOO_LONG]}{filtered}); check these keys and the text"
    )


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
