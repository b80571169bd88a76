"""Token buckets: which rows stand together, the padded arrays, and the endless stream that training reads."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from capsnmt.data.store import SMALL_ROWS, Int32Array, Lengths, Store
from capsnmt.text.pipeline import TextPipeline
from capsnmt.text.subwords import BOS, PAD

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_POOL_ROWS = SMALL_ROWS  # sorted together
_LEAST_POOL_ROWS = 5000  # where repeats are spread over pools; smaller ones would pad more than a seventh of a batch


@dataclass(frozen=True)
class Batch:
    """Right-padded arrays; masks are True at real tokens. `target_in` is BOS and `target_out` without its last id."""

    source: Int64Array  # (batch, src_len)
    source_mask: BoolArray  # (batch, src_len)
    target_in: Int64Array  # (batch, tgt_len)
    target_out: Int64Array  # (batch, tgt_len)
    target_mask: BoolArray  # (batch, tgt_len)
    source_tokens: int
    target_tokens: int


def plan_epoch(
    shard_rows: Sequence[int],
    lengths: Callable[[int], Lengths],
    *,
    batch_tokens: int,
    seed: int,
    epoch: int,
    repeats: Sequence[float] = (),
) -> Iterator[Int64Array]:
    """The batches of an epoch as row numbers: every row once, similar lengths together, in random order.

    In each batch rows × longest source and rows × longest target are at most `batch_tokens`; a row that is too long
    by itself stands alone. Planned pool by pool, so the first batch does not wait for millions of others; a pool is a
    random part of the corpus, so batches need not be mixed between pools. `lengths` is asked for one group of shards
    after the other. With `repeats` each row of corpus n comes so many times, 0.3 times meaning three epochs in ten;
    several times fall into different pools, for within one pool equal lengths would bring them into one batch.
    """
    generator = np.random.default_rng([seed, epoch])
    starts = np.concatenate([[0], np.cumsum(shard_rows)]).astype(np.int64)
    for shards in _shard_groups(shard_rows, generator):
        found = [lengths(shard) for shard in shards]
        numbers = np.concatenate([np.arange(starts[shard], starts[shard + 1]) for shard in shards])
        source, target = (np.concatenate([part[side] for part in found]) for side in (0, 1))
        parts = [np.arange(len(numbers))]
        if repeats:
            times = np.asarray(repeats)[np.concatenate([part.corpus for part in found])]  # (rows,)
            parts = _spread(np.floor(times + generator.random(len(times))).astype(np.int64), generator)
        for rows in _pools(parts, generator):
            # Without noise equal lengths would always meet the same neighbours.
            noise = generator.random(len(rows))
            rows = rows[_tile_order(source[rows], target[rows] + noise, batch_tokens=batch_tokens)]
            batches = _cut(rows, source, target, batch_tokens=batch_tokens)
            for index in generator.permutation(len(batches)):
                yield numbers[batches[index]]


def _spread(times: Int64Array, generator: np.random.Generator) -> list[Int64Array]:
    """Each row so many times, in parts that have it once, or as evenly as parts that are large enough allow."""
    rows = np.repeat(np.arange(len(times)), times)  # (draws,)
    num_parts = min(int(times.max(initial=1)), max(1, len(rows) // _LEAST_POOL_ROWS))
    if num_parts == 1:
        return [rows]
    draw = np.arange(len(rows)) - np.repeat(np.cumsum(times) - times, times)  # 0, 1, … for each row
    phase = generator.random(len(times))[rows]
    part = np.floor((draw + phase) * num_parts / times[rows]).astype(np.int64)
    part = np.minimum(part, num_parts - 1)  # a phase of almost 1 may be rounded up
    return [rows[part == number] for number in range(num_parts)]


def _pools(parts: list[Int64Array], generator: np.random.Generator) -> Iterator[Int64Array]:
    """What is sorted together: each part in random order, cut."""
    for part in parts:
        shuffled = generator.permutation(part)
        for start in range(0, len(shuffled), _POOL_ROWS):
            yield shuffled[start : start + _POOL_ROWS]


def corpus_repeats(rows: Sequence[int], weights: Sequence[float], temperature: float) -> tuple[float, ...]:
    """How often a row of each corpus comes in an epoch, which is as long as all corpora together; empty for once each.

    A corpus of n rows gets a share of weight × n^(1 / temperature) of the epoch.
    """
    sizes = np.asarray(rows, np.float64)
    shares = np.asarray(weights) * sizes ** (1.0 / temperature)
    repeats = shares / shares.sum() * sizes.sum() / np.maximum(sizes, 1.0)
    return () if np.allclose(repeats[sizes > 0], 1.0, rtol=1e-9) else tuple(repeats.tolist())


def _shard_groups(shard_rows: Sequence[int], generator: np.random.Generator) -> Iterator[list[int]]:
    """Shards whose rows are mixed together: all of a small store; random ones of a large store, which are random parts
    of the corpus (`prepare` sees to that), about a pool at a time.
    """
    if len(shard_rows) == 1 or sum(shard_rows) <= _POOL_ROWS:
        yield list(range(len(shard_rows)))
        return
    group: list[int] = []
    for shard in generator.permutation(len(shard_rows)).tolist():
        if group and sum(shard_rows[member] for member in group) + shard_rows[shard] > _POOL_ROWS:
            yield group
            group = []
        group.append(shard)
    yield group


def _tile_order(
    source_lengths: npt.NDArray[np.int32], target_lengths: npt.NDArray[np.float64], *, batch_tokens: int
) -> Int64Array:
    """An order whose neighbours are alike on both sides.

    Sorting by one side alone leaves the other ragged. So the rows are cut into strips of similar source length, and
    each strip is sorted by target length, upwards and downwards in turn, so that its end fits the next one's start.
    """
    tokens = np.bincount(source_lengths, weights=np.maximum(source_lengths, target_lengths))  # per source length
    # Strips hold about the same number of tokens, and a source length is never divided between two of them. Twice
    # the root of the number of batches, because the two lengths of a pair resemble each other.
    num_strips = max(1, round(2 * float(np.sqrt(tokens.sum() / batch_tokens))))
    strip_of_length = np.floor((np.cumsum(tokens) - tokens / 2) / max(1.0, tokens.sum()) * num_strips)
    strip = np.unique(strip_of_length, return_inverse=True)[1][source_lengths]  # (rows,), numbered without gaps
    return np.lexsort((np.where(strip % 2 == 0, target_lengths, -target_lengths), strip))


def _cut(
    rows: Int64Array, source_lengths: Int32Array, target_lengths: Int32Array, *, batch_tokens: int
) -> list[Int64Array]:
    """Cuts an order into the longest batches that fit."""
    lengths = np.maximum(source_lengths[rows], target_lengths[rows]).astype(np.int64)  # (rows,)
    batches: list[Int64Array] = []
    start = 0
    while start < len(rows):
        most = max(1, batch_tokens // max(1, int(lengths[start])))
        longest = np.maximum.accumulate(lengths[start : start + most])
        # The padded size grows with every row, so its fitting values are a prefix.
        padded = longest * np.arange(1, len(longest) + 1)
        size = max(1, int(np.searchsorted(padded, batch_tokens, side="right")))
        batches.append(rows[start : start + size])
        start += size
    return batches


def make_batch(
    store: Store,
    rows: Sequence[int] | Int64Array,
    *,
    pipeline: TextPipeline | None = None,
    dropout: float = 0.0,
    seed: int = 0,
) -> Batch:
    """The padded batch of these rows. With `dropout` the text is encoded anew, the same way for the same seed.

    Re-encoded rows are longer than stored ones, so such a batch may exceed `batch_tokens`; nothing is cut off.
    """
    sources: Sequence[Sequence[int] | Int32Array]
    targets: Sequence[Sequence[int] | Int32Array]
    if dropout > 0.0:
        if pipeline is None:
            raise ValueError("dropout needs the pipeline to encode the text anew")
        source_texts = [store.source_text(int(row)) for row in rows]
        target_texts = [store.target_text(int(row)) for row in rows]
        sources = pipeline.encode_normalised(source_texts, "source", dropout=dropout, seed=2 * seed)
        targets = pipeline.encode_normalised(target_texts, "target", dropout=dropout, seed=2 * seed + 1)
    else:
        sources = [store.source_ids(int(row)) for row in rows]
        targets = [store.target_ids(int(row)) for row in rows]
    return pad_batch(sources, targets)


def pad_batch(sources: Sequence[Sequence[int] | Int32Array], targets: Sequence[Sequence[int] | Int32Array]) -> Batch:
    """A batch from ids that end in EOS."""
    source, source_mask = _pad(sources)
    target_out, target_mask = _pad(targets)
    target_in = np.full_like(target_out, PAD)
    target_in[:, 1:] = target_out[:, :-1]
    target_in[:, 0] = BOS
    target_in[~target_mask] = PAD  # the shift moved EOS of the shorter rows into their padding
    return Batch(
        source=source,
        source_mask=source_mask,
        target_in=target_in,
        target_out=target_out,
        target_mask=target_mask,
        source_tokens=int(source_mask.sum()),
        target_tokens=int(target_mask.sum()),
    )


def _pad(sequences: Sequence[Sequence[int] | Int32Array]) -> tuple[Int64Array, BoolArray]:
    lengths = np.array([len(ids) for ids in sequences])  # (batch,)
    mask = np.arange(lengths.max()) < lengths[:, None]  # (batch, longest)
    padded = np.full(mask.shape, PAD, np.int64)
    padded[mask] = np.concatenate(sequences)  # both run row by row
    return padded, mask


def valid_batches(store: Store, batch_tokens: int) -> Iterator[Batch]:
    """Every row once, sorted by length, the same batches each time."""
    order = np.lexsort((store.source_lengths, store.target_lengths))
    for rows in _cut(order, store.source_lengths, store.target_lengths, batch_tokens=batch_tokens):
        yield make_batch(store, rows)


@dataclass(frozen=True)
class Share:
    """Which batches of an update are a rank's: of `update_batches` every n-th, so one rank may have one more."""

    rank: int = 0
    world_size: int = 1
    update_batches: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size <= self.update_batches:
            raise ValueError(f"{self}: every rank needs a batch")

    def __len__(self) -> int:
        return len(range(self.rank, self.update_batches, self.world_size))


