"""A batch of lines through the model: what the promise "one line in, one line out" is made of."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from capsnmt.config import DecodingConfig
from capsnmt.decoding.engine import Engine
from capsnmt.decoding.loops import find_loop, without_loops
from capsnmt.decoding.sampling import sample
from capsnmt.decoding.search import Hypothesis, beam_search
from capsnmt.decoding.segments import Segment, Shape, cut, shape_of, shaped, unshaped
from capsnmt.decoding.translation import Status, TextCodec, TranslateOptions, Translation
from capsnmt.text.sentences import split_sentences
from capsnmt.text.spans import Masked, Span, pieces_around, restore
from capsnmt.text.subwords import protected_symbol

log = logging.getLogger(__name__)

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
        self.engine = engine
        self.text = text
        self.language = language
        self.batch_tokens = batch_tokens
        self.options = options
        self.settings = settings
        self.first_line = first_line

    def plan(self, number: int, line: str, prefix: str) -> list[str | Segment]:
        """A line as segments for the model and, between them, what stays as it is."""
        parts: list[str | Segment] = []
        masked = self.text.mask(line.rstrip("\r\n"), self.options.terms)
        # The splitter sees symbols instead of spans, so a full stop in a number or a URL ends no sentence.
        sentences = [masked.text]
        if self.options.split:
            sentences = split_sentences(masked.text, self.language)
        for sentence in sentences:
            own = _renumbered(sentence, masked)
            # More spans than the model has symbols for: it sees the pieces between them, one by one.
            pieces = pieces_around(own) if len(own.spans) > self.text.num_symbols else [own]
            for piece in pieces:
                if isinstance(piece, Span):
                    parts.append(piece.target)
                    continue
                whole = piece if isinstance(piece, Masked) else Masked(piece, ())
                body = whole.text.strip()
                start = whole.text.find(body) if body else len(whole.text)
                segment = self._segment(number, len(parts), Masked(body, whole.spans), prefix)
                parts += [whole.text[:start], restore(body, whole.spans).text if segment is None else segment]
                parts.append(whole.text[start + len(body) :])
                prefix = "" if segment is not None else prefix
        return parts

    def _segment(self, line: int, number: int, masked: Masked, prefix: str) -> Segment | None:
        """None for what the model need not see: nothing, or nothing but spans and punctuation."""
        outside = "".join(piece for piece in pieces_around(masked) if isinstance(piece, str))
        if not any(character.isalnum() for character in outside):
            return None
        shape = shape_of(masked) if self.settings.fit_shape else Shape(False, False)
        ids = self.text.source_ids(shaped(masked.text, shape))
        if len(ids) < 2:  # only EOS: cleaning can leave nothing of invisible characters
            return None
        segment = Segment(line, number, shape, masked, cut(ids, self.settings.max_source_tokens, self.text.starts_word))
        segment.prefix = self.text.target_prefix_ids(prefix) if prefix else []
        if len(segment.chunks) > 1:
            segment.notes.add("cut")
        return segment

    def decode(self, segments: Sequence[Segment]) -> None:
        """Fills in the outputs of all segments; chunks of similar length go together."""
        for segment in segments:
            segment.outputs = [[] for _ in segment.chunks]
        jobs = [_Job(segment, index) for segment in segments for index in range(len(segment.chunks))]
        per_job = self.options.num_best if self.options.sampling else self.settings.beam
        for batch in _cut_batches(jobs, self.batch_tokens // per_job):
            for job, found in zip(batch, self._decode_or_retry(batch), strict=True):
                job.segment.outputs[job.index] = found

    def _decode_or_retry(self, batch: Sequence[_Job]) -> list[list[Hypothesis]]:
        """A batch that fails is tried again line by line; a line that fails alone has no output, and is flagged."""
        try:
            return self._search(batch, self.options.num_best)
        except (RuntimeError, MemoryError, ValueError, FloatingPointError) as error:
            if len(batch) > 1:
                log.warning("a batch of %d failed (%s): trying again line by line", len(batch), error)
                return [self._decode_or_retry([job])[0] for job in batch]
            log.warning("line %d failed (%s): it is left as it is", self.first_line + batch[0].segment.line + 1, error)
            batch[0].segment.notes.add("failed")
            return [[]]

    def _search(self, batch: Sequence[_Job], num_best: int) -> list[list[Hypothesis]]:
        sources = [job.ids for job in batch]
        prefixes = [job.prefix for job in batch]
        ratio, extra = self.settings.max_length_ratio, self.settings.max_length_extra
        max_lengths = [int(ratio * len(ids)) + extra for ids in sources]
        sampling = self.options.sampling
        if sampling is None:
            return beam_search(
                self.engine,
                sources,
                beam=self.settings.beam,
                num_best=num_best,
                length_penalty=self.settings.length_penalty,
                length_penalty_type=self.settings.length_penalty_type,
                max_lengths=max_lengths,
                prefixes=prefixes,
            )
        return sample(
            self.engine,
            sources,
            num_samples=num_best,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            max_lengths=max_lengths,
            seed=sampling.seed,
            prefixes=prefixes,
            sentence_ids=[job.stream_number(self.first_line) for job in batch],
        )

    def finish(self, line: str, parts: Sequence[str | Segment]) -> Translation:
        """Joins the parts of a line and says what was noticed."""
        segments = [part for part in parts if isinstance(part, Segment)]
        if not segments:
            text = one_line("".join(part for part in parts if isinstance(part, str)))
            return Translation(line, text, None, (), "empty")
        notes: set[str] = {"invalid_characters"} if "\ufffd" in line else set()
        hypotheses = []
        # Segments may have fewer hypotheses than were asked for; of two segments the first ranks are joined, and so on.
        found = max((len(output) for segment in segments for output in segment.outputs), default=0)
        for rank in range(max(1, found)):
            done = [part if isinstance(part, str) else self._segment_text(part, rank) for part in parts]
            scores = [_score(segment, rank) for segment in segments]
            hypotheses.append((one_line("".join(done)), sum(scores) / len(scores)))
        notes |= set().union(*(segment.notes for segment in segments))
        if len(segments) > 1:
            notes.add("split")
        if "failed" in notes:
            return Translation(line, one_line(line), None, (), "failed", tuple(sorted(notes)))
        best, score = hypotheses[0]
        return Translation(line, best, score, tuple(hypotheses), _status(notes), tuple(sorted(notes)))

    def _segment_text(self, segment: Segment, rank: int) -> str:
        """One hypothesis of a segment as text: loops repaired, spans back in, in the shape of its source."""
        if any(not found for found in segment.outputs):
            return ""
        chosen = [self._without_loop(segment, index, rank) for index in range(len(segment.chunks))]
        if rank == 0 and min(_confidence(found[0]) for found in segment.outputs) < LOW_CONFIDENCE:
            segment.notes.add("low_confidence")
        text = " ".join(self.text.target_text(ids) for ids in chosen)
        restored = restore(text, segment.masked.spans)
        # Without spans of its own a segment has nothing to lose: symbols that the model made up are gone already.
        if restored.intact or not segment.masked.spans:
            return unshaped(restored.text, segment.shape)
        segment.notes.add("spans_placed_around")
        return self._translated_around(segment)

    def _without_loop(self, segment: Segment, index: int, rank: int) -> list[int]:
        """The ids of a hypothesis; a loop that the source does not have is repaired."""
        found = segment.outputs[index]
        ids = found[min(rank, len(found) - 1)].ids
        if find_loop(ids) is None or find_loop(segment.chunks[index]) is not None:
            return ids
        segment.notes.add("loop_repaired")
        if self.options.sampling is None:
            # Another hypothesis of the same beam may be free of loops, and then it is the better sentence.
            others = self._search([_Job(segment, index)], self.settings.beam)[0]
            free = next((other.ids for other in others if find_loop(other.ids) is None), None)
            if free is not None:
                return free
        return without_loops(ids)

    def _translated_around(self, segment: Segment) -> str:
        """Translates the pieces between the spans one by one: spans that the model lost stand where they stood."""
        done = []
        for piece in pieces_around(segment.masked):
            if isinstance(piece, Span):
                done.append(piece.target)
                continue
            inner = self._segment(segment.line, segment.number, Masked(piece.strip(), ()), "")
            if inner is None:
                done.append(piece)
                continue
            inner.shape = Shape(segment.shape.shouted, inner.shape.unfinished)
            self.decode([inner])
            left, right = len(piece) - len(piece.lstrip()), len(piece.rstrip())
            done.append(piece[:left] + self._segment_text(inner, 0) + piece[right:])
            segment.notes |= inner.notes
        return "".join(done)


@dataclass(frozen=True)
class _Job:
    """One chunk of a segment."""

    segment: Segment
    index: int

    @property
    def ids(self) -> list[int]:
        return self.segment.chunks[self.index]

    @property
    def prefix(self) -> list[int]:
        return self.segment.prefix if self.index == 0 else []

    def stream_number(self, first_line: int) -> int:
        """The number of its own stream of random numbers: the line's, and others for what a line was split into."""
        return first_line + self.segment.line + ((self.segment.number * 1000 + self.index) << 40)


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


def _confidence(hypothesis: Hypothesis) -> float:
    return hypothesis.log_prob / (len(hypothesis.ids) + 1)


def _score(segment: Segment, rank: int) -> float:
    scores = [found[min(rank, len(found) - 1)].score for found in segment.outputs if found]
    return sum(scores) / len(scores) if scores else float("-inf")


def _status(notes: set[str]) -> Status:
    if notes & {"loop_repaired", "spans_placed_around"}:
        return "repaired"
    if "cut" in notes:
        return "cut"
    return "low_confidence" if "low_confidence" in notes else "ok"


def _cut_batches(jobs: Sequence[_Job], max_tokens: int) -> Iterator[list[_Job]]:
    """Batches of similar lengths with at most `max_tokens` padded tokens, or one line if that alone is longer.

    The longest come first: if the memory does not suffice, it shows at the start.
    """
    batch: list[_Job] = []
    for job in sorted(jobs, key=lambda job: -len(job.ids)):
        if batch and len(batch[0].ids) * (len(batch) + 1) > max_tokens:
            yield batch
            batch = []
        batch.append(job)
    if batch:
        yield batch
