"""The stages of preparing: reading, subwords, shuffling, encoding; and how far and how fast they are.

Reading goes block by block, encoding shard by shard through several processes, and what was read waits in files to be
encoded. Whatever is whole is noted in the ledger, and not done again by a `prepare` that goes on after a kill. Resident
memory is bounded: some blocks, 8 bytes per pair for duplicates, what SentencePiece needs for its sample, and about
200 MB per process.

A corpus of more than SMALL_ROWS pairs is shuffled as a whole: each file of waiting text by itself, in memory; then
shard k takes the k-th part of each of them, and shuffles those. So a shard is a random part of the corpus, and training
can mix a few shards at a time.
"""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from capsnmt.config import ParallelText, RunConfig, SubwordsConfig, TextConfig
from capsnmt.data.corpus import read_pairs
from capsnmt.data.filters import (
    Duplicate,
    HashSet,
    Pair,
    active_checks,
    first_reasons,
    hashes_of,
    overlap_key,
    pair_hashes,
)
from capsnmt.data.ledger import Ledger, ShardRecord
from capsnmt.data.store import (
    ROWS_PER_BATCH,
    SHARD_ROWS,
    SHARD_TEXT_BYTES,
    SMALL_ROWS,
    encoded_batch,
    joined,
    read_texts,
    read_texts_part,
    text_batch,
    write_encoded,
    write_texts,
)
from capsnmt.data.workers import in_order
from capsnmt.text.normalise import normalise
from capsnmt.text.pipeline import Side, TextPipeline, subword_files
from capsnmt.text.spans import mask_pair
from capsnmt.text.subwords import train_subwords

T = TypeVar("T")

_LOG = logging.getLogger(__name__)

_PAIRS_PER_LOG_LINE = 100_000
_BLOCK_PAIRS = 4096
_BLOCK_CHARACTERS = 1 << 22  # ends a block early, so that a block of huge lines is no huge block
# SentencePiece needs 0.5 KB for each, and 4 KB for unigram, which makes a suffix array of the text: 0.5 to 0.8 GB. For
# Europarl en-de and 16,000 BPE pieces, twice as many lines changed 0.9 % of the pieces, and the number of tokens of
# held-out text by 0.02 %. Words are counted in all lines: of the 20,000 most frequent ones in 1/18 of Europarl's
# English only three quarters are among those of the whole.
_SUBWORD_LINES = {"bpe": 1_000_000, "unigram": 200_000, "char": 1_000_000, "word": math.inf}


def check_valid(config: RunConfig) -> None:
    """Reads the validation text, so that its faults are told before the training text is read, which takes long."""
    for _ in read_pairs(config.data.valid, config.data.root):
        pass


def read_train(ledger: Ledger, config: RunConfig, stages: Stages, workers: int) -> None:
    """Writes the training text as the model will see it, without what the filters leave out, which is counted."""
    seen = HashSet() if config.data.filters.deduplicate else None
    if seen is not None:
        for texts in itertools.chain.from_iterable(map(read_texts, ledger.paths())):
            seen.add(texts.column("hash").to_numpy())
    counts: Counter[str] = Counter()
    held: list[Any] = []

    def write_held(*, is_last: bool = False) -> None:
        path = ledger.folder / f"text-{len(ledger.texts):05d}.arrow"
        rows = write_texts(path, held)
        ledger.texts.append(ShardRecord.of(path, rows, dict(counts)))
        ledger.is_read = is_last
        ledger.save()
        held.clear()
        counts.clear()

    blocks = _blocks_of_corpora(config, skip=ledger.counts["read"])
    sifted = in_order(partial(_Sifter, config, _held_out(config)), blocks, workers=workers)
    for dropped, texts in stages.watch("reading", sifted):
        counts["read"] += sum(dropped.values()) + texts.num_rows
        counts.update(dropped)
        if seen is not None:
            is_new = ~seen.add(texts.column("hash").to_numpy())
            counts[Duplicate.reason] += texts.num_rows - int(np.count_nonzero(is_new))
            texts = texts.take(np.flatnonzero(is_new))
        held.append(texts)
        if sum(part.num_rows for part in held) >= SHARD_ROWS or sum(part.nbytes for part in held) >= SHARD_TEXT_BYTES:
            write_held()
    write_held(is_last=True)


