"""From a line to what the model sees and back: sentences, letter case, final punctuation, protected spans, cuts.

Models are trained on single sentences with ordinary case and a full stop. What deviates from that is brought into this
shape before the model and back into its own afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from capsnmt.decoding.search import Hypothesis
from capsnmt.text.spans import Masked, pieces_around
from capsnmt.text.subwords import EOS

_ENDS_IN_WORD = re.compile(r"[\w⦆%)\]]$")

# Byte fallback can spell anything: half a character, which decodes to U+FFFD, or a command to somebody's terminal.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ufffd]")


@dataclass(frozen=True)
class Shape:
    """How a sentence differs from what a model is used to."""

    shouted: bool  # ALL CAPS
    unfinished: bool  # no final punctuation


@dataclass
class Segment:
    """A sentence on its way through the model."""

    line: int  # index of its line in the batch
    number: int  # of the segment in its line
    shape: Shape
    masked: Masked
    chunks: list[list[int]]  # source ids; more than one when the sentence was too long
    spare: int = 0  # tokens that the output of a chunk may be longer than the ratio to its source allows
    prefix: list[int] = field(default_factory=list)  # forced beginning of the first chunk's output
    outputs: list[list[Hypothesis]] = field(default_factory=list)  # per chunk, best first
    around: list[str | Segment] | None = None  # instead of chunks: the texts between its spans, and their symbols
    readings: list[tuple[str, float]] = field(default_factory=list)  # the translation and its score, best first
    notes: set[str] = field(default_factory=set)


def innermost(segments: Iterable[Segment]) -> list[Segment]:
    """Those that the model sees: a segment that is taken around is what it consists of."""
    found: list[Segment] = []
    for segment in segments:
        inside = [part for part in segment.around or () if isinstance(part, Segment)]
        found += [segment] if segment.around is None else inside
    return found


def share_spare(segments: Sequence[Segment], spare: int) -> None:
    """Gives each chunk its share, so that many short outputs together are no longer than one long output may be."""
    chunks = sum(len(segment.chunks) for segment in segments)
    for segment in segments:
        segment.spare = spare // max(1, chunks)


def printable(text: str) -> str:
    """A model's output without what cannot be shown. Line breaks are left, for they are more than nothing."""
    return _UNPRINTABLE.sub("", text)


def shape_of(masked: Masked) -> Shape:
    """Looks at the text outside of its protected spans. A single word in capitals may be an abbreviation."""
    outside = "".join(piece for piece in pieces_around(masked) if isinstance(piece, str))
    letters = [character for character in outside if character.isalpha()]
    shouted = len(letters) > 3 and " " in outside.strip() and all(character.isupper() for character in letters)
    return Shape(shouted, bool(_ENDS_IN_WORD.search(masked.text)))


def shaped(text: str, shape: Shape) -> str:
    """What the model sees: an ordinary sentence."""
    if shape.shouted:
        lowered = text.lower()
        text = lowered[:1].upper() + lowered[1:]
    return f"{text}." if shape.unfinished else text


def unshaped(text: str, shape: Shape) -> str:
    """The translation in the shape of its source."""
    if shape.unfinished and text.endswith(".") and not text.endswith(".."):
        text = text[:-1].rstrip()
    return text.upper() if shape.shouted else text


def cut(ids: Sequence[int], limit: int, starts_word: Callable[[int], bool]) -> list[list[int]]:
    """Source ids (ending in EOS) in pieces of at most `limit`, each ending in EOS, between words where there is a word.

    A cut looks back over the second half of a piece for the start of a word.
    """
    body, pieces, start = ids[:-1], [], 0
    room = max(1, limit - 1)
    while len(body) - start > room:
        places = range(start + room, start + room // 2, -1)
        at = next((place for place in places if starts_word(body[place])), start + room)
        pieces.append([*body[start:at], EOS])
        start = at
    return [*pieces, [*body[start:], EOS]]
