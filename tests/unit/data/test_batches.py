import itertools
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsnmt.config import SubwordsConfig, TextConfig
from capsnmt.data import batches
from capsnmt.data.batches import (
    Batch,
    BatchStream,
    Int64Array,
    Share,
    corpus_repeats,
    make_batch,
    plan_epoch,
    valid_batches,
)
from capsnmt.data.store import Int32Array, Lengths, Row, ShardFile, Store, write_store
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


def planned(*parts: tuple[Int32Array, Int32Array], corpus: int = 0, **settings: Any) -> Iterator[Int64Array]:
    """The plan of a store whose shards have these lengths."""
    found = [Lengths(source, target, np.full(len(source), corpus, np.uint8)) for source, target in parts]
    return plan_epoch([len(part.source) for part in found], found.__getitem__, **settings)


def plan_of(store: Store, epoch: int = 0) -> list[Int64Array]:
    return list(plan_epoch(store.shard_rows, store.lengths, batch_tokens=512, seed=3, epoch=epoch))


lengths = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), max_size=120)


@given(pairs=lengths, batch_tokens=st.integers(16, 200), seed=st.integers(0, 2**32), epoch=st.integers(0, 50))
def test_plan_holds_every_row_once_within_the_budget(
    pairs: list[tuple[int, int]], batch_tokens: int, seed: int, epoch: int
) -> None:
    source = np.array([pair[0] for pair in pairs], np.int32)
    target = np.array([pair[1] for pair in pairs], np.int32)
    plan = list(planned((source, target), batch_tokens=batch_tokens, seed=seed, epoch=epoch))
    assert sorted(itertools.chain.from_iterable(batch.tolist() for batch in plan)) == list(range(len(pairs)))
    for batch in plan:
        assert len(batch) > 0
        fits = len(batch) * max(source[batch].max(), target[batch].max()) <= batch_tokens
        assert fits or len(batch) == 1
    again = list(planned((source, target), batch_tokens=batch_tokens, seed=seed, epoch=epoch))
    assert [batch.tolist() for batch in plan] == [batch.tolist() for batch in again]


def test_plan_pads_little_and_differs_between_epochs() -> None:
    generator = np.random.default_rng(0)
    source = np.clip(generator.lognormal(np.log(20), 0.5, 200_000), 2, 256).astype(np.int32)
    target = np.clip(source * generator.lognormal(0.05, 0.25, len(source)), 2, 256).astype(np.int32)
    plan = list(planned((source, target), batch_tokens=4096, seed=1, epoch=0))
    padded = sum(len(batch) * (int(source[batch].max()) + int(target[batch].max())) for batch in plan)
    assert 1 - (source.sum() + target.sum()) / padded < 0.05
    other = list(planned((source, target), batch_tokens=4096, seed=1, epoch=1))
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
    plan = planned((source, target), batch_tokens=200, seed=1, epoch=0)
    found = [next(plan)]
    assert pools == [100]
    found += plan
    assert pools == [100, 100, 100, 50]
    assert sorted(itertools.chain.from_iterable(batch.tolist() for batch in found)) == list(range(350))


def some_lengths(rows: int) -> tuple[Int32Array, Int32Array]:
    generator = np.random.default_rng(rows)
    source, target = (generator.integers(2, 40, rows).astype(np.int32) for _ in range(2))
    return source, target


def test_shards_of_a_small_store_make_no_difference() -> None:
    """The order of a run that was started before there were shards."""
    source, target = some_lengths(350)
    whole = planned((source, target), batch_tokens=200, seed=1, epoch=2)
    parts = [(source[:100], target[:100]), (source[100:101], target[100:101]), (source[101:], target[101:])]
    cut = planned(*parts, batch_tokens=200, seed=1, epoch=2)
    assert [batch.tolist() for batch in whole] == [batch.tolist() for batch in cut]


def test_shards_of_a_large_store_are_opened_a_pool_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_POOL_ROWS", 100)
    parts = [Lengths(*some_lengths(rows), np.zeros(rows, np.uint8)) for rows in (40, 40, 10, 40, 120, 40, 40, 0, 40)]
    opened: list[int] = []

    def lengths_of(shard: int) -> Lengths:
        opened.append(shard)
        return parts[shard]

    def plan(epoch: int) -> Iterator[Int64Array]:
        rows = [len(part.source) for part in parts]
        return plan_epoch(rows, lengths_of, batch_tokens=200, seed=1, epoch=epoch)

    running = plan(0)
    found = [next(running)]
    assert sum(len(parts[shard].source) for shard in opened) <= 120
    found += running
    assert sorted(opened) == list(range(9))
    assert sorted(itertools.chain.from_iterable(batch.tolist() for batch in found)) == list(range(370))
    first, opened = opened, []
    assert [batch.tolist() for batch in plan(0)] == [batch.tolist() for batch in found]
    assert opened == first
    opened = []
    list(plan(1))
    assert opened != first


