"""What makes a training pair an outlier: one definition for what `prepare` leaves out and what `doctor` reports.

Every check looks at normalised text, as the subwords will see it, and has the name under which it is counted.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from capsnmt.config import FilterConfig, LanguagesConfig
from capsnmt.errors import CapsNMTError

Pair = tuple[str, str]
BoolArray = npt.NDArray[np.bool_]
Hashes = npt.NDArray[np.uint64]

EMPTY = "empty"

# Reported by the doctor where the config sets no limit of its own; nothing is left out for these.
LIMITS = FilterConfig(max_words=250, max_characters=2500, max_ratio=4.0)

# The other side of "Oui." may well have four words; a ratio says something only where a side is longer than this.
RATIO_FROM_WORDS = 5

# Measured on Tatoeba en-de with py3langid 0.4 and all of its languages. Of 4,000 pairs with their sides exchanged,
# 99.9 % of the lines with 20 letters or more were found. Of 55,712 pairs as they are, 7 were hit; of the first 5 of
# these one is Spanish, and four are right but short, with foreign names or "October".
_LETTERS_TO_JUDGE = 20
_TIMES_LIKELIER = 5.0
_CHARACTERS_TO_JUDGE = 300  # the detector's time grows with the text, its certainty hardly

# Scripts without spaces between words (Thai, Lao, Burmese, Khmer, kana, Han): two characters count as a word.
_SPACELESS = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)

# Told apart by a few words only, or by the name alone: a line of one is no fault in a corpus of the other.
_CLOSE_LANGUAGES = (
    {"no", "nn"},
    {"hr", "bs", "sr"},
    {"id", "ms"},
    {"zh", "yue", "wuu"},
    {"ar", "ary", "arz"},
    {"cs", "sk"},
    {"gl", "pt"},
)
_OTHER_CODES = {"nb": "no", "iw": "he", "in": "id", "fil": "tl"}
_NO_LANGUAGE = "zxx"  # the detector's name for numbers, code and the like


def is_empty(pair: Pair) -> bool:
    """Whether a side is blank."""
    return not pair[0].strip() or not pair[1].strip()


def count_words(text: str) -> int:
    """Words between white space; in scripts that write none, every second character begins one."""
    if text.isascii():
        return len(text.split())
    rest, characters = _SPACELESS.subn(" ", text)
    return len(rest.split()) + (characters + 1) // 2


def word_ratio(pair: Pair) -> float:
    """Words of the longer side for each of the shorter; 1 where both are too short to tell."""
    shorter, longer = sorted(count_words(side) for side in pair)
    return longer / max(1, shorter) if longer > RATIO_FROM_WORDS else 1.0


def overlap_key(text: str) -> str:
    """A sentence without case and punctuation; blank if it has nothing else."""
    return " ".join(text.casefold().translate(_punctuation()).split())


@cache
def _punctuation() -> dict[int, str]:
    # Not \W, which takes the vowel signs of Indic scripts as well. Unicode has no punctuation beyond this plane.
    return {code: " " for code in range(0x20000) if unicodedata.category(chr(code)).startswith("P")}


def hashes_of(texts: Iterable[str]) -> Hashes:
    """8 bytes for each text, the same in every process (Python's own hash is not)."""
    digests = b"".join(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest() for text in texts)
    return np.frombuffer(digests, np.uint64)


def pair_hashes(pairs: Iterable[Pair]) -> Hashes:
    """8 bytes for each pair."""
    return hashes_of("\n".join(pair) for pair in pairs)  # no line has a line feed inside


class HashSet:
    """A growing set of 64-bit hashes in sorted arrays: 8 MB per million, three times that while two of them merge.

    A Python set of the same integers takes ten times as much. Two different texts among n share a hash with a
    probability of n² / 2^65: once in 3,000 corpora of 100 million.
    """

    def __init__(self) -> None:
        self._runs: list[Hashes] = []  # each at least twice as long as the next, so there are few

    def __len__(self) -> int:
        return sum(len(run) for run in self._runs)

    def contains(self, hashes: Hashes) -> BoolArray:
        """For each hash whether it is there."""
        found = np.zeros(len(hashes), np.bool_)
        for run in self._runs:
            places = np.minimum(np.searchsorted(run, hashes), len(run) - 1)
            found |= run[places] == hashes
        return found

    def add(self, hashes: Hashes) -> BoolArray:
        """Adds them in their order; returns for each whether it was there before."""
        seen = self.contains(hashes)
        unique, first_places = np.unique(hashes, return_index=True)
        repeated = np.ones(len(hashes), np.bool_)
        repeated[first_places] = False
        new = unique[~seen[first_places]]
        if len(new):
            self._runs.append(new)
        while len(self._runs) > 1 and len(self._runs[-2]) < 2 * len(self._runs[-1]):
            merged = np.concatenate([self._runs.pop(-2), self._runs.pop()])
            merged.sort(kind="stable")  # finds the two sorted halves and only merges them
            self._runs.append(merged)
        result: BoolArray = seen | repeated
        return result


class Check(Protocol):
    """Says of each pair whether it is an outlier. `reason` is the name in store.json and in reports."""

    reason: ClassVar[str]

    def hits(self, pairs: Sequence[Pair]) -> BoolArray:
        """One answer per pair, in order. Pairs come in the order of the corpus, each once."""
        ...


class OverLong:
    """A side with too many words or characters."""

    reason: ClassVar[str] = "over_long"

    def __init__(self, *, max_words: int | None, max_characters: int | None) -> None:
        self._max_words = max_words
        self._max_characters = max_characters

    def hits(self, pairs: Sequence[Pair]) -> BoolArray:
        """Whether either side is too long."""
        return np.array([self._is_long(source) or self._is_long(target) for source, target in pairs], np.bool_)

    def _is_long(self, text: str) -> bool:
        if self._max_characters is not None and len(text) > self._max_characters:
            return True
        return self._max_words is not None and len(text) > self._max_words and count_words(text) > self._max_words


class LengthRatio:
    """Sides whose numbers of words differ too much to be translations of each other."""

    reason: ClassVar[str] = "length_ratio"

    def __init__(self, *, max_ratio: float) -> None:
        self._max_ratio = max_ratio

    def hits(self, pairs: Sequence[Pair]) -> BoolArray:
        """Whether the ratio is above the limit."""
        return np.array([word_ratio(pair) > self._max_ratio for pair in pairs], np.bool_)


class WrongLanguage:
    """A side that py3langid (whose model is in its package) takes for another language, by a clear margin.

    Only sides with at least 20 letters are judged, by their first 300 characters.
    """

    reason: ClassVar[str] = "wrong_language"

    def __init__(self, *, languages: LanguagesConfig) -> None:
        self._identifier = _language_identifier()
        known = set(self._identifier.labels)
        self._expected = [_expected_labels(code, known) for code in (languages.source, languages.target)]

    def hits(self, pairs: Sequence[Pair]) -> BoolArray:
        """Whether either side is in another language."""
        source, target = self._expected
        return np.array([self._is_wrong(a, source) or self._is_wrong(b, target) for a, b in pairs], np.bool_)

    def _is_wrong(self, text: str, expected: set[str]) -> bool:
        text = text[:_CHARACTERS_TO_JUDGE]
        if len(text) < _LETTERS_TO_JUDGE or sum(map(str.isalpha, text)) < _LETTERS_TO_JUDGE:
            return False
        language, probability = self._identifier.classify(text)
        if language in expected or language == _NO_LANGUAGE:
            return False
        ranked = dict(self._identifier.rank(text))
        return bool(probability > _TIMES_LIKELIER * max(ranked[label] for label in expected))


@cache
def _language_identifier() -> Any:
    if find_spec("py3langid") is None:
        raise CapsNMTError("telling languages apart needs py3langid: pip install 'capsnmt[train]'")
    from py3langid import langid  # type: ignore[import-untyped]

    return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)


