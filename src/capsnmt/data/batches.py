"""Token buckets: which rows stand together, the padded arrays, and the endless stream that training reads."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from capsnmt.data.store import Int32Array, Store
from capsnmt.errors import CapsNMTError
from capsnmt.text.pipeline import TextPipeline
from capsnmt.text.subwords import BOS, PAD

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# Rows sorted together: enough for little padding, few enough to mix the corpus anew each epoch and to plan at once.
_POOL_ROWS = 1_000_000


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
    source_lengths: Int32Array, target_lengths: Int32Array, *, batch_tokens: int, seed: int, epoch: int
) -> Iterator[Int64Array]:
    """The batches of an epoch as row numbers: every row once, similar lengths together, in random order.

    In each batch rows × longest source and rows × longest target are at most `batch_tokens`; a row that is too long
    by itself stands alone. Planned pool by pool, so the first batch does not wait for millions of others; a pool is a
    random part of the corpus, so batches need not be mixed between pools.
    """
    generator = np.random.default_rng([seed, epoch])
    shuffled = generator.permutation(len(source_lengths))
    for start in range(0, len(shuffled), _POOL_ROWS):
        rows = shuffled[start : start + _POOL_ROWS]
        # Without noise equal lengths would always meet the same neighbours.
        noise = generator.random(len(rows))
        rows = rows[_tile_order(source_lengths[rows], target_lengths[rows] + noise, batch_tokens=batch_tokens)]
        batches = _cut(rows, source_lengths, target_lengths, batch_tokens=batch_tokens)
        for index in generator.permutation(len(batches)):
            yield batches[index]


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
class _Ready:
    """What the thread hands over: a batch and the position after it, or the error that ended the thread."""

    batch: Batch | None
    position: tuple[int, int]
    error: BaseException | None = None


class BatchStream:
    """An endless iterator over epochs that can be continued from its `position`.

    A thread prepares the next batches, so that the consumer hardly waits; `wait_s` adds up what it did wait. With
    several ranks each takes every n-th batch of the common plan, and all of them share the same positions.
    """

    def __init__(
        self,
        store: Store,
        *,
        batch_tokens: int,
        seed: int,
        pipeline: TextPipeline | None = None,
        dropout: float = 0.0,
        position: tuple[int, int] = (0, 0),
        rank: int = 0,
        world_size: int = 1,
        prefetch: int = 8,
    ) -> None:
        if dropout > 0.0 and pipeline is None:
            raise ValueError("dropout needs the pipeline to encode the text anew")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} of world_size {world_size}")
        self.position = position  # (epoch, index of the next batch of this rank)
        self.wait_s = 0.0
        self._store = store
        self._batch_tokens = batch_tokens
        self._seed = seed
        self._pipeline = pipeline
        self._dropout = dropout
        self._rank = rank
        self._world_size = world_size
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
        epoch, first = position
        while True:
            groups = self._groups(epoch)
            group = next(groups, None)
            if group is None:
                num_batches = sum(1 for _ in self._plan(epoch))
                raise CapsNMTError(
                    f"{self._store.path} gives {num_batches} batches an epoch, too few for {self._world_size} "
                    f"processes; lower training.batch_tokens ({self._batch_tokens}) or use more text"
                )
            for index in itertools.count():
                following = next(groups, None)
                if index >= first:
                    batch = make_batch(
                        self._store,
                        group[self._rank],
                        pipeline=self._pipeline,
                        dropout=self._dropout,
                        seed=_batch_seed(self._seed, epoch, index * self._world_size + self._rank),
                    )
                    yield _Ready(batch, (epoch + 1, 0) if following is None else (epoch, index + 1))
                if following is None:
                    break
                group = following
            epoch, first = epoch + 1, 0

    def _groups(self, epoch: int) -> Iterator[list[Int64Array]]:
        """A batch for each rank at a time. An incomplete last group would leave some waiting for the others."""
        plan = self._plan(epoch)
        while len(group := list(itertools.islice(plan, self._world_size))) == self._world_size:
            yield group

    def _plan(self, epoch: int) -> Iterator[Int64Array]:
        source_lengths, target_lengths = self._store.source_lengths, self._store.target_lengths
        return plan_epoch(source_lengths, target_lengths, batch_tokens=self._batch_tokens, seed=self._seed, epoch=epoch)

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