def _blocks_of_corpora(config: RunConfig, skip: int) -> Iterator[tuple[int, list[Pair]]]:
    """The pairs of each corpus after the other, with its number, without the first `skip`."""
    for corpus, text in enumerate(config.data.train.corpora):
        pairs = read_pairs(text, config.data.root)
        skip -= sum(1 for _ in itertools.islice(pairs, skip))
        for block in blocks_of(pairs):
            yield corpus, block


class _Sifter:
    """What there is to do with pairs before subwords: normalising, filtering (except duplicates), masking."""

    def __init__(self, config: RunConfig, held_out: HashSet) -> None:
        self._text = config.text
        self._checks = active_checks(config.data.filters, languages=config.languages, held_out=held_out)

    def __call__(self, numbered_block: tuple[int, list[Pair]]) -> tuple[int, tuple[Counter[str], Any]]:
        """The block's size; what is left out by reason, and the texts of all others."""
        corpus, block = numbered_block
        settings = self._text.normalise
        pairs = [(normalise(source, settings), normalise(target, settings)) for source, target in block]
        reasons = first_reasons(pairs, self._checks)
        dropped = Counter(reason for reason in reasons if reason is not None)
        left = [pair for pair, reason in zip(pairs, reasons, strict=True) if reason is None]
        masked = [_masked(pair, self._text) for pair in left]
        return len(block), (dropped, text_batch(masked, corpus=corpus, hashes=pair_hashes(left)))


def train_all_subwords(ledger: Ledger, config: RunConfig, stages: Stages, workers: int) -> None:
    """Trains on the training text only: what the filters leave out must not take up places in the vocabulary."""
    subwords, num_texts = config.text.subwords, ledger.num_texts
    source_file, target_file = (ledger.folder / name for name in subword_files(subwords.joint))
    sides = {source_file: (0, 1)} if subwords.joint else {source_file: (0,), target_file: (1,)}
    for file, columns in sides.items():
        with stages.timed("training subwords", num_texts):
            share = _SUBWORD_LINES[subwords.type] / (len(columns) * num_texts)
            make = partial(partial, _train_subwords, file, subwords, ledger.paths(), columns)
            # In a worker, for its memory is free again when it ends, which C++ alone does not see to.
            list(in_order(make, [share], workers=workers))


def _train_subwords(
    file: Path, config: SubwordsConfig, texts: list[Path], columns: Sequence[int], share: float
) -> None:
    side: Side = "source" if 0 in columns else "target"
    train_subwords(sampled_lines(texts, columns, share), config, file, side=side)


def sampled_lines(files: Sequence[Path], columns: Sequence[int], share: float) -> Iterator[str]:
    """About this share of the pairs, from all over the text and the same ones each time; all of them from 1 on."""
    generator = np.random.default_rng(0)
    for texts in itertools.chain.from_iterable(map(read_texts, files)):
        sample = texts.take(np.flatnonzero(generator.random(texts.num_rows) < share))
        for column in columns:
            yield from sample.column(column).to_pylist()


def shuffle_texts(ledger: Ledger, stages: Stages) -> None:
    """Shuffles each file of waiting text by itself, if the corpus is too large to be mixed as a whole in training."""
    if ledger.num_texts <= SMALL_ROWS:
        return
    with stages.timed("shuffling", ledger.num_texts):
        for number, record in enumerate(ledger.texts):
            path = ledger.folder / record.file
            shuffled = ledger.folder / f"shuffled-{number:05d}.arrow"
            if path != shuffled:
                batches = list(read_texts(path))  # none where the corpus ended with the file before
                texts = joined(batches) if batches else text_batch([])
                rows = write_texts(shuffled, [texts.take(_order(texts.num_rows, number))])
                ledger.texts[number] = ShardRecord.of(shuffled, rows, record.counts)
                ledger.save()
                path.unlink()


