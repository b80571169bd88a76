"""The token store: an Arrow IPC file, memory-mapped, so that a corpus of any size costs no memory to open."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence
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


class Row(NamedTuple):
    """A pair: normalised text and its ids, which end in EOS."""

    source: str
    target: str
    source_ids: Sequence[int]
    target_ids: Sequence[int]


def write_store(path: str | Path, rows: Iterable[Row]) -> int:
    """Writes the rows in bounded memory and returns their number. The file appears only when it is complete."""
    file = Path(path)
    temporary = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    written = 0
    remaining = iter(rows)
    try:
        with pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_file(sink, _SCHEMA) as writer:
            while chunk := list(itertools.islice(remaining, ROWS_PER_BATCH)):
                writer.write_batch(_record_batch(chunk))
                written += len(chunk)
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
    return written


def _record_batch(rows: list[Row]) -> Any:
    columns = [
        pa.array([row.source for row in rows], pa.string()),
        pa.array([row.target for row in rows], pa.string()),
        _list_array([row.source_ids for row in rows]),
        _list_array([row.target_ids for row in rows]),
    ]
    return pa.record_batch(columns, schema=_SCHEMA)


def _list_array(sequences: list[Sequence[int]]) -> Any:
    offsets = np.zeros(len(sequences) + 1, np.int32)  # (rows + 1,)
    np.cumsum([len(ids) for ids in sequences], out=offsets[1:])
    values = np.fromiter(itertools.chain.from_iterable(sequences), np.int32, count=int(offsets[-1]))
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))


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
            reader = pa.ipc.open_file(pa.memory_map(str(path), "r"))
        except (OSError, pa.ArrowInvalid) as error:
            raise CapsNMTError(f"cannot open the token store {path} ({error}); prepare the corpus again") from None
        if not reader.schema.equals(_SCHEMA):
            raise CapsNMTError(f"{path} is an Arrow file, but no token store; prepare the corpus again")
        self._batches: list[Any] = [reader.get_batch(index) for index in range(reader.num_record_batches)]
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
        text: str = self._batches[batch].column(column)[index].as_py()
        return text

    def _checked(self, row: int) -> int:
        if not 0 <= row < self._length:  # Python would read a negative offset from the end
            raise IndexError(f"row {row} of a store with {self._length} rows")
        return int(row)
