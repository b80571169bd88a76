import itertools
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsnmt.config import SubwordsConfig, TextConfig
from capsnmt.data import batches
from capsnmt.data.batches import Batch, BatchStream, Int64Array, make_batch, plan_epoch, valid_batches
from capsnmt.data.store import Int32Array, Row, Store, write_store
from capsnmt.errors import CapsNMTError
from capsnmt.text.pipeline import TextPipeline
from capsnmt.text.subwords import BOS, EOS, PAD, train_subwords

ROWS = 300


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> TextPipeline:
    folder = tmp_path_factory.mktemp("pipeline")
    config = TextConfig(subwords=SubwordsConfig(vocabulary=400))
    lines = [f"the brown cat number {i} slept quietly in the house" for i in range(200)]
    train_subwords(lines, config.subwords, folder / "subwords.model")
    return TextPipeline.load(folder, config)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, pipeline: TextPipeline) -> Store:
    rows = []
    for number in range(ROWS):
        source = f"the brown cat number {number} " + "slept " * (number % 5)
        target = f"quietly in the house {number} " + "number " * (number % 3)
        source, target = source.strip(), target.strip()
        rows.append(Row(source, target, pipeline.source_ids(source), pipeline.target_ids(target)))
    path = tmp_path_factory.mktemp("store") / "train.arrow"
    write_store(path, rows)
    return Store(path)


def same(first: Batch, second: Batch) -> bool:
    return all(np.array_equal(getattr(first, name), getattr(second, name)) for name in Batch.__dataclass_fields__)


lengths = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), max_size=120)


@given(pairs=lengths, batch_tokens=st.integers(16, 200), seed=st.integers(0, 2**32), epoch=st.integers(0, 50))
def test_plan_holds_every_row_once_within_the_budget(
    pairs: list[tuple[int, int]], batch_tokens: int, seed: int, epoch: int
) -> None:
    source = np.array([pair[0] for pair in pairs], np.int32)
    target = np.array([pair[1] for pair in pairs], np.int32)
    plan = list(plan_epoch(source, target, batch_tokens=batch_tokens, seed=seed, epoch=epoch))
    assert sorted(itertools.chain.from_iterable(batch.tolist() for batch in plan)) == list(range(len(pairs)))
    for batch in plan:
        assert len(batch) > 0
        fits = len(batch) * max(source[batch].max(), target[batch].max()) <= batch_tokens
        assert fits or len(batch) == 1
    again = list(plan_epoch(source, target, batch_tokens=batch_tokens, seed=seed, epoch=epoch))
    assert [batch.tolist() for batch in plan] == [batch.tolist() for batch in again]


def test_plan_pads_little_and_differs_between_epochs() -> None:
    generator = np.random.default_rng(0)
    source = np.clip(generator.lognormal(np.log(20), 0.5, 200_000), 2, 256).astype(np.int32)
    target = np.clip(source * generator.lognormal(0.05, 0.25, len(source)), 2, 256).astype(np.int32)
    plan = list(plan_epoch(source, target, batch_tokens=4096, seed=1, epoch=0))
    padded = sum(len(batch) * (int(source[batch].max()) + int(target[batch].max())) for batch in plan)
    assert 1 - (source.sum() + target.sum()) / padded < 0.05
    other = list(plan_epoch(source, target, batch_tokens=4096, seed=1, epoch=1))
    # The few longest rows have no one else to stand with; all other batches are mixed anew.
    repeated = {frozenset(batch.tolist()) for batch in plan} & {frozenset(batch.tolist()) for batch in other}
    assert len(repeated) < 0.01 * len(plan)
    # Batches come in no order of length: neighbours differ as much as any two.
    sizes = np.array([len(batch) for batch in plan], float)
    assert abs(np.corrcoef(sizes[1:], sizes[:-1])[0, 1]) < 0.1


def test_plan_is_made_pool_by_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    def counted(rows: Int64Array, *lengths: Int32Array, batch_tokens: int) -> list[Int64Array]:
        pools.append(len(rows))
        return cut(rows, *lengths, batch_tokens=batch_tokens)

    pools: list[int] = []
    cut = batches._cut
    monkeypatch.setattr(batches, "_cut", counted)
    monkeypatch.setattr(batches, "_POOL_ROWS", 100)
    generator = np.random.default_rng(0)
    source, target = (generator.integers(2, 40, 350).astype(np.int32) for _ in range(2))
    plan = plan_epoch(source, target, batch_tokens=200, seed=1, epoch=0)
    found = [next(plan)]
    assert pools == [100]
    found += plan
    assert pools == [100, 100, 100, 50]
    assert sorted(itertools.chain.from_iterable(batch.tolist() for batch in found)) == list(range(350))