def _order(rows: int, number: int) -> Any:
    """A random order that depends on nothing else."""
    return np.random.default_rng([rows, number]).permutation(rows)


def encode_train(ledger: Ledger, config: RunConfig, stages: Stages, workers: int) -> None:
    """Encodes the waiting text into shards; pairs with a side of more than `data.max_tokens` are left out."""
    num_shards, is_shuffled = len(ledger.texts), ledger.num_texts > SMALL_ROWS
    if is_shuffled:
        num_bytes = sum(record.bytes for record in ledger.texts)
        num_shards = math.ceil(max(ledger.num_texts / SHARD_ROWS, num_bytes / SHARD_TEXT_BYTES))
    encode = _Encoder(ledger.folder, config.text, max_tokens=config.data.max_tokens)
    make = partial(_ShardWriter, ledger.folder, ledger.paths(), num_shards if is_shuffled else None, encode)
    written = in_order(make, range(len(ledger.shards), num_shards), workers=workers)
    for record in stages.watch("encoding train", written, total=ledger.num_texts):
        ledger.shards.append(record)
        ledger.save()


class _ShardWriter:
    """Makes a shard: of its own file of waiting text, or of its part of all of them."""

    def __init__(self, folder: Path, texts: list[Path], num_parts: int | None, encode: _Encoder) -> None:
        self._folder = folder
        self._texts = texts
        self._num_parts = num_parts
        self._encode = encode

    def __call__(self, number: int) -> tuple[int, ShardRecord]:
        """The number of texts, and the record of the shard."""
        if self._num_parts is None:
            batches = list(read_texts(self._texts[number]))
        else:
            part = read_texts_part(self._texts, number, self._num_parts)
            part = part.take(_order(part.num_rows, number))
            batches = [part.slice(start, ROWS_PER_BATCH) for start in range(0, part.num_rows, ROWS_PER_BATCH)]
        path = self._folder / f"train-{number:05d}.arrow"
        counts: Counter[str] = Counter()
        rows = write_encoded(path, (self._encoded(batch, counts) for batch in batches))
        return sum(batch.num_rows for batch in batches), ShardRecord.of(path, rows, dict(counts))

    def _encoded(self, texts: Any, counts: Counter[str]) -> Any:
        """The texts with their ids; the rows of each corpus are counted."""
        _, encoded = self._encode(texts)
        for corpus, rows in enumerate(np.bincount(encoded.column("corpus").to_numpy()).tolist()):
            counts[str(corpus)] += rows
        return encoded


def encode_valid(file: Path, config: RunConfig, stages: Stages) -> int:
    """Encodes the validation text. It keeps every pair: leaving out hard ones would flatter the model."""
    pairs = (_masked(pair, config.text) for pair in _read_normalised(config, config.data.valid))
    encode = _Encoder(file.parent, config.text)
    return write_encoded(file, stages.watch("encoding valid", map(encode, map(text_batch, blocks_of(pairs)))))


class _Encoder:
    """Gives texts their ids. Pairs with a side of more than `max_tokens` are left out."""

    def __init__(self, folder: Path, config: TextConfig, max_tokens: float = math.inf) -> None:
        self._folder = folder
        self._config = config
        self._max_tokens = max_tokens

    @cached_property
    def _pipeline(self) -> TextPipeline:
        return TextPipeline.load(self._folder, self._config)  # in the process that encodes

    def __call__(self, texts: Any) -> tuple[int, Any]:
        """The number of texts, and a record batch for the store."""
        sources, targets = (texts.column(side).to_pylist() for side in ("source", "target"))
        source_ids = self._pipeline.encode_normalised(sources, "source")
        target_ids = self._pipeline.encode_normalised(targets, "target")
        rows = [
            row
            for row, sides in enumerate(zip(source_ids, target_ids, strict=True))
            if max(map(len, sides)) <= self._max_tokens
        ]
        kept = texts if len(rows) == texts.num_rows else texts.take(np.array(rows, np.int64))
        return texts.num_rows, encoded_batch(kept, [source_ids[row] for row in rows], [target_ids[row] for row in rows])


