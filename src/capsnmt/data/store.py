"""The token store: shards that are Arrow IPC files, memory-mapped, and opened when they are needed.

So a corpus of any size costs neither memory nor time to open. A store from before the shards is a single one.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from capsnmt.errors import CapsNMTError

ROWS_PER_BATCH = 8192  # fixed, so that row // ROWS_PER_BATCH finds the record batch of a row of a shard
SHARD_ROWS = 1 << 17  # about 75 MB of text and ids: what a worker holds, and what a kill loses
# A store of up to so many rows stays in the order of its text: every epoch's plan mixes it as a whole. So many are also
# sorted together for batches: enough for little padding, few enough to mix the corpus anew each epoch, and at once.
SMALL_ROWS = 1_000_000
SHARD_TEXT_BYTES = 1 << 28  # ends a shard of long lines early; an Arrow column of text ends at 2 GB
_OPEN_SHARDS = 24  # at a time: three times what the batches are mixed from

Int32Array = npt.NDArray[np.int32]
UInt8Array = npt.NDArray[np.uint8]

_OLD_SCHEMA = pa.schema(
    [
        ("source", pa.string()),
        ("target", pa.string()),
        ("source_ids", pa.list_(pa.int32())),
        ("target_ids", pa.list_(pa.int32())),
    ]
)
_SCHEMA = _OLD_SCHEMA.append(pa.field("corpus", pa.uint8()))  # which of the corpora of data.train.mix
_TEXT_SCHEMA = pa.schema(
    [("source", pa.string()), ("target", pa.string()), ("corpus", pa.uint8()), ("hash", pa.uint64())]
)


class Row(NamedTuple):
    """A pair: normalised text and its ids, which end in EOS."""

    source: str
    target: str
    source_ids: Sequence[int]
    target_ids: Sequence[int]


def write_store(path: str | Path, rows: Iterable[Row]) -> int:
    """Writes the rows in bounded memory and returns their number. The file appears only when it is complete."""
    remaining = iter(rows)
    chunks = iter(lambda: list(itertools.islice(remaining, ROWS_PER_BATCH)), [])
    return write_encoded(path, map(_record_batch, chunks))


def _record_batch(rows: list[Row]) -> Any:
    texts = text_batch([(row.source, row.target) for row in rows])
    return encoded_batch(texts, [row.source_ids for row in rows], [row.target_ids for row in rows])


def text_batch(
    pairs: Sequence[tuple[str, str]], *, corpus: int = 0, hashes: npt.NDArray[np.uint64] | None = None
) -> Any:
    """A record batch of text that waits to be encoded; its hashes are what duplicates are found by."""
    sources, targets = (pa.array([pair[side] for pair in pairs], pa.string()) for side in (0, 1))
    corpora = pa.array(np.full(len(pairs), corpus, np.uint8))
    hash_array = pa.array(np.zeros(len(pairs), np.uint64) if hashes is None else hashes)
    return pa.record_batch([sources, targets, corpora, hash_array], schema=_TEXT_SCHEMA)


def encoded_batch(texts: Any, source_ids: Sequence[Sequence[int]], target_ids: Sequence[Sequence[int]]) -> Any:
    """A record batch of text and the ids of its rows."""
    source, target, corpus, _ = texts.columns
    return pa.record_batch([source, target, _list_array(source_ids), _list_array(target_ids), corpus], schema=_SCHEMA)


def write_encoded(path: str | Path, batches: Iterable[Any]) -> int:
    """Writes a shard from record batches of any sizes; otherwise like `write_store`."""
    return _write(Path(path), _SCHEMA, _regrouped(batches))


def write_texts(path: str | Path, batches: Iterable[Any]) -> int:
    """Writes text that waits to be encoded, in record batches as they are, and returns the number of rows."""
    return _write(Path(path), _TEXT_SCHEMA, batches)


def read_texts(path: str | Path) -> Iterator[Any]:
    """The record batches of waiting text, one at a time; not mapped, so that what was read leaves the memory."""
    with pa.OSFile(str(path), "rb") as file, pa.ipc.open_file(file) as reader:
        for index in range(reader.num_record_batches):
            yield reader.get_batch(index)


def read_texts_part(paths: Sequence[Path], part: int, parts: int) -> Any:
    """One record batch of the n-th of so many equal parts of each file, which are read nowhere else."""
    found: list[Any] = []
    for path in paths:
        with pa.memory_map(str(path), "r") as file, pa.ipc.open_file(file) as reader:
            batches = [reader.get_batch(index) for index in range(reader.num_record_batches)]
            table = pa.Table.from_batches(batches, schema=_TEXT_SCHEMA)
            first, end = (table.num_rows * place // parts for place in (part, part + 1))
            # Copied: a slice would keep the file mapped, and the pages around it resident, until all files are read.
            found += [
                pa.ipc.read_record_batch(piece.serialize(), _TEXT_SCHEMA)
                for piece in table.slice(first, end - first).to_batches()
            ]
    return joined(found) if found else text_batch([])


def sha256_of(path: str | Path) -> str:
    """The checksum of a file."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _write(file: Path, schema: Any, batches: Iterable[Any]) -> int:
    temporary = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    written = 0
    try:
        with pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
                written += batch.num_rows
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
    return written