def _expected_labels(code: str, known: set[str]) -> set[str]:
    """The detector's labels that are right for a language code such as de, pt_BR or zh-Hans."""
    label = re.split(r"[-_]", code.lower())[0]
    label = _OTHER_CODES.get(label, label)
    if label not in known:
        raise CapsNMTError(
            f"language {code!r}: py3langid does not know it, so it cannot tell wrong languages; write the two-letter "
            "code in `languages`, or set data.filters.wrong_language to false"
        )
    return {label}.union(*(group & known for group in _CLOSE_LANGUAGES if label in group))


class Overlap:
    """A training pair whose source is a sentence of a held-out set, apart from case and punctuation."""

    reason: ClassVar[str] = "overlap"

    def __init__(self, *, held_out: HashSet) -> None:
        self._held_out = held_out

    def hits(self, pairs: Sequence[Pair]) -> BoolArray:
        """Whether the source is held out."""
        keys = [overlap_key(source) for source, _ in pairs]
        found = self._held_out.contains(hashes_of(keys))
        found &= np.array([bool(key) for key in keys], np.bool_)  # "?!" and "..." are not the same sentence
        return found


class Duplicate:
    """A pair that came before, the same on both sides."""

    reason: ClassVar[str] = "duplicate"

    def __init__(self) -> None:
        self._seen = HashSet()

    def hits(self, pairs: Sequence[Pair]) -> BoolArray:
        """Whether the pair came before; the first of its kind did not."""
        return self._seen.add(pair_hashes(pairs))


