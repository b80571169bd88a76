"""A line that is too long to be translated at once: it takes turns with other clients' lines, and can be given up.

What comes out is what the translator says of the whole line, for the line is planned and finished as a whole; only the
search, which is what takes long, goes piece by piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from capsnmt.decoding.line_batch import LineBatch
from capsnmt.decoding.segments import Segment, innermost
from capsnmt.decoding.translation import Translation

LONG_CHARACTERS = 500
_PIECE_TOKENS = 128  # of about 500 characters; a chunk that is longer is a piece of its own


class LongLine:
    """One long line on its way. Every method belongs into the thread that translates."""

    def __init__(self, batch: LineBatch, line: str) -> None:
        self._batch = batch
        self._line = line
        self._parts = batch.plan(0, line, "")
        self._cuts: list[tuple[Segment, list[Segment]]] = []  # each that the model sees, and a segment per chunk of it
        self._unread = [part for part in self._parts if isinstance(part, Segment)]
        self._unsearched = 0

    def pieces(self) -> list[list[Segment]]:
        """What to search next, in pieces; none when the line is done."""
        self._cuts = [
            (segment, [replace(segment, chunks=[chunk], notes=set()) for chunk in segment.chunks])
            for segment in innermost(self._unread)
        ]
        pieces = list(_grouped([chunk for _, chunks in self._cuts for chunk in chunks]))
        self._unsearched = len(pieces)
        return pieces

    def after_a_piece(self) -> list[list[Segment]]:
        """Another piece was searched. What is to be searched because of it: most often nothing."""
        self._unsearched -= 1
        if self._unsearched:
            return []
        for segment, chunks in self._cuts:
            segment.outputs = [chunk.outputs[0] for chunk in chunks]
            segment.notes.update(*(chunk.notes for chunk in chunks))
        self._unread = self._batch.read(self._unread)
        return self.pieces()

    @property
    def is_searched(self) -> bool:
        """Whether it can be finished."""
        return self._unsearched == 0

    def finish(self) -> Translation:
        """The whole line's translation."""
        return self._batch.finish(self._line, self._parts)


def tokens_of(piece: Sequence[Segment]) -> int:
    """How much work a piece is."""
    return sum(len(ids) for segment in piece for ids in segment.chunks)


def _grouped(chunks: Sequence[Segment]) -> Iterator[list[Segment]]:
    """Neighbours together, up to a piece's size."""
    piece: list[Segment] = []
    for chunk in chunks:
        if piece and tokens_of([*piece, chunk]) > _PIECE_TOKENS:
            yield piece
            piece = []
        piece.append(chunk)
    if piece:
        yield piece