def _regrouped(batches: Iterable[Any]) -> Iterator[Any]:
    """The same rows, ROWS_PER_BATCH at a time."""
    held: list[Any] = []
    rows = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        while rows >= ROWS_PER_BATCH:
            whole = joined(held)
            yield whole.slice(0, ROWS_PER_BATCH)
            held = [whole.slice(ROWS_PER_BATCH)]
            rows -= ROWS_PER_BATCH
    if rows:
        yield joined(held)


def joined(batches: list[Any]) -> Any:
    """One record batch with the rows of several."""
    if len(batches) == 1:
        return batches[0]
    columns = [pa.concat_arrays(columns) for columns in zip(*(batch.columns for batch in batches), strict=True)]
    return pa.record_batch(columns, schema=batches[0].schema)


def _list_array(sequences: Sequence[Sequence[int]]) -> Any:
    offsets = np.zeros(len(sequences) + 1, np.int32)  # (rows + 1,)
    np.cumsum([len(ids) for ids in sequences], out=offsets[1:])
    values = np.fromiter(itertools.chain.from_iterable(sequences), np.int32, count=int(offsets[-1]))
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))


def _check(batches: list[Any]) -> None:
    """Arrow trusts a file's offsets; one that points outside would be read as memory of something else."""
    for number, batch in enumerate(batches):
        if batch.num_rows > ROWS_PER_BATCH or (batch.num_rows < ROWS_PER_BATCH and number + 1 < len(batches)):
            raise OSError(f"{batch.num_rows} rows in record batch {number} instead of {ROWS_PER_BATCH}")
        for column in batch.columns:
            if column.null_count:
                raise OSError(f"missing values in record batch {number}")
            # As bytes, so that the offsets are checked and the text, which may be very long, is not read.
            (column.view(pa.binary()) if column.type == pa.string() else column).validate(full=True)


class _IdColumn:
    """Zero-copy views of a list column: offsets and values of every record batch."""

    def __init__(self, batches: list[Any], name: str) -> None:
        columns = [batch.column(name) for batch in batches]
        self._offsets: list[Int32Array] = [column.offsets.to_numpy(zero_copy_only=True) for column in columns]
        self._values: list[Int32Array] = [column.values.to_numpy(zero_copy_only=True) for column in columns]

    def lengths(self) -> Int32Array:
        if not self._offsets:
            return np.zeros(0, np.int32)
        return np.concatenate([np.diff(offsets) for offsets in self._offsets])

    def row(self, row: int) -> Int32Array:
        batch, index = divmod(row, ROWS_PER_BATCH)
        offsets = self._offsets[batch]
        return self._values[batch][offsets[index] : offsets[index + 1]]


class ShardFile(NamedTuple):
    """A shard and how many rows it has."""

    path: Path
    rows: int


class Lengths(NamedTuple):
    """What a plan of batches needs to know of the rows of a shard."""

    source: Int32Array  # (rows,)
    target: Int32Array  # (rows,)
    corpus: UInt8Array  # (rows,)


