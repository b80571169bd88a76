"""A batch of lines through the model: what the promise "one line in, one line out" is made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from capsnmt.config import DecodingConfig
from capsnmt.decoding.engine import Engine
from capsnmt.decoding.search import Hypothesis
from capsnmt.decoding.segment_search import SegmentSearch, max_length
from capsnmt.decoding.segments import (
    Segment,
    Shape,
    cut,
    innermost,
    printable,
    shape_of,
    shaped,
    share_spare,
    unshaped,
)
from capsnmt.decoding.translation import Status, TextCodec, TranslateOptions, Translation
from capsnmt.text.sentences import split_sentences
from capsnmt.text.spans import Masked, Span, pieces_around, restore, without_symbols
from capsnmt.text.subwords import protected_symbol

LOW_CONFIDENCE = -2.5  # mean log-probability of a token below which a translation is flagged: the model is guessing


class LineBatch:
    """One batch of lines on its way: plan every line, decode all segments together, finish every line."""

    def __init__(
        self,
        *,
        engine: Engine,
        text: TextCodec,
        language: str,
        batch_tokens: int,
        options: TranslateOptions,
        settings: DecodingConfig,
        first_line: int,
    ) -> None:
        self.text = text
        self.language = language
        self.options = options
        self.settings = settings
        self.search = SegmentSearch(engine, options, settings, batch_tokens, first_line)

    def plan(self, number: int, line: str, prefix: str) -> list[str | Segment]:
        """A line as segments for the model and, between them, what stays as it is."""
        parts: list[str | Segment] = []
        masked = self.text.mask(line.rstrip("\r\n"), self.options.terms)
        forced = self.text.target_prefix_ids(prefix) if prefix else []
        # The splitter sees symbols instead of spans, so a full stop in a number or a URL ends no sentence.
        for sentence in split_sentences(masked.text, self.language) if self.options.split else [masked.text]:
            own = _renumbered(sentence, masked)
            lead, body, trail = _trimmed(own.text)
            segment = self._segment(number, len(parts), Masked(body, own.spans))
            if segment is None:
                parts.append(restore(own.text, own.spans).text)
                continue
            segment.prefix, forced = forced, []
            # More spans than the model has symbols for: it sees what stands between them, piece by piece.
            if len(own.spans) > self.text.num_symbols:
                self._take_around(segment)
            parts += [lead, segment, trail]
        share_spare(innermost(_segments(parts)), self.settings.max_length_extra)
        return parts

    def _segment(self, line: int, number: int, masked: Masked, *, shouted: bool = False) -> Segment | None:
        """None for what the model need not see: nothing, or nothing but spans and punctuation."""
        outside = "".join(piece for piece in pieces_around(masked) if isinstance(piece, str))
        if not any(character.isalnum() for character in outside):
            return None
        shape = shape_of(masked) if self.settings.fit_shape else Shape(False, False)
        shape = replace(shape, shouted=shape.shouted or shouted)
        ids = self.text.source_ids(shaped(masked.text, shape))
        if len(ids) < 2:  # only EOS: cleaning can leave nothing of invisible characters
            return None
        segment = Segment(line, number, shape, masked, cut(ids, self.settings.max_source_tokens, self.text.starts_word))
        if len(segment.chunks) > 1:
            segment.notes.add("cut")
        return segment

    def _take_around(self, segment: Segment) -> None:
        """What stands between the spans becomes segments of its own, so the spans stay where they stood."""
        parts: list[str | Segment] = []
        spans = 0
        prefix = segment.prefix
        for piece in pieces_around(segment.masked):
            if isinstance(piece, Span):
                parts.append(protected_symbol(spans))
                spans += 1
                continue
            lead, body, trail = _trimmed(piece)
            number = (segment.number + 1) * 10_000 + len(parts)
            inner = self._segment(segment.line, number, Masked(body, ()), shouted=segment.shape.shouted)
            if inner is None:
                parts.append(piece)
                continue
            inner.prefix, prefix = prefix, []
            parts += [lead, inner, trail]
        segment.around = parts
        segment.notes.discard("cut")  # of the whole, which the model is not asked for any more

    def decode(self, segments: Sequence[Segment]) -> None:
        """Fills in the readings of all segments. Those whose spans the model has lost are taken around them."""
        self.search(innermost(segments))
        lost = self.read(segments)
        self.search(innermost(lost))
        self.read(lost)

    def read(self, segments: Sequence[Segment]) -> list[Segment]:
        """Fills in the readings of segments that were searched.

        Returns those whose spans the model has lost. They are taken around them now: search their `innermost`, and
        read them once more.
        """
        lost: list[Segment] = []
        for segment in segments:
            segment.readings = self._read(segment)
            if segment.around is None and not segment.readings and "failed" not in segment.notes:
                lost.append(segment)
        for segment in lost:
            spare = segment.spare * len(segment.chunks)
            self._take_around(segment)
            share_spare(innermost([segment]), spare)
            segment.notes.add("spans_placed_around")
        return lost

    def _read(self, segment: Segment) -> list[tuple[str, float]]:
        """A segment's translations and their scores, best first, with its spans in them; none where a span is lost."""
        if segment.around is not None:
            return self._read_around(segment)
        if any(not found for found in segment.outputs):
            return []
        if min(_confidence(found[0]) for found in segment.outputs) < LOW_CONFIDENCE:
            segment.notes.add("low_confidence")
        readings = []
        for rank in range(max(len(found) for found in segment.outputs)):
            chosen = [found[min(rank, len(found) - 1)] for found in segment.outputs]
            text = " ".join(printable(self.text.target_text(hypothesis.ids)) for hypothesis in chosen)
            text = self._shortened(unshaped(text, segment.shape), segment)
            whole = self._whole(text, segment.masked.spans)
            if whole is not None:
                readings.append((whole, sum(hypothesis.score for hypothesis in chosen) / len(chosen)))
        return readings

    def _shortened(self, text: str, segment: Segment) -> str:
        """A text that became longer than the search allows: letters in capitals can be more tokens than small ones."""
        source_tokens = sum(len(ids) for ids in segment.chunks)
        if segment.shape.shouted:  # and so was the source
            source_tokens = max(source_tokens, len(self.text.source_ids(segment.masked.text)))
        ids = self.text.target_prefix_ids(text)
        limit = max(max_length(self.settings, source_tokens, segment.spare * len(segment.chunks)), len(segment.prefix))
        if len(ids) <= limit:
            return text
        segment.notes.add("shortened")
        return printable(self.text.target_text(ids[:limit]))

    def _read_around(self, segment: Segment) -> list[tuple[str, float]]:
        texts: list[str] = []
        scores: list[float] = []
        for part in segment.around or ():
            if isinstance(part, str):
                texts.append(part)
                continue
            readings = self._read(part)
            best = [reading for reading in readings if not self._repeats(reading[0], segment.masked.spans)][:1]
            # What can only be translated with another 7 beside the 7 that is protected stays as it was.
            texts += [text for text, _ in best] or [part.masked.text] * bool(readings)
            scores += [score for _, score in best]
            segment.notes |= part.notes
        whole = self._whole("".join(texts), segment.masked.spans)
        if whole is None or "failed" in segment.notes:
            segment.notes.add("failed")
            return []
        return [(whole, sum(scores) / len(scores) if scores else float("-inf"))]

    def _whole(self, text: str, spans: Sequence[Span]) -> str | None:
        """A translation with its spans back in; None if one is lost, or cannot be told from what stands beside it."""
        for apart in (False, True):
            restored = restore(text, spans, apart=apart)
            # Without spans of its own a segment has nothing to lose: symbols that the model made up are gone already.
            if not spans:
                return restored.text
            if restored.intact and self._readable(restored.text, spans) and not self._repeats(text, spans):
                return restored.text
        return None

    def _reading(self, segment: Segment, rank: int, spans: Sequence[Span]) -> str:
        """A segment's translation of this rank, or the next best one that writes no span of its neighbours once more.

        Where there is none, the segment stays as it was.
        """
        own = Counter(span.target for span in segment.masked.spans)
        asked = [_ranked(segment, rank), *segment.readings]
        for text, _ in asked if spans else asked[:1]:
            found = Counter(span.source for span in self.text.mask(text, {}).spans)
            if all(found[span.target] <= own[span.target] for span in spans if span.source not in self.options.terms):
                return text
        return restore(segment.masked.text, segment.masked.spans).text

    def _repeats(self, text: str, spans: Sequence[Span]) -> bool:
        """Whether the model has written one of the spans itself, so that it would stand there once too often."""
        own = {span.source for span in self.text.mask(without_symbols(text), {}).spans}
        return any(span.target in own for span in spans)

    def _readable(self, text: str, spans: Sequence[Span]) -> bool:
        """Whether every span would be found in a text: 1 and 2 are not in 12, nor is http://a.b in http://a.bund."""
        terms = {span.target: span.target for span in spans if span.source in self.options.terms}
        wanted = Counter(span.target for span in spans if span.target)
        return wanted <= Counter(span.source for span in self.text.mask(text, terms).spans)

    def finish(self, line: str, parts: Sequence[str | Segment]) -> Translation:
        """Joins the parts of a line and says what was noticed."""
        segments = _segments(parts)
        notes: set[str] = {"invalid_characters"} if "\ufffd" in line else set()
        if not segments:
            text = one_line("".join(part for part in parts if isinstance(part, str)))
            return Translation(line, text, None, (), "empty", tuple(sorted(notes)))
        notes |= set().union(*(segment.notes for segment in segments))
        if len(segments) > 1:
            notes.add("split")
        hypotheses = [] if "failed" in notes else self._joined(line, parts)
        if not hypotheses:
            return Translation(line, one_line(line), None, (), "failed", tuple(sorted(notes | {"failed"})))
        best, score = hypotheses[0]
        return Translation(line, best, score, tuple(hypotheses), _status(notes), tuple(sorted(notes)))

    def _joined(self, line: str, parts: Sequence[str | Segment]) -> list[tuple[str, float]]:
        """The hypotheses of a line: of its segments the first readings together, then the second ones, and so on."""
        segments = _segments(parts)
        several = len(parts) > 3  # a sentence alone is itself and the white space around it
        spans = self.text.mask(one_line(line), self.options.terms).spans if several else ()
        hypotheses = []
        for rank in range(max(len(segment.readings) for segment in segments)):
            texts = [part if isinstance(part, str) else self._reading(part, rank, spans) for part in parts]
            scores = [_ranked(segment, rank)[1] for segment in segments]
            # Spans of two sentences can meet where the model wrote nothing between them.
            ways = (one_line(between.join(filter(None, texts))) for between in ("", " "))
            text = next((way for way in ways if not spans or self._readable(way, spans)), None)
            if text is not None:
                hypotheses.append((text, sum(scores) / len(scores)))
        return hypotheses


