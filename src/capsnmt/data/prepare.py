"""From the text files of a recipe to its store: the stages, in a folder that gets its name only when complete.

    store/{train-00000.arrow, train-00001.arrow, …, valid.arrow, subwords.model, store.json}

store.json has rows, bytes and SHA-256 of each shard, and the SHA-256 of the other files. What a killed process leaves,
the next one goes on with.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import hashlib
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

from capsnmt.config import FilterConfig, ParallelText, RunConfig, flatten
from capsnmt.data.corpus import files_of, names_of
from capsnmt.data.demo import write_demo
from capsnmt.data.fetch import fetch_missing
from capsnmt.data.filters import EMPTY, active_reasons
from capsnmt.data.ledger import LEDGER_FILE, Ledger
from capsnmt.data.stages import (
    Stages,
    check_valid,
    encode_train,
    encode_valid,
    progress_bar,
    read_train,
    shuffle_texts,
    train_all_subwords,
)
from capsnmt.data.store import ShardFile, Store, sha256_of
from capsnmt.data.workers import default_workers
from capsnmt.errors import CapsNMTError
from capsnmt.text.pipeline import TextPipeline, subword_files

_LOG = logging.getLogger(__name__)

STORE_FORMAT = 2  # 1 had the training text in one file

STORE_INFO = "store.json"
_OLD_TRAIN_FILE = "train.arrow"  # of format 1
_VALID_FILE = "valid.arrow"
_UNFINISHED = ".unfinished"  # ends the names of folders that are being filled
_BYTES_FOR_WORKERS = 8_000_000  # of text; with less they would take longer to start than to do it
_END_BYTES = 1 << 16  # of a text file, at each end, are compared
_TOO_LONG = "too_long"  # by data.max_tokens; what the filters of text leave out has names of its own

_NO_FILTERS = flatten({"data": {"filters": FilterConfig().model_dump(mode="json")}})


@dataclass(frozen=True)
class PreparedCorpus:
    """An opened store; `info` is its store.json."""

    folder: Path
    info: dict[str, Any]
    train: Store
    valid: Store


def prepare(config: RunConfig, *, progress: bool = True, workers: int | None = None, verify: bool = False) -> Path:
    """Prepares the corpus of a recipe and returns its store folder; a store with the same settings is used again.

    The store is the same for any number of `workers`; by default large corpora get one for each core, up to four.
    What a killed `prepare` had done is not done again. `verify` checks the checksums of a store that is there.
    """
    folder = Path(config.data.store)
    if config.data.generate == "demo":
        write_missing_demo(config)
    if folder.is_dir() and any(folder.iterdir()):
        with suppress(OSError):
            _claim(folder, None, ExitStack())  # what killed processes left of it is of no use any more
        _check_same(folder, config)
        if verify:
            _verify(folder)
        _LOG.info("%s is already prepared%s", folder, ", and its checksums hold" if verify else "")
        return folder
    if config.data.fetch is not None:
        fetch_missing(config)
    try:
        info = _build(folder, config, progress=progress, workers=workers)
    except OSError as error:
        raise CapsNMTError(
            f"cannot write data.store {folder}: {error}; make room, and the same command goes on, or choose another "
            "folder"
        ) from None
    _LOG.info("%s: train %s, valid %s", folder, info["train"], info["valid"])
    return folder


def load_store(folder: str | Path) -> PreparedCorpus:
    """Opens a prepared corpus."""
    folder = Path(folder)
    info = _read_info(folder)
    shards = _shards_of(folder, info)
    train = Store(folder / _OLD_TRAIN_FILE) if info["format_version"] == 1 else Store(folder, shards)
    return PreparedCorpus(folder, info, train, Store(folder / _VALID_FILE))


def _shards_of(folder: Path, info: dict[str, Any]) -> list[ShardFile]:
    """The shards, which must be where and as large as store.json says; their checksums would take too long here."""
    shards = []
    try:
        for shard in info["shards"] if info["format_version"] > 1 else []:
            path = folder / Path(shard["file"]).name  # nothing outside of the folder
            if not (isinstance(shard["rows"], int) and shard["rows"] >= 0):
                raise ValueError(f"a shard of {shard['rows']!r} rows")
            if not os.path.isfile(path) or path.stat().st_size != shard["bytes"]:
                raise CapsNMTError(f"the shard {path} is missing or incomplete; prepare the corpus again")
            shards.append(ShardFile(path, shard["rows"]))
    except (ValueError, KeyError, TypeError) as error:
        raise CapsNMTError(f"{folder / STORE_INFO} is damaged ({error}); prepare the corpus again") from None
    return shards


def _verify(folder: Path) -> None:
    info = _read_info(folder)
    # Format 1 has no shards, and the first stores of format 2 have no other files' checksums.
    shards = zip(_shards_of(folder, info), info.get("shards", []), strict=False)
    expected = {shard.path.name: record.get("sha256") for shard, record in shards} | info.get("files", {})
    for name, sha256 in expected.items():
        path = folder / Path(name).name  # nothing outside of the folder
        if not os.path.isfile(path) or sha256_of(path) != sha256:
            raise CapsNMTError(f"{path} does not match its checksum; delete {folder} and prepare again")


def _build(folder: Path, config: RunConfig, *, progress: bool, workers: int | None) -> dict[str, Any]:
    """Fills a temporary folder and renames it, so that `folder` never holds half a store."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Before reading, so that a file that grows meanwhile is noticed later.
    files = {"file_sizes": _file_sizes(config), "file_ends": _file_ends(config)}
    origin = {"format_version": STORE_FORMAT, "settings": _settings(config), **files}
    with ExitStack() as held:
        temporary = _claim(folder, origin, held)
        try:
            with progress_bar(progress) as bar:
                stages = Stages(bar)
                info = _fill(temporary, config, origin, stages, workers)
            stages.log(info["train"]["read"])
            _move_into_place(temporary, folder, config)
        except CapsNMTError:
            # What was read may be of use to the next try; if text or settings change until then, _claim drops it.
            if not any(temporary.glob("*.arrow")):
                shutil.rmtree(temporary, ignore_errors=True)
            raise
    return info