class _Shard:
    """An opened shard. The ids are views into the mapped file: read-only, nothing is copied."""

    def __init__(self, path: Path, expected_rows: int | None = None) -> None:
        try:
            if not os.path.isfile(path):  # mapping a pipe would wait for ever
                raise OSError("no such file")
            reader = pa.ipc.open_file(pa.memory_map(str(path), "r"))
            if not any(reader.schema.equals(schema) for schema in (_SCHEMA, _OLD_SCHEMA)):
                raise OSError("an Arrow file of another kind")
            self._batches: list[Any] = [reader.get_batch(index) for index in range(reader.num_record_batches)]
            _check(self._batches)
            self.rows = int(sum(batch.num_rows for batch in self._batches))
            if self.rows != (self.rows if expected_rows is None else expected_rows):
                raise OSError(f"{self.rows} rows instead of {expected_rows}")
        except (OSError, pa.ArrowException) as error:
            raise CapsNMTError(f"cannot open the token store {path} ({error}); prepare the corpus again") from None
        self.source = _IdColumn(self._batches, "source_ids")
        self.target = _IdColumn(self._batches, "target_ids")

    def lengths(self) -> Lengths:
        has_corpus = bool(self._batches) and len(self._batches[0].columns) == len(_SCHEMA)
        corpora = [batch.column("corpus").to_numpy() for batch in self._batches] if has_corpus else []
        corpus = np.concatenate(corpora) if corpora else np.zeros(self.rows, np.uint8)
        return Lengths(self.source.lengths(), self.target.lengths(), corpus)

    def text(self, column: str, row: int) -> str:
        batch, index = divmod(row, ROWS_PER_BATCH)
        text: str = self._batches[batch].column(column)[index].as_py()
        return text


class Store:
    """Read access by row number, over a single file or over shards, which are opened when a row of them is read."""

    def __init__(self, path: str | Path, shards: Sequence[ShardFile] | None = None) -> None:
        self.path = Path(path)
        self._shard = lru_cache(maxsize=_OPEN_SHARDS)(self._opened)
        self._files = [ShardFile(self.path, _Shard(self.path).rows)] if shards is None else list(shards)
        self.shard_rows = [file.rows for file in self._files]
        self._starts = [0, *itertools.accumulate(self.shard_rows)]

    def __len__(self) -> int:
        return self._starts[-1]

    def lengths(self, shard: int) -> Lengths:
        """Of the rows of a shard."""
        return self._shard(shard).lengths()

    @cached_property
    def source_lengths(self) -> Int32Array:
        """Of all rows; for stores that are small."""
        return np.concatenate([self.lengths(shard).source for shard in range(len(self._files))])

    @cached_property
    def target_lengths(self) -> Int32Array:
        """Of all rows; for stores that are small."""
        return np.concatenate([self.lengths(shard).target for shard in range(len(self._files))])

    def source_ids(self, row: int) -> Int32Array:
        """Ids of the source, ending in EOS."""
        shard, place = self._place(row)
        return shard.source.row(place)

    def target_ids(self, row: int) -> Int32Array:
        """Ids of the target, ending in EOS."""
        shard, place = self._place(row)
        return shard.target.row(place)

    def source_text(self, row: int) -> str:
        """The source after normalising."""
        return self._text("source", row)

    def target_text(self, row: int) -> str:
        """The target after normalising."""
        return self._text("target", row)

    def _text(self, column: str, row: int) -> str:
        shard, place = self._place(row)
        try:
            return shard.text(column, place)
        except UnicodeDecodeError:
            raise CapsNMTError(f"{self.path}, row {row}: the text is damaged; prepare the corpus again") from None

    def _place(self, row: int) -> tuple[_Shard, int]:
        if not 0 <= row < len(self):  # Python would read a negative offset from the end
            raise IndexError(f"row {row} of a store with {len(self)} rows")
        shard = bisect.bisect_right(self._starts, row) - 1
        return self._shard(shard), int(row) - self._starts[shard]

    def _opened(self, shard: int) -> _Shard:
        return _Shard(*self._files[shard])
