"""Protected spans: numbers, URLs, addresses, placeholders, tags and a user's terms come back as they went in.

Before translating, each span is masked by a reserved symbol (`⦅0⦆`, `⦅1⦆`, …), which a model has met in training and
can place; afterwards it is restored. `restore` says if the model dropped or doubled one, so nothing is lost unseen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from capsnmt.text.subwords import protected_symbol

# In the order of their precedence: what stands first wins where two could begin. The time that each needs must grow
# with the text and not with its square, also where nothing matches: hence the limit of {{ }}, and an e-mail address
# that is looked for at the beginning of a word only.
PATTERNS: dict[str, str] = {
    "placeholder": r"\{\{.{0,200}?\}\}|\$\{[^{}]*\}|\{[A-Za-z_0-9.]*\}"
    r"|%\([^()]*\)[sdifr]|%(?:\d+\$)?[-+]?\d*(?:\.\d+)?[sdifx](?!\w)",
    "tag": r"</?[A-Za-z][^<>]*>|&(?:#\d+|#x[0-9A-Fa-f]+|[A-Za-z]\w*);",
    "url": r"(?:https?|ftp)://[^\s<>\"]*[^\s<>\".,;:!?'()\[\]{}]|\bwww\.[^\s<>\"]*[^\s<>\".,;:!?'()\[\]{}]",
    "email": r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+",
    "number": r"\d+(?:[.,:/-]\d+)*",
}
_SYMBOL = re.compile("⦅([0-9]{1,9})⦆")  # a line can hold many thousand spans


class Span(NamedTuple):
    """What a symbol stands for."""

    source: str  # as it stood in the source
    target: str  # what takes its place: the same, or a glossary's translation


@dataclass(frozen=True)
class Masked:
    """A text with its spans taken out: symbol i stands for spans[i]."""

    text: str
    spans: tuple[Span, ...]


class Restored(NamedTuple):
    """A text with its spans back in."""

    text: str
    intact: bool  # every symbol stood exactly once


def mask(text: str, kinds: Sequence[str], terms: Mapping[str, str] | None = None) -> Masked:
    """Takes spans of these kinds and the user's terms (source → target) out of a text.

    Terms win over kinds, longer terms over shorter ones. What looks like a symbol in the text is a span itself.
    """
    parts: list[str] = []
    spans: list[Span] = []
    end = 0
    for match in _finder(kinds, tuple(terms or ())).finditer(text):
        found = match.group()
        if not found:
            continue
        parts += [text[end : match.start()], protected_symbol(len(spans))]
        spans.append(Span(found, (terms or {}).get(found, found)))
        end = match.end()
    return Masked("".join([*parts, text[end:]]), tuple(spans))


def mask_pair(source: str, target: str, kinds: Sequence[str], limit: int) -> tuple[str, str]:
    """A training pair: spans that stand on both sides are masked by the same symbol, others stay as they are."""
    left = _found(target, kinds)
    pairs: list[tuple[re.Match[str], re.Match[str]]] = []
    for match in _found(source, kinds):
        partner = next((other for other in left if other.group() == match.group()), None)
        if partner is not None and len(pairs) < limit:
            left.remove(partner)
            pairs.append((match, partner))
    return _substituted(source, [one for one, _ in pairs]), _substituted(target, [other for _, other in pairs])


def restore(text: str, spans: Sequence[Span], *, apart: bool = False) -> Restored:
    """Puts the spans back. Symbols that stand for nothing, and all but the first of the same, are removed.

    `apart` sets a span off by spaces from what clings to it: "⦅0⦆⦅1⦆" must not make 12 of 1 and 2.
    """
    found: list[int] = []
    used: set[int] = set()

    def put_back(match: re.Match[str]) -> str:
        index = int(match.group(1))
        found.append(index)
        if index >= len(spans) or index in used:
            return ""
        used.add(index)
        start, end = match.span()
        left = " " if apart and text[max(0, start - 1) : start].strip() else ""
        right = " " if apart and text[end : end + 1].strip().strip("⦅") else ""  # a symbol brings its own
        return left + spans[index].target + right

    restored = _SYMBOL.sub(put_back, text)
    return Restored(restored, sorted(found) == list(range(len(spans))))


def without_symbols(text: str) -> str:
    """What stands around the symbols: they become spaces, so that nothing grows together."""
    return _SYMBOL.sub(" ", text)


def pieces_around(masked: Masked) -> Iterator[str | Span]:
    """The texts between the spans, and the spans: for translating around what a model cannot place."""
    end = 0
    for match in _SYMBOL.finditer(masked.text):
        yield masked.text[end : match.start()]
        yield masked.spans[int(match.group(1))]
        end = match.end()
    yield masked.text[end:]


def _found(text: str, kinds: Sequence[str]) -> list[re.Match[str]]:
    return [match for match in _finder(kinds, ()).finditer(text) if match.group()]


def _substituted(text: str, matches: Sequence[re.Match[str]]) -> str:
    """Match number i becomes symbol i."""
    for index, match in sorted(enumerate(matches), key=lambda item: -item[1].start()):
        text = text[: match.start()] + protected_symbol(index) + text[match.end() :]
    return text


def _finder(kinds: Sequence[str], terms: tuple[str, ...]) -> re.Pattern[str]:
    # A term is a whole word where it begins or ends with a letter: "art" must not be found in "party".
    longest_first = sorted((term for term in terms if term), key=len, reverse=True)
    options = [rf"(?<!\w){re.escape(term)}(?!\w)" for term in longest_first]
    options += [_SYMBOL.pattern, *(PATTERNS[kind] for kind in PATTERNS if kind in kinds)]
    return re.compile("|".join(f"(?:{option})" for option in options))