def one_line(text: str) -> str:
    """`text` with every line break, also of the kinds that only Unicode knows, as a space."""
    return " ".join(text.splitlines())


def _renumbered(sentence: str, masked: Masked) -> Masked:
    """A sentence of a masked line with symbols of its own, from 0."""
    texts: list[str] = []
    spans: list[Span] = []
    for piece in pieces_around(Masked(sentence, masked.spans)):
        if isinstance(piece, Span):
            texts.append(protected_symbol(len(spans)))
            spans.append(piece)
        else:
            texts.append(piece)
    return Masked("".join(texts), tuple(spans))


def _segments(parts: Sequence[str | Segment]) -> list[Segment]:
    return [part for part in parts if isinstance(part, Segment)]


def _trimmed(text: str) -> tuple[str, str, str]:
    """White space, what stands between, white space."""
    body = text.strip()
    start = text.find(body) if body else len(text)
    return text[:start], body, text[start + len(body) :]


def _ranked(segment: Segment, rank: int) -> tuple[str, float]:
    return segment.readings[min(rank, len(segment.readings) - 1)]


def _confidence(hypothesis: Hypothesis) -> float:
    return hypothesis.log_prob / (len(hypothesis.ids) + 1)


def _status(notes: set[str]) -> Status:
    if notes & {"loop_repaired", "shortened", "spans_placed_around"}:
        return "repaired"
    worst_first: tuple[Status, ...] = ("cut", "invalid_characters", "low_confidence")
    return next((status for status in worst_first if status in notes), "ok")