ALONE = Share()


class _Planned(NamedTuple):
    """A batch of the endless plan: where it stands, its rows, and the position after it."""

    epoch: int
    number: int
    rows: Int64Array
    following: tuple[int, int]


@dataclass(frozen=True)
class _Ready:
    """What the thread hands over: a batch and the position after it, or the error that ended the thread."""

    batch: Batch | None
    position: tuple[int, int]
    error: BaseException | None = None


class BatchStream:
    """An endless iterator over epochs that can be continued from its `position`, on any number of ranks.

    A thread prepares the next batches, so that the consumer hardly waits; `wait_s` adds up what it did wait. The ranks
    share the batches of each update, and after an update they all stand at the same position.
    """

    def __init__(
        self,
        store: Store,
        *,
        batch_tokens: int,
        seed: int,
        pipeline: TextPipeline | None = None,
        dropout: float = 0.0,
        repeats: Sequence[float] = (),
        position: tuple[int, int] = (0, 0),
        share: Share = ALONE,
        prefetch: int = 8,
    ) -> None:
        if dropout > 0.0 and pipeline is None:
            raise ValueError("dropout needs the pipeline to encode the text anew")
        self.position = position  # (epoch, index of the next batch in it)
        self.wait_s = 0.0
        self.share = share
        self._store = store
        self._batch_tokens = batch_tokens
        self._seed = seed
        self._pipeline = pipeline
        self._dropout = dropout
        self._repeats = repeats
        self._closed = threading.Event()
        self._queue: queue.Queue[_Ready] = queue.Queue(maxsize=max(1, prefetch))
        self._thread = threading.Thread(target=self._work, args=(position,), name="batches", daemon=True)
        self._thread.start()

    def __iter__(self) -> BatchStream:
        return self

    def __next__(self) -> Batch:
        if self._closed.is_set():
            raise ValueError("the stream is closed")
        started_s = time.perf_counter()
        ready = self._queue.get()
        self.wait_s += time.perf_counter() - started_s
        if ready.batch is None:
            self.close()
            raise ready.error or RuntimeError("the batch thread ended")
        self.position = ready.position
        return ready.batch

    def next(self) -> Batch:
        """The next batch, prepared ahead."""
        return self.__next__()

    def close(self) -> None:
        """Ends the thread; what it had prepared is dropped, `position` stays that of the consumer."""
        self._closed.set()
        self._thread.join()

    def _work(self, position: tuple[int, int]) -> None:
        try:
            for ready in self._prepare_from(position):
                if not self._hand_over(ready):
                    return
        except BaseException as error:
            self._hand_over(_Ready(None, position, error))

    def _prepare_from(self, position: tuple[int, int]) -> Iterator[_Ready]:
        planned = self._planned_from(position)
        while True:
            update = list(itertools.islice(planned, self.share.update_batches))
            own = update[self.share.rank :: self.share.world_size]
            for place, (epoch, number, rows, _) in enumerate(own):
                batch = make_batch(
                    self._store,
                    rows,
                    pipeline=self._pipeline,
                    dropout=self._dropout,
                    seed=_batch_seed(self._seed, epoch, number),
                )
                following = own[place + 1] if place + 1 < len(own) else None
                position = (following.epoch, following.number) if following else update[-1].following
                yield _Ready(batch, position)

    def _planned_from(self, position: tuple[int, int]) -> Iterator[_Planned]:
        """Epoch after epoch without an end."""
        epoch, first = position
        while True:
            # The end is marked, so that the last batch is known as the last.
            with_end: Iterator[Int64Array | None] = itertools.chain(self._plan(epoch), [None])
            for index, (rows, following) in enumerate(itertools.pairwise(with_end)):
                if index >= first and rows is not None:
                    yield _Planned(epoch, index, rows, (epoch + 1, 0) if following is None else (epoch, index + 1))
            epoch, first = epoch + 1, 0

    def _plan(self, epoch: int) -> Iterator[Int64Array]:
        return plan_epoch(
            self._store.shard_rows,
            self._store.lengths,
            batch_tokens=self._batch_tokens,
            seed=self._seed,
            epoch=epoch,
            repeats=self._repeats,
        )

    def _hand_over(self, ready: _Ready) -> bool:
        while not self._closed.is_set():
            try:
                self._queue.put(ready, timeout=0.1)  # short, so that close() need not wait for a consumer
                return True
            except queue.Full:
                continue
        return False


def _batch_seed(seed: int, epoch: int, number: int) -> int:
    """A different, reproducible seed for every batch of every epoch."""
    return int(np.random.SeedSequence([seed, epoch, number]).generate_state(1)[0])
