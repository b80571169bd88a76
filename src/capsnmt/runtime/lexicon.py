"""Vocabulary selection: which target words may translate a sentence, from a lexicon learnt with the corpus.

The output layer is most of a decoding step, and most of its words cannot occur in a given translation. A sentence's
words are the likeliest translations of its own tokens and the most frequent words of all, so they depend on nothing
but the sentence.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from capsnmt.decoding.engine import Ints
from capsnmt.errors import CapsNMTError
from capsnmt.text.subwords import EOS, UNK

LEXICON_FILE = "lexicon.npz"
NUM_ALWAYS = 1000  # most frequent words, in every selection
NUM_TRANSLATIONS = 60  # of each source token
_NONE = -1
_ITERATIONS = 4
_CHUNK_CELLS = 2_000_000  # pairs of tokens that are looked at together
_MAX_CELLS = 60_000_000  # and in all: more training text changes no word's likeliest translations

Pairs = Sequence[tuple[Sequence[int], Sequence[int]]]


class Lexicon:
    """`always` (n,) and, of each source id, its `translations` (source_size, k), padded with -1."""

    def __init__(self, always: npt.NDArray[np.int32], translations: npt.NDArray[np.int32]) -> None:
        self.always = always
        self.translations = translations

    def select(self, source: Sequence[int]) -> Ints:
        """The words that a translation of these ids may hold, ascending; always with </s>."""
        found = np.concatenate([self.always, self.translations[np.unique(source)].ravel()])
        words: Ints = np.unique(found[found != _NONE]).astype(np.int64)
        return words

    def save(self, path: Path) -> None:
        """As a compressed NumPy archive of two plain arrays."""
        with path.open("wb") as file:
            np.savez_compressed(file, always=self.always, translations=self.translations)

    @classmethod
    def parse(cls, content: bytes, *, source_size: int, target_size: int) -> Lexicon:
        """Reads what `save` wrote; arrays that do not fit the vocabulary are an error."""
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                always, translations = arrays["always"], arrays["translations"]
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise CapsNMTError(f"{LEXICON_FILE} cannot be read ({error}); export the model again") from None
        fits = always.ndim == 1 and translations.ndim == 2 and len(translations) == source_size and EOS in always
        for array in (always, translations):
            fits = (
                fits and array.dtype == np.int32 and (array.size == 0 or -1 <= array.min() <= array.max() < target_size)
            )
        if not fits:
            raise CapsNMTError(f"{LEXICON_FILE} does not fit the vocabulary; export the model again")
        return cls(always, translations)


def learn_lexicon(
    pairs: Pairs,
    *,
    source_size: int,
    target_size: int,
    num_always: int = NUM_ALWAYS,
    num_translations: int = NUM_TRANSLATIONS,
) -> Lexicon:
    """IBM model 1: which target tokens a source token explains, found by expectation and maximisation."""
    if not pairs:
        raise CapsNMTError(
            "a lexicon needs sentence pairs to be learnt from: the training corpus is not readable or empty"
        )
    pairs = pairs[: _num_affordable(pairs)]
    keys = np.unique(np.concatenate([np.unique(cells) for cells, _ in _chunks(pairs, target_size)]))
    chunks = [
        (np.searchsorted(keys, cells).astype(np.int32), groups.astype(np.int32))
        for cells, groups in _chunks(pairs, target_size)
    ]
    probability = np.ones(len(keys))  # t(target | source), of each pair of tokens that occurs
    for _ in range(_ITERATIONS):
        counts = np.zeros(len(keys))
        for index, groups in chunks:
            share = probability[index]
            share /= np.bincount(groups, weights=share)[groups]  # a target token is explained by its sentence once
            counts += np.bincount(index, weights=share, minlength=len(keys))
        sources = keys // target_size
        probability = counts / np.bincount(sources, weights=counts, minlength=source_size)[sources]
    frequency = np.bincount(np.concatenate([np.asarray(target) for _, target in pairs]), minlength=target_size)
    often = np.argsort(-frequency, kind="stable")[:num_always]
    always = np.unique(np.concatenate([often[frequency[often] > 0], [EOS, UNK]])).astype(np.int32)
    return Lexicon(always, _best(keys, counts, source_size, target_size, num_translations))


def _num_affordable(pairs: Pairs) -> int:
    cells = np.cumsum([len(source) * len(target) for source, target in pairs])
    return max(1, int(np.searchsorted(cells, _MAX_CELLS)))


def _best(
    keys: Ints, counts: npt.NDArray[np.float64], source_size: int, target_size: int, num: int
) -> npt.NDArray[np.int32]:
    """The `num` targets of each source with the highest expected counts, (source_size, num)."""
    sources, targets = keys // target_size, keys % target_size
    order = np.lexsort((-counts, sources))
    sources, targets = sources[order], targets[order]
    rank = np.arange(len(sources)) - np.searchsorted(sources, sources)
    table = np.full((source_size, num), _NONE, dtype=np.int32)
    kept = rank < num
    table[sources[kept], rank[kept]] = targets[kept]
    return table


def _chunks(pairs: Pairs, target_size: int) -> Iterable[tuple[Ints, Ints]]:
    """Pairs of tokens as source * target_size + target, and the number of the target token in its chunk."""
    cells: list[Ints] = []
    groups: list[Ints] = []
    size = group = 0
    for source, target in pairs:
        s, t = np.unique(source), np.asarray(target, dtype=np.int64)
        cells.append((s[None, :] * target_size + t[:, None]).ravel())
        groups.append(np.repeat(np.arange(group, group + len(t)), len(s)))
        size, group = size + len(cells[-1]), group + len(t)
        if size >= _CHUNK_CELLS:
            yield np.concatenate(cells), np.concatenate(groups)
            cells, groups, size, group = [], [], 0, 0
    if cells:
        yield np.concatenate(cells), np.concatenate(groups)
