import gc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from capsnmt.data.store import (
    ROWS_PER_BATCH,
    Row,
    Store,
    encoded_batch,
    read_texts,
    text_batch,
    write_encoded,
    write_store,
    write_texts,
)
from capsnmt.errors import CapsNMTError


def row(number: int) -> Row:
    source_ids = [number % 100, *range(number % 7), 3]
    return Row(f"source {number} ä", f"target {number}", source_ids, [number, 3])


def test_round_trip_across_record_batches(tmp_path: Path) -> None:
    count = 2 * ROWS_PER_BATCH + 17
    assert write_store(tmp_path / "train.arrow", (row(number) for number in range(count))) == count
    store = Store(tmp_path / "train.arrow")
    assert len(store) == count
    for number in (0, 1, ROWS_PER_BATCH - 1, ROWS_PER_BATCH, 2 * ROWS_PER_BATCH, count - 1):
        expected = row(number)
        assert store.source_ids(number).tolist() == expected.source_ids
        assert store.target_ids(number).tolist() == expected.target_ids
        assert store.source_text(number) == expected.source
        assert store.target_text(number) == expected.target
    assert store.source_lengths.dtype == np.int32
    assert store.source_lengths.tolist() == [len(row(number).source_ids) for number in range(count)]
    assert store.target_lengths.tolist() == [2] * count
    for outside in (-1, count):
        with pytest.raises(IndexError, match="row"):
            store.source_ids(outside)


def test_record_batches_of_any_size_give_the_same_store(tmp_path: Path) -> None:
    sizes = [5, 0, ROWS_PER_BATCH, 1, 2 * ROWS_PER_BATCH + 3, ROWS_PER_BATCH - 9, 7]
    rows = [row(number) for number in range(sum(sizes))]
    write_store(tmp_path / "rows.arrow", rows)
    batches = []
    for start, size in zip(np.cumsum([0, *sizes]), sizes, strict=False):
        part = rows[start : start + size]
        texts = text_batch([(one.source, one.target) for one in part])
        batches.append(encoded_batch(texts, [one.source_ids for one in part], [one.target_ids for one in part]))
    assert write_encoded(tmp_path / "batches.arrow", batches) == len(rows)
    with pa.memory_map(str(tmp_path / "batches.arrow")) as file, pa.memory_map(str(tmp_path / "rows.arrow")) as other:
        assert pa.ipc.open_file(file).read_all().equals(pa.ipc.open_file(other).read_all())
    store = Store(tmp_path / "batches.arrow")
    assert store.source_lengths.tolist() == [len(one.source_ids) for one in rows]
    for number in (0, 4, 5, ROWS_PER_BATCH - 1, ROWS_PER_BATCH, 3 * ROWS_PER_BATCH + 8, len(rows) - 1):
        assert store.target_ids(number).tolist() == rows[number].target_ids
        assert store.source_text(number) == rows[number].source


def test_texts_wait_in_their_batches(tmp_path: Path) -> None:
    batches = [[("a", "ä"), ("", "b")], [("c", "d")]]
    assert write_texts(tmp_path / "text.arrow", map(text_batch, batches)) == 3
    found = [
        list(zip(*(batch.column(side).to_pylist() for side in ("source", "target")), strict=True))
        for batch in read_texts(tmp_path / "text.arrow")
    ]
    assert found == batches


def test_ids_are_views_of_the_mapped_file(tmp_path: Path) -> None:
    write_store(tmp_path / "a.arrow", map(row, range(10)))
    gc.collect()  # what earlier tests left must not be freed between the two counts
    allocated = pa.total_allocated_bytes()
    store = Store(tmp_path / "a.arrow")
    ids = store.source_ids(5)
    assert not ids.flags.owndata
    assert not ids.flags.writeable
    assert np.shares_memory(ids, store.source_ids(5))
    assert pa.total_allocated_bytes() == allocated


def test_empty_store_and_a_row_without_text(tmp_path: Path) -> None:
    write_store(tmp_path / "empty.arrow", [])
    empty = Store(tmp_path / "empty.arrow")
    assert (len(empty), empty.source_lengths.shape) == (0, (0,))
    write_store(tmp_path / "one.arrow", [Row("", "x", [3], [9, 3])])
    assert Store(tmp_path / "one.arrow").source_text(0) == ""


def test_an_interrupted_write_leaves_nothing(tmp_path: Path) -> None:
    def rows() -> Iterator[Row]:
        yield row(1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_store(tmp_path / "train.arrow", rows())
    assert list(tmp_path.iterdir()) == []


def test_files_that_are_no_store(tmp_path: Path) -> None:
    (tmp_path / "text.arrow").write_text("no arrow file")
    (tmp_path / "nothing.arrow").touch()
    table = pa.table({"x": [1]})
    with pa.OSFile(str(tmp_path / "other.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    for name in ("text.arrow", "other.arrow", "missing.arrow", "nothing.arrow"):
        with pytest.raises(CapsNMTError, match=rf"{name}.*prepare the corpus again"):
            Store(tmp_path / name)
