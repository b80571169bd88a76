"""The token store: an Arrow IPC file, memory-mapped, so that a corpus of any size costs no memory to open."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from capsnmt.errors import CapsNMTError

ROWS_PER_BATCH = 8192  # fixed, so that row // ROWS_PER_BATCH finds the record batch of a row

Int32Array = npt.NDArray[np.int32]

_SCHEMA = pa.schema(
    [
        ("source", pa.string()),
        ("target", pa.string()),
        ("source_ids", pa.list_(pa.int32())),
        ("target_ids", pa.list_(pa.int32())),
    ]
)
_TEXT_SCHEMA = pa.schema([_SCHEMA.field("source"), _SCHEMA.field("target")])


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


def text_batch(pairs: Sequence[tuple[str, str]]) -> Any:
    """A record batch of text alone."""
    sources, targets = (pa.array([pair[side] for pair in pairs], pa.string()) for side in (0, 1))
    return pa.record_batch([sources, targets], schema=_TEXT_SCHEMA)


def encoded_batch(texts: Any, source_ids: Sequence[Sequence[int]], target_ids: Sequence[Sequence[int]]) -> Any:
    """A record batch of text and the ids of its rows."""
    return pa.record_batch([*texts.columns, _list_array(source_ids), _list_array(target_ids)], schema=_SCHEMA)


def write_encoded(path: str | Path, batches: Iterable[Any]) -> int:
    """Writes a store from record batches of any sizes; otherwise like `write_store`."""
    return _write(Path(path), _SCHEMA, _regrouped(batches))


def write_texts(path: str | Path, batches: Iterable[Any]) -> int:
    """Writes text that waits to be encoded, in record batches as they are, and returns the number of rows."""
    return _write(Path(path), _TEXT_SCHEMA, batches)


def read_texts(path: str | Path) -> Iterator[Any]:
    """The record batches of waiting text, one at a time; not mapped, so that what was read leaves the memory."""
    with pa.OSFile(str(path), "rb") as file, pa.ipc.open_file(file) as reader:
        for index in range(reader.num_record_batches):
            yield reader.get_batch(index)


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
            joined = _joined(held)
            yield joined.slice(0, ROWS_PER_BATCH)
            held = [joined.slice(ROWS_PER_BATCH)]
            rows -= ROWS_PER_BATCH
    if rows:
        yield _joined(held)


def _joined(batches: list[Any]) -> Any:
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


class Store:
    """Read access by row number. The ids are views into the mapped file: read-only, nothing is copied."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            if not os.path.isfile(path):  # mapping a pipe would wait for ever
                raise OSError("no such file")
            reader = pa.ipc.open_file(pa.memory_map(str(path), "r"))
            if not reader.schema.equals(_SCHEMA):
                raise OSError("an Arrow file of another kind")
            self._batches: list[Any] = [reader.get_batch(index) for index in range(reader.num_record_batches)]
            _check(self._batches)
        except (OSError, pa.ArrowException) as error:
            raise CapsNMTError(f"cannot open the token store {path} ({error}); prepare the corpus again") from None
        self._length = int(sum(batch.num_rows for batch in self._batches))
        self._source = _IdColumn(self._batches, "source_ids")
        self._target = _IdColumn(self._batches, "target_ids")
        self.source_lengths = self._source.lengths()  # (rows,)
        self.target_lengths = self._target.lengths()  # (rows,)

    def __len__(self) -> int:
        return self._length

    def source_ids(self, row: int) -> Int32Array:
        """Ids of the source, ending in EOS."""
        return self._source.row(self._checked(row))

    def target_ids(self, row: int) -> Int32Array:
        """Ids of the target, ending in EOS."""
        return self._target.row(self._checked(row))

    def source_text(self, row: int) -> str:
        """The source after normalising."""
        return self._text("source", row)

    def target_text(self, row: int) -> str:
        """The target after normalising."""
        return self._text("target", row)

    def _text(self, column: str, row: int) -> str:
        batch, index = divmod(self._checked(row), ROWS_PER_BATCH)
        try:
            text: str = self._batches[batch].column(column)[index].as_py()
        except UnicodeDecodeError:
            raise CapsNMTError(f"{self.path}, row {row}: the text is damaged; prepare the corpus again") from None
        return text

    def _checked(self, row: int) -> int:
        if not 0 <= row < self._length:  # Python would read a negative offset from the end
            raise IndexError(f"row {row} of a store with {self._length} rows")
        return int(row)