def active_reasons(filters: FilterConfig) -> tuple[str, ...]:
    """Why a config leaves out pairs, in the order in which a pair's reason is looked for."""
    is_active = {
        OverLong.reason: filters.max_words is not None or filters.max_characters is not None,
        LengthRatio.reason: filters.max_ratio is not None,
        Overlap.reason: filters.drop_overlap,
        WrongLanguage.reason: filters.wrong_language,
        Duplicate.reason: filters.deduplicate,
    }
    return tuple(reason for reason, active in is_active.items() if active)


def active_checks(filters: FilterConfig, *, languages: LanguagesConfig, held_out: HashSet) -> list[Check]:
    """The checks of a config that look at each pair by itself: all but that for duplicates, in the same order."""
    checks: list[Check] = []
    if filters.max_words is not None or filters.max_characters is not None:
        checks.append(OverLong(max_words=filters.max_words, max_characters=filters.max_characters))
    if filters.max_ratio is not None:
        checks.append(LengthRatio(max_ratio=filters.max_ratio))
    if filters.drop_overlap:
        checks.append(Overlap(held_out=held_out))
    if filters.wrong_language:
        checks.append(WrongLanguage(languages=languages))  # last, because it costs more than all the others
    return checks


def first_reasons(pairs: Sequence[Pair], checks: Sequence[Check]) -> list[str | None]:
    """For each pair the first reason to leave it out, or None. What one check has hit, the next need not look at."""
    reasons = [EMPTY if is_empty(pair) else None for pair in pairs]
    for check in checks:
        rows = [row for row, reason in enumerate(reasons) if reason is None]
        for place in np.flatnonzero(check.hits([pairs[row] for row in rows])):
            reasons[rows[place]] = check.reason
    return reasons


@dataclass(frozen=True)
class NamedCheck:
    """A check as a report shows it."""

    what: str
    check: Check
    is_filter: bool  # the config leaves these pairs out
    is_slow: bool = False


def all_checks(
    filters: FilterConfig,
    *,
    languages: LanguagesConfig | None,
    notes: list[str],
    held_out: dict[str, HashSet] | None = None,
) -> list[NamedCheck]:
    """Every check, with the config's limit if it has one. What cannot be checked is told in `notes`."""
    limits_length = filters.max_words is not None or filters.max_characters is not None
    limits = filters if limits_length else LIMITS
    over_long = OverLong(max_words=limits.max_words, max_characters=limits.max_characters)
    sizes = {"words": limits.max_words, "characters": limits.max_characters}
    most = " or ".join(f"{size} {unit}" for unit, size in sizes.items() if size is not None)
    max_ratio = filters.max_ratio if filters.max_ratio is not None else LIMITS.max_ratio
    assert max_ratio is not None
    ratio = LengthRatio(max_ratio=max_ratio)
    checks = [
        NamedCheck(f"over-long (> {most})", over_long, limits_length),
        NamedCheck(f"length ratio (> {max_ratio:g})", ratio, filters.max_ratio is not None),
        NamedCheck("duplicate pair", Duplicate(), filters.deduplicate),
    ]
    for name, keys in (held_out or {}).items():
        checks.append(NamedCheck(f"source is in {name}", Overlap(held_out=keys), filters.drop_overlap))
    try:
        if languages is None:
            raise CapsNMTError("the languages are not checked: give them, as in --languages en-de")
        wrong = WrongLanguage(languages=languages)
        checks.append(NamedCheck("probably wrong language", wrong, filters.wrong_language, is_slow=True))
    except CapsNMTError as error:
        if filters.wrong_language:
            raise  # as prepare will
        if str(error) not in notes:
            notes.append(str(error))
    return checks