def test_make_batch_pads_shifts_and_counts(store: Store) -> None:
    rows = [7, 4, 200]
    batch = make_batch(store, rows)
    for index, row in enumerate(rows):
        source, target = store.source_ids(row), store.target_ids(row)
        assert batch.source[index][batch.source_mask[index]].tolist() == source.tolist()
        assert batch.target_out[index][batch.target_mask[index]].tolist() == target.tolist()
        assert batch.target_in[index][batch.target_mask[index]].tolist() == [BOS, *target[:-1]]
        assert batch.source_mask[index].sum() == len(source)
        assert batch.source_mask[index, : len(source)].all()  # right-padded
    for ids, mask in (
        (batch.source, batch.source_mask),
        (batch.target_in, batch.target_mask),
        (batch.target_out, batch.target_mask),
    ):
        assert ids.dtype == np.int64
        assert (ids[~mask] == PAD).all()
    assert batch.target_tokens == sum(len(store.target_ids(row)) for row in rows)
    assert batch.source_tokens == sum(len(store.source_ids(row)) for row in rows)


def test_dropout_encodes_anew_and_deterministically(store: Store, pipeline: TextPipeline) -> None:
    rows = list(range(20))
    plain = make_batch(store, rows)
    dropped = make_batch(store, rows, pipeline=pipeline, dropout=0.3, seed=5)
    assert same(dropped, make_batch(store, rows, pipeline=pipeline, dropout=0.3, seed=5))
    assert not same(dropped, make_batch(store, rows, pipeline=pipeline, dropout=0.3, seed=6))
    assert dropped.source_tokens > plain.source_tokens
    for index, row in enumerate(rows):
        ids = dropped.target_out[index][dropped.target_mask[index]]
        assert ids[-1] == EOS
        assert pipeline.target_text(ids.tolist()) == store.target_text(row)


def take(stream: BatchStream, count: int) -> list[tuple[Batch, tuple[int, int]]]:
    taken = [(stream.next(), stream.position) for _ in range(count)]
    stream.close()
    return taken


@pytest.mark.parametrize(("dropout", "pool_rows"), [(0.0, 1_000_000), (0.2, 1_000_000), (0.0, 70)])
def test_resumed_stream_equals_the_uninterrupted_one(
    store: Store, pipeline: TextPipeline, dropout: float, pool_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "_POOL_ROWS", pool_rows)

    def stream(position: tuple[int, int] = (0, 0)) -> BatchStream:
        return BatchStream(store, batch_tokens=512, seed=3, pipeline=pipeline, dropout=dropout, position=position)

    per_epoch = len(list(plan_epoch(store.source_lengths, store.target_lengths, batch_tokens=512, seed=3, epoch=0)))
    whole = take(stream(), 2 * per_epoch + 3)
    assert whole[per_epoch - 1][1] == (1, 0)
    for cut in (1, 5, per_epoch - 1, per_epoch, per_epoch + 2):
        rest = take(stream(whole[cut - 1][1]), 4)
        for (expected, expected_position), (found, position) in zip(whole[cut : cut + 4], rest, strict=True):
            assert same(expected, found)
            assert position == expected_position


def test_position_is_the_consumers_not_the_threads(store: Store) -> None:
    stream = BatchStream(store, batch_tokens=512, seed=3, prefetch=8)
    stream.next()
    time.sleep(0.05)  # the thread runs ahead meanwhile
    assert stream.position == (0, 1)
    stream.close()
    with pytest.raises(ValueError, match="closed"):
        stream.next()


def test_ranks_share_the_plan_and_drop_the_incomplete_group(store: Store) -> None:
    plan = list(plan_epoch(store.source_lengths, store.target_lengths, batch_tokens=512, seed=3, epoch=0))
    world = 3 if len(plan) % 3 else 4
    groups = len(plan) // world
    streams = [BatchStream(store, batch_tokens=512, seed=3, rank=rank, world_size=world) for rank in range(world)]
    taken = [take(stream, groups) for stream in streams]
    for group, rank in itertools.product(range(groups), range(world)):
        assert same(taken[rank][group][0], make_batch(store, plan[group * world + rank]))
    assert {ranks[-1][1] for ranks in taken} == {(1, 0)}


def test_an_exception_in_the_thread_reaches_the_consumer(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CapsNMTError, match=r"too few for 1000 processes; lower training\.batch_tokens"):
        BatchStream(store, batch_tokens=512, seed=3, world_size=1000).next()
    stream = BatchStream(store, batch_tokens=512, seed=3, prefetch=1)

    def broken(row: int) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(store, "source_ids", broken)
    with pytest.raises(OSError, match="the disk is gone"):
        list(itertools.islice(stream, 10))


def test_waiting_is_counted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    read = store.source_ids
    monkeypatch.setattr(store, "source_ids", lambda row: time.sleep(0.002) or read(row))
    stream = BatchStream(store, batch_tokens=512, seed=3)
    stream.next()
    assert stream.wait_s > 0.01
    stream.close()


def test_valid_batches_hold_every_row_once(store: Store) -> None:
    batches = list(valid_batches(store, 512))
    found = sorted(
        tuple(ids[mask]) for batch in batches for ids, mask in zip(batch.source, batch.source_mask, strict=True)
    )
    assert found == sorted(tuple(store.source_ids(row)) for row in range(len(store)))
    assert all(max(batch.source.size, batch.target_out.size) <= 512 for batch in batches)
    assert all(same(first, second) for first, second in zip(batches, valid_batches(store, 512), strict=True))


def test_empty_store_has_no_valid_batches(tmp_path: Path) -> None:
    write_store(tmp_path / "empty.arrow", [])
    assert list(valid_batches(Store(tmp_path / "empty.arrow"), 100)) == []
