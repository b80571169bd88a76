"""The three stages of preparing: reading, subwords, encoding; and how far and how fast they are.

Reading and encoding go block by block through several processes, and what was read waits in a file to be encoded.
Resident memory is bounded: some blocks, 8 bytes per pair for duplicates, what SentencePiece needs for its sample, and
about 100 MB per process.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from capsnmt.config import ParallelText, RunConfig, SubwordsConfig, TextConfig
from capsnmt.data.corpus import read_pairs
from capsnmt.data.filters import (
    Duplicate,
    Hashes,
    HashSet,
    Pair,
    active_checks,
    first_reasons,
    hashes_of,
    overlap_key,
    pair_hashes,
)
from capsnmt.data.store import encoded_batch, read_texts, text_batch, write_encoded, write_texts
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
# held-out text by 0.02 %.
_SUBWORD_LINES = {"bpe": 1_000_000, "unigram": 200_000, "char": 1_000_000, "word": 1_000_000}


def read_train(file: Path, config: RunConfig, stages: Stages, workers: int) -> Counter[str]:
    """Writes the training text as the model will see it, without what the filters leave out. Counts all by reason."""
    counts: Counter[str] = Counter()
    counts["left"] = write_texts(file, _texts_to_keep(config, counts, stages, workers))
    return counts


def _texts_to_keep(config: RunConfig, counts: Counter[str], stages: Stages, workers: int) -> Iterator[Any]:
    """Record batches of the training text as the model sees it, without what the filters leave out; that is counted."""
    seen = HashSet() if config.data.filters.deduplicate else None
    blocks = blocks_of(read_pairs(config.data.train, config.data.root))
    sifted = in_order(partial(_Sifter, config, _held_out(config)), blocks, workers=workers)
    for dropped, hashes, texts in stages.watch("reading", sifted):
        counts["read"] += sum(dropped.values()) + texts.num_rows
        counts.update(dropped)
        if seen is not None:
            is_new = ~seen.add(hashes)
            counts[Duplicate.reason] += texts.num_rows - int(np.count_nonzero(is_new))
            texts = texts.take(np.flatnonzero(is_new))
        yield texts


class _Sifter:
    """What there is to do with pairs before subwords: normalising, filtering (except duplicates), masking."""

    def __init__(self, config: RunConfig, held_out: HashSet) -> None:
        self._text = config.text
        self._checks = active_checks(config.data.filters, languages=config.languages, held_out=held_out)

    def __call__(self, block: list[Pair]) -> tuple[int, tuple[Counter[str], Hashes, Any]]:
        """The block's size; what is left out by reason, then the hashes and the texts of all others."""
        settings = self._text.normalise
        pairs = [(normalise(source, settings), normalise(target, settings)) for source, target in block]
        reasons = first_reasons(pairs, self._checks)
        dropped = Counter(reason for reason in reasons if reason is not None)
        left = [pair for pair, reason in zip(pairs, reasons, strict=True) if reason is None]
        return len(block), (dropped, pair_hashes(left), text_batch([_masked(pair, self._text) for pair in left]))


def train_all_subwords(
    folder: Path, texts: Path, num_texts: int, config: RunConfig, *, stages: Stages, workers: int
) -> None:
    """Trains on the training text only: what the filters leave out must not take up places in the vocabulary."""
    subwords = config.text.subwords
    source_file, target_file = (folder / name for name in subword_files(subwords.joint))
    sides = {source_file: (0, 1)} if subwords.joint else {source_file: (0,), target_file: (1,)}
    for file, columns in sides.items():
        with stages.timed("training subwords", num_texts):
            share = _SUBWORD_LINES[subwords.type] / (len(columns) * num_texts)
            make = partial(partial, _train_subwords, file, subwords, texts, columns)
            # In a worker, for its memory is free again when it ends, which C++ alone does not see to.
            list(in_order(make, [share], workers=workers))


def _train_subwords(file: Path, config: SubwordsConfig, texts: Path, columns: Sequence[int], share: float) -> None:
    side: Side = "source" if 0 in columns else "target"
    train_subwords(sampled_lines(texts, columns, share), config, file, side=side)


def sampled_lines(texts_file: Path, columns: Sequence[int], share: float) -> Iterator[str]:
    """About this share of the pairs, from all over the text and the same ones each time; all of them from 1 on."""
    generator = np.random.default_rng(0)
    for texts in read_texts(texts_file):
        sample = texts.take(np.flatnonzero(generator.random(texts.num_rows) < share))
        for column in columns:
            yield from sample.column(column).to_pylist()


def encode_train(file: Path, texts: Path, num_texts: int, config: RunConfig, *, stages: Stages, workers: int) -> int:
    """Encodes what `read_train` has written, with the subwords beside `file`; returns how many are short enough."""
    make = partial(_Encoder, file.parent, config.text, max_tokens=config.data.max_tokens)
    encoded = in_order(make, read_texts(texts), workers=workers)
    return write_encoded(file, stages.watch("encoding train", encoded, total=num_texts))


def encode_valid(file: Path, config: RunConfig, stages: Stages) -> int:
    """Encodes the validation text. It keeps every pair: leaving out hard ones would flatter the model."""
    pairs = (_masked(pair, config.text) for pair in _read_normalised(config, config.data.valid))
    encode = _Encoder(file.parent, config.text)
    return write_encoded(file, stages.watch("encoding valid", map(encode, map(text_batch, blocks_of(pairs)))))


class _Encoder:
    """Gives texts their ids. Pairs with a side of more than `max_tokens` are left out."""

    def __init__(self, folder: Path, config: TextConfig, max_tokens: float = math.inf) -> None:
        self._pipeline = TextPipeline.load(folder, config)
        self._max_tokens = max_tokens

    def __call__(self, texts: Any) -> tuple[int, Any]:
        """The number of texts, and a record batch for the store."""
        sources, targets = (column.to_pylist() for column in texts.columns)
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