def blocks_of(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    """The pairs, some thousand at a time, fewer where they are long."""
    block: list[Pair] = []
    size = 0
    for pair in pairs:
        block.append(pair)
        size += len(pair[0]) + len(pair[1])
        if len(block) == _BLOCK_PAIRS or size > _BLOCK_CHARACTERS:
            yield block
            block, size = [], 0
    if block:
        yield block


def _read_normalised(config: RunConfig, text: ParallelText) -> Iterator[Pair]:
    """The pairs as the filters, the subwords and the store see them."""
    settings = config.text.normalise
    for source, target in read_pairs(text, config.data.root):
        yield normalise(source, settings), normalise(target, settings)


def _masked(pair: Pair, text: TextConfig) -> Pair:
    """The pair as the model sees it: protected spans of both sides as reserved symbols."""
    return mask_pair(*pair, text.protect, text.subwords.protected_symbols) if text.protect else pair


def _held_out(config: RunConfig) -> HashSet:
    """The sources of valid and test, where the filters look for overlap."""
    held_out = HashSet()
    if config.data.filters.drop_overlap:
        for text in (config.data.valid, config.data.test):
            pairs = _read_normalised(config, text) if text is not None else iter(())
            for block in blocks_of(pairs):
                held_out.add(hashes_of(overlap_key(source) for source, _ in block))
    return held_out


@contextmanager
def progress_bar(wanted: bool) -> Iterator[Progress]:
    """Bars on standard error if they are wanted and that is a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(
        *columns, TimeRemainingColumn(), console=console, disable=not (wanted and console.is_terminal)
    ) as bar:
        yield bar


class Stages:
    """Shows how far each stage is, by a bar or by a line now and then where there is no terminal, and how fast."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._lines: list[str] = []
        self._start_s = time.monotonic()

    def watch(self, label: str, answers: Iterable[tuple[int, T]], total: int | None = None) -> Iterator[T]:
        """Passes the answers on, each of which comes with the number of its pairs."""
        task = self._bar.add_task(label, total=total)
        start_s = time.monotonic()
        done = 0
        for pairs, answer in answers:
            yield answer
            done += pairs
            self._bar.update(task, completed=done)
            if self._bar.disable and done // _PAIRS_PER_LOG_LINE > (done - pairs) // _PAIRS_PER_LOG_LINE:
                _LOG.info("%s: %d pairs so far", label, done)
        self._bar.update(task, completed=done, total=done)
        self._note(label, done, start_s)

    @contextmanager
    def timed(self, label: str, pairs: int) -> Iterator[None]:
        """A stage that does not tell how far it is."""
        task = self._bar.add_task(label, total=None)
        if self._bar.disable:
            _LOG.info("%s", label)
        start_s = time.monotonic()
        yield
        self._bar.update(task, completed=pairs, total=pairs)
        self._note(label, pairs, start_s)

    def _note(self, label: str, pairs: int, start_s: float) -> None:
        elapsed_s = max(1e-9, time.monotonic() - start_s)
        self._lines.append(f"{label}: {pairs} pairs in {elapsed_s:.1f} s, {pairs / elapsed_s:.0f} pairs/s")

    def log(self, pairs: int) -> None:
        """Logs the speed of each stage and of all; when the bars are gone, for they and a log disturb each other."""
        self._note("all", pairs, self._start_s)
        for line in self._lines:
            _LOG.info("%s", line)