def _claim(folder: Path, origin: dict[str, Any] | None, held: ExitStack) -> Path:
    """The folder to fill, locked: what a killed process left of the same store, or a new one.

    What killed processes left of other stores under this name is removed; what a living one is filling stays.
    """
    found: Path | None = None
    with _locked(folder.parent, wait=True):  # nobody may take the new folder for an abandoned one
        # Eight letters are what mkdtemp adds; more would be those of a store whose name begins like this one's.
        for left in folder.parent.glob(f".{glob.escape(folder.name)}.{'?' * 8}{_UNFINISHED}"):
            lock = ExitStack()
            with suppress(FileNotFoundError):  # it may get its final name at any moment
                if not lock.enter_context(_locked(left)):
                    lock.close()
                elif found is None and origin is not None and _origin_of(left) == origin:
                    found = left
                    held.enter_context(lock)
                else:
                    shutil.rmtree(left, ignore_errors=True)
                    lock.close()
        if found is None and origin is not None:
            # Beside its final place, because only a rename within one file system is atomic.
            found = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=_UNFINISHED, dir=folder.parent))
            held.enter_context(_locked(found))
            found.chmod(0o755)  # mkdtemp makes folders that colleagues cannot read
            Ledger(found, origin).save()
    return found or folder


def _origin_of(folder: Path) -> Any:
    """From what an unfinished store is made."""
    try:
        info = _read_info(folder)
        return {key: info[key] for key in ("format_version", "settings", "file_sizes", "file_ends")}
    except (CapsNMTError, KeyError):
        pass
    try:
        return json.loads((folder / LEDGER_FILE).read_text(encoding="utf-8"))["origin"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


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


def _fill(
    folder: Path, config: RunConfig, origin: dict[str, Any], stages: Stages, workers: int | None
) -> dict[str, Any]:
    """Writes every file of the store that is not there yet, store.json last."""
    if not (folder / STORE_INFO).exists():
        ledger = Ledger.load(folder) or Ledger(folder, origin)
        if ledger.texts:
            _LOG.info("going on after %d pairs that were read before", ledger.counts["read"])
        if workers is None:
            workers = default_workers() if sum(origin["file_sizes"].values()) >= _BYTES_FOR_WORKERS else 1
        _write_info(folder, {**origin, **_fill_parts(ledger, config, stages, workers)})
    for left in (*folder.glob("text-*"), *folder.glob("shuffled-*"), *folder.glob("*.tmp"), folder / LEDGER_FILE):
        left.unlink(missing_ok=True)
    return _read_info(folder)


def _fill_parts(ledger: Ledger, config: RunConfig, stages: Stages, workers: int) -> dict[str, Any]:
    """Stage by stage; returns what store.json says of them."""
    folder = ledger.folder
    if not ledger.is_read:
        check_valid(config)
        read_train(ledger, config, stages, workers)
    counts, left = ledger.counts, ledger.num_texts
    if left == 0:
        raise _nothing_left(counts, config)
    if not ledger.has_subwords:
        if config.data.subwords_from is None:
            train_all_subwords(ledger, config, stages, workers)
        else:
            TextPipeline.load(Path(config.data.subwords_from), config.text).copy_to(folder)
        ledger.has_subwords = True
        ledger.save()
    num_valid = encode_valid(folder / _VALID_FILE, config, stages)
    shuffle_texts(ledger, stages)
    encode_train(ledger, config, stages, workers)
    counts["kept"] = sum(shard.rows for shard in ledger.shards)
    counts[_TOO_LONG] = left - counts["kept"]
    if counts["kept"] == 0:
        raise _nothing_left(counts, config)
    pipeline = TextPipeline.load(folder, config.text)
    by_corpus = sum((Counter(shard.counts) for shard in ledger.shards), Counter())
    return {
        "train": {key: counts[key] for key in ("read", "kept", EMPTY, _TOO_LONG, *active_reasons(config.data.filters))},
        "corpora": [by_corpus[str(number)] for number in range(len(config.data.train.corpora))],
        "valid": {"read": num_valid, "kept": num_valid},
        "vocabulary": {
            "source_size": pipeline.source_size,
            "target_size": pipeline.target_size,
            "fingerprint": pipeline.fingerprint,
        },
        "shards": [
            {key: getattr(shard, key) for key in ("file", "rows", "bytes", "sha256")} for shard in ledger.shards
        ],
        "files": {
            name: sha256_of(folder / name) for name in sorted({_VALID_FILE, *subword_files(config.text.subwords.joint)})
        },
    }


def _write_info(folder: Path, info: dict[str, Any]) -> None:
    temporary = folder / f"{STORE_INFO}.tmp"
    temporary.write_text(json.dumps(info, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    temporary.replace(folder / STORE_INFO)


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
    data = config.data.model_dump(mode="json", include=deciding)
    mix = [{key: corpus[key] for key in ("source", "target", "tsv")} for corpus in data["train"].pop("mix")]
    if mix:
        data["train"] = {"mix": mix}
    else:
        del data["train"]["temperature"]  # it and the weights are applied while training
    sections = {"data": data, "text": text}
    if filters.wrong_language:
        sections["languages"] = config.languages.model_dump(mode="json")
    return flatten(sections)


def _texts_read(config: RunConfig) -> list[ParallelText]:
    """The texts that the store depends on: test only where its sentences are kept out of train."""
    test = config.data.test if config.data.filters.drop_overlap else None
    return [text for text in (*config.data.train.corpora, config.data.valid, test) if text is not None]


def _files_read(config: RunConfig) -> dict[str, Path]:
    """The text files that are there, by their names in the config."""
    texts = _texts_read(config)
    names = [name for text in texts for name in names_of(text)]
    files = [file for text in texts for file in files_of(text, config.data.root)]
    return {name: file for name, file in zip(names, files, strict=True) if file.is_file()}


def _file_sizes(config: RunConfig) -> dict[str, int]:
    """Bytes of each text file."""
    return {name: file.stat().st_size for name, file in _files_read(config).items()}


def _file_ends(config: RunConfig) -> dict[str, str]:
    """SHA-256 of the beginning and the end of each text file: notices most edits that keep the size, in no time."""
    return {name: _sha256_of_ends(file) for name, file in _files_read(config).items()}


def _sha256_of_ends(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256(file.read(_END_BYTES))
        file.seek(max(0, path.stat().st_size - _END_BYTES))
        digest.update(file.read(_END_BYTES))
    return digest.hexdigest()


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
    if not faults:
        ends, before = _file_ends(config), info.get("file_ends", {})  # which older stores do not have
        faults = [f"{name}: was edited since" for name in before if ends.get(name, before[name]) != before[name]]
    if faults:
        listed = "\n".join(f"  {fault}" for fault in faults)
        raise CapsNMTError(
            f"the store {folder} was prepared from something else:\n{listed}\n"
            "choose another folder as `data.store`, or delete this one to prepare it again"
        )


def _read_info(folder: Path) -> dict[str, Any]:
    try:
        info: dict[str, Any] = json.loads((folder / STORE_INFO).read_text(encoding="utf-8"))
        version = info["format_version"]
    except (OSError, ValueError, KeyError, TypeError):
        raise CapsNMTError(
            f"{folder} is no complete store (no readable {STORE_INFO}); prepare the corpus first, "
            "or choose another folder as `data.store`"
        ) from None
    if version not in range(1, STORE_FORMAT + 1):
        raise CapsNMTError(
            f"the store {folder} has format {version}, this version reads up to {STORE_FORMAT}; "
            "delete it and prepare again"
        )
    return info


def _move_into_place(temporary: Path, folder: Path, config: RunConfig) -> None:
    try:
        temporary.rename(folder)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        _check_same(folder, config)  # another process was faster: its store serves as well
        shutil.rmtree(temporary, ignore_errors=True)


def write_missing_demo(config: RunConfig) -> None:
    """Writes the made-up corpus of a recipe with `data.generate: demo`, unless it is there."""
    texts = [text for text in (*config.data.train.corpora, config.data.valid, config.data.test) if text is not None]
    if not all(file.is_file() for text in texts for file in files_of(text, config.data.root)):
        write_demo(Path(config.data.root))
