"""Sentences as ids: real ones with the lengths that pieces give them, and made-up ones of any length."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from capsnmt.bench.systems import BenchSystem, vocabulary_sizes
from capsnmt.config import NO_SUBWORDS, PieceType, SubwordsConfig
from capsnmt.data.corpus import read_lines
from capsnmt.errors import CapsNMTError
from capsnmt.text.subwords import EOS, Subwords, train_subwords

_LOG = logging.getLogger(__name__)

FIRST_ID = 4  # after the special ids
MOST_TOKENS = 256  # of a sentence, as `decoding.max_source_tokens`
MOST_CHARACTERS = 1024  # of a sentence that is cut into them
SUBWORDS = SubwordsConfig(type="bpe", vocabulary=8000, protected_symbols=0)


def made_sentence(length: int, vocabulary: int, *, seed: int = 1) -> list[int]:
    """Random ids of this many tokens, </s> included."""
    ids = np.random.default_rng([seed, length]).integers(FIRST_ID, vocabulary, length - 1)
    return [*ids.tolist(), EOS]


class RealText:
    """The sentences of a file, in pieces that are learnt from this very file.

    Models with random weights have no vocabulary of their own; what counts is how many tokens a sentence has.
    """

    def __init__(self, path: Path, folder: Path) -> None:
        self._path, self._folder = path, folder
        self._lines = [line for line in map(str.strip, read_lines(path)) if line]
        if not self._lines:
            raise CapsNMTError(f"--source {path}: no sentence in it")
        self._ids: dict[PieceType, list[list[int]]] = {}

    def sentences(self, count: int, tokens: Tokens) -> list[list[int]]:
        """The first `count` lines that are not empty, in a system's tokens."""
        if len(self._lines) < count:
            _LOG.warning("%s has %d sentences, %d were asked for", self._path, len(self._lines), count)
        most = MOST_CHARACTERS if tokens.pieces == "char" else MOST_TOKENS
        return [[*_folded(ids, tokens.vocabulary)[: most - 1], EOS] for ids in self._in(tokens.pieces)[:count]]

    def per_subword(self, pieces: PieceType) -> float:
        """How many such pieces stand for one subword, in the mean over all sentences."""
        if pieces not in NO_SUBWORDS:
            return 1.0
        own, subwords = (sum(map(len, self._in(kind))) for kind in (pieces, SUBWORDS.type))
        return round(own / subwords, 2)

    def _in(self, pieces: PieceType) -> list[list[int]]:
        kind = pieces if pieces in NO_SUBWORDS else SUBWORDS.type
        if kind not in self._ids:
            model = self._folder / f"bench.{kind}.model"
            with _silent(logging.getLogger("capsnmt.text.subwords")):  # a smaller vocabulary is expected here
                train_subwords(self._lines, SUBWORDS.model_copy(update={"type": kind}), model)
            self._ids[kind] = Subwords(model).encode_batch(self._lines)
        return self._ids[kind]


@dataclass(frozen=True)
class Tokens:
    """A system's tokens. Lengths are told in subwords; a system may have more or fewer pieces for the same sentence."""

    vocabulary: int  # of the source
    pieces: PieceType = "bpe"
    per_subword: float = 1.0

    def count(self, subwords: int) -> int:
        """How many it has for so many subwords."""
        return max(1, round(subwords * self.per_subword))

    def made(self, subwords: int) -> list[int]:
        """A made-up sentence of so many subwords."""
        return made_sentence(self.count(subwords), self.vocabulary)


def tokens_of(systems: Mapping[str, BenchSystem], vocabulary: int, text: RealText | None) -> dict[str, Tokens]:
    """By system; without a text, a character or a word counts as much as a subword."""
    found = {}
    for name, system in systems.items():
        per_subword = 1.0 if text is None else text.per_subword(system.pieces)
        found[name] = Tokens(vocabulary_sizes(system, vocabulary)[0], system.pieces, per_subword)
    return found


def token_notes(systems: Mapping[str, BenchSystem], tokens: Mapping[str, Tokens], text: RealText | None) -> list[str]:
    """What a length means for systems that do not count subwords."""
    notes = []
    for name, own in tokens.items():
        if (counted := NO_SUBWORDS.get(own.pieces)) is None:
            continue
        told = "as many as the others' subwords; --source FILE gives it as many as the same sentences have"
        if text is not None:
            told = f"{own.per_subword:g} for each subword of the others"
        notes.append(f"{systems[name].label} has {counted}, {told}")
    return notes


@contextmanager
def _silent(logger: logging.Logger) -> Iterator[None]:
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _folded(ids: list[int], vocabulary: int) -> list[int]:
    """Into a vocabulary that may be smaller than that of the pieces."""
    return [FIRST_ID + (id_ - FIRST_ID) % (vocabulary - FIRST_ID) if id_ >= FIRST_ID else id_ for id_ in ids]