@pytest.mark.parametrize("pool_rows", [1_000_000, 90])
def test_rows_are_repeated_as_often_as_their_corpus_says(pool_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_POOL_ROWS", pool_rows)
    parts = [Lengths(*some_lengths(60), np.tile(np.arange(3, dtype=np.uint8), 20)) for _ in range(5)]
    epochs = []
    for epoch in range(200):
        plan = plan_epoch([60] * 5, parts.__getitem__, batch_tokens=200, seed=1, epoch=epoch, repeats=(1.0, 0.25, 2.5))
        epochs.append(Counter(itertools.chain.from_iterable(batch.tolist() for batch in plan)))
    times = np.array([[epoch[row] for row in range(300)] for epoch in epochs])  # (epochs, rows)
    assert (times[:, 0::3] == 1).all()
    assert set(times[:, 1::3].flat) == {0, 1}
    assert set(times[:, 2::3].flat) == {2, 3}
    assert abs(times[:, 1::3].mean() - 0.25) < 0.02  # 200 x 100 draws: six standard deviations
    assert abs(times[:, 2::3].mean() - 2.5) < 0.03
    assert times[:, 1::3].any(axis=0).all()  # none is left out for ever


@pytest.mark.parametrize(("least_rows", "most_in_a_batch"), [(10, 1), (1000, 10)])
def test_repeats_of_a_row_stand_in_different_batches(
    least_rows: int, most_in_a_batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "_LEAST_POOL_ROWS", least_rows)
    source, target = some_lengths(2000)
    corpus = (np.arange(2000) >= 1900).astype(np.uint8)  # a hundred rows that come twenty times
    settings: dict[str, Any] = {"batch_tokens": 2000, "seed": 1, "epoch": 0, "repeats": (0.5, 20.0)}
    plan = list(plan_epoch([2000], lambda _: Lengths(source, target, corpus), **settings))
    times = Counter(itertools.chain.from_iterable(batch.tolist() for batch in plan))
    assert all(times[row] == 20 for row in range(1900, 2000))
    assert abs(sum(times[row] for row in range(1900)) - 950) < 6 * 22
    assert max(max(Counter(batch.tolist()).values()) for batch in plan) <= most_in_a_batch
    again = list(plan_epoch([2000], lambda _: Lengths(source, target, corpus), **settings))
    assert [batch.tolist() for batch in plan] == [batch.tolist() for batch in again]


def test_a_plain_corpus_keeps_the_order_that_checkpoints_rely_on() -> None:
    """Random numbers are drawn for an order, for noise and for an order of batches, and for nothing else."""
    source, target = some_lengths(350)
    generator = np.random.default_rng([5, 2])
    rows = generator.permutation(350)
    rows = rows[batches._tile_order(source[rows], target[rows] + generator.random(350), batch_tokens=200)]
    cut = batches._cut(rows, source, target, batch_tokens=200)
    expected = [cut[index].tolist() for index in generator.permutation(len(cut))]
    found = planned((source, target), batch_tokens=200, seed=5, epoch=2)
    assert [batch.tolist() for batch in found] == expected


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

    per_epoch = len(plan_of(store))
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


@pytest.mark.parametrize(("world", "update_batches"), [(2, 2), (3, 3), (1, 4), (2, 4), (3, 4), (4, 4), (2, 7)])
def test_ranks_share_the_batches_of_every_update(store: Store, world: int, update_batches: int) -> None:
    """Whatever the number of ranks, an update has the same batches, also across the end of an epoch."""
    updates = 2 * len(plan_of(store)) // update_batches + 1
    flat = [(epoch, rows) for epoch in range(4) for rows in plan_of(store, epoch)]
    one = take(BatchStream(store, batch_tokens=512, seed=3), updates * update_batches)
    shares = [Share(rank, world, update_batches) for rank in range(world)]
    taken = [take(BatchStream(store, batch_tokens=512, seed=3, share=share), updates * len(share)) for share in shares]
    assert sum(map(len, shares)) == update_batches
    for update in range(updates):
        own = [
            ranks[update * len(share) : (update + 1) * len(share)] for ranks, share in zip(taken, shares, strict=True)
        ]
        end = (update + 1) * update_batches
        for number, (_, rows) in enumerate(flat[end - update_batches : end]):
            assert same(own[number % world][number // world][0], make_batch(store, rows))
        assert {part[-1][1] for part in own} == {one[end - 1][1]}  # where all stand after the update


def test_a_share_without_a_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="every rank needs a batch"):
        Share(0, 3, 2)


def test_an_exception_in_the_thread_reaches_the_consumer(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = BatchStream(store, batch_tokens=512, seed=3, prefetch=1)

    def broken(row: int) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(store, "source_ids", broken)
    with pytest.raises(OSError, match="the disk is gone"):
        list(itertools.islice(stream, 10))


def test_a_store_of_shards_is_read_as_one(store: Store, tmp_path: Path) -> None:
    files, start = [], 0
    for number, rows in enumerate((0, 7, 100, ROWS - 107)):
        path = tmp_path / f"{number}.arrow"
        part = [
            Row(store.source_text(row), store.target_text(row), store.source_ids(row), store.target_ids(row))
            for row in range(start, start + rows)
        ]
        files.append(ShardFile(path, write_store(path, part)))
        start += rows
    shards = Store(tmp_path, files)
    first, second = (take(BatchStream(one, batch_tokens=512, seed=3), 30) for one in (store, shards))
    assert all(same(one, other) for (one, _), (other, _) in zip(first, second, strict=True))
    assert shards.target_text(107) == store.target_text(107)


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


def test_shares_of_corpora() -> None:
    assert corpus_repeats([900, 100], [1, 1], 1.0) == ()  # by size: every row once
    by_weight = corpus_repeats([900, 100], [1, 9], 1.0)
    assert by_weight == pytest.approx((500 / 900, 500 / 100))
    by_temperature = corpus_repeats([900, 100], [1, 1], 2.0)  # shares 30 : 10
    assert by_temperature == pytest.approx((750 / 900, 250 / 100))
    assert corpus_repeats([900, 0], [1, 5], 2.0) == ()  # a corpus of which nothing is left
