"""Sentences as ids: real ones with the lengths that subwords give them, and made-up ones of any length."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from capsnmt.config import SubwordsConfig
from capsnmt.data.corpus import read_lines
from capsnmt.errors import CapsNMTError
from capsnmt.text.subwords import EOS, Subwords, train_subwords

_LOG = logging.getLogger(__name__)

FIRST_ID = 4  # after the special ids
MOST_TOKENS = 256  # of a sentence, as `decoding.max_source_tokens`
SUBWORDS = SubwordsConfig(type="bpe", vocabulary=8000, protected_symbols=0)


def made_sentence(length: int, vocabulary: int, *, seed: int = 1) -> list[int]:
    """Random ids of this many tokens, </s> included."""
    ids = np.random.default_rng([seed, length]).integers(FIRST_ID, vocabulary, length - 1)
    return [*ids.tolist(), EOS]


def real_sentences(path: Path, count: int, vocabulary: int, folder: Path) -> list[list[int]]:
    """The first `count` lines that are not empty, in subwords that are learnt from this very file.

    Models with random weights have no vocabulary of their own; what counts is how many tokens a sentence has.
    """
    lines = [line for line in map(str.strip, read_lines(path)) if line]
    if not lines:
        raise CapsNMTError(f"--source {path}: no sentence in it")
    if len(lines) < count:
        _LOG.warning("%s has %d sentences, %d were asked for", path, len(lines), count)
    model = folder / "bench.subwords.model"
    with _silent(logging.getLogger("capsnmt.text.subwords")):  # a smaller vocabulary is expected here
        train_subwords(lines, SUBWORDS, model)
    ids = Subwords(model).encode_batch(lines[:count])
    return [[*_folded(sentence, vocabulary)[: MOST_TOKENS - 1], EOS] for sentence in ids]


@contextmanager
def _silent(logger: logging.Logger) -> Iterator[None]:
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _folded(ids: list[int], vocabulary: int) -> list[int]:
    """Into a vocabulary that may be smaller than the subwords' own."""
    return [FIRST_ID + (id_ - FIRST_ID) % (vocabulary - FIRST_ID) if id_ >= FIRST_ID else id_ for id_ in ids]
