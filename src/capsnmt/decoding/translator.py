"""Lines in = lines out: from strings through an engine to strings, in the order of the input."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from capsnmt.config import DecodingConfig, LengthPenaltyType
from capsnmt.decoding.engine import Engine
from capsnmt.decoding.sampling import check_sampling, sample
from capsnmt.decoding.search import Hypothesis, beam_search, check_beam
from capsnmt.errors import CapsNMTError


class TextCodec(Protocol):
    """The way from strings to ids and back."""

    def source_ids(self, text: str) -> list[int]:
        """Ids of a source line, ending in EOS."""
        ...

    def target_text(self, ids: Sequence[int]) -> str:
        """The string of output ids, which come without BOS and EOS."""
        ...

    def target_prefix_ids(self, text: str) -> list[int]:
        """Ids that an output beginning with `text` begins with."""
        ...


@dataclass(frozen=True)
class SamplingOptions:
    """Draw the output from the model instead of searching for the best one."""

    temperature: float = 1.0
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    seed: int = 1


@dataclass(frozen=True)
class TranslateOptions:
    """What one request may change; None takes the model's own setting."""

    num_best: int = 1  # hypotheses per line; with sampling, the number of samples
    beam: int | None = None
    length_penalty: float | None = None
    length_penalty_type: LengthPenaltyType | None = None
    max_length_ratio: float | None = None
    sampling: SamplingOptions | None = None


@dataclass(frozen=True)
class Translation:
    """One line's result."""

    source: str
    text: str  # never holds a line break
    score: float | None  # of the first hypothesis; None for an empty line
    hypotheses: tuple[tuple[str, float], ...]  # (text, score), best first
    status: Literal["ok", "empty"]  # empty: nothing to translate, `text` is the line as it came


@dataclass(frozen=True)
class _Job:
    """One line that the model has to see."""

    line: int  # index in the batch
    source: list[int]
    prefix: list[int]


DEFAULTS = TranslateOptions()


class LineTranslator:
    """Translates lines with one engine. A line's result does not depend on the lines around it."""

    def __init__(self, *, engine: Engine, text: TextCodec, decoding: DecodingConfig, batch_tokens: int = 2048) -> None:
        if batch_tokens < 1:
            raise CapsNMTError(f"batch_tokens {batch_tokens} must be 1 or more")
        self.engine = engine
        self.text = text
        self.decoding = decoding
        self.batch_tokens = batch_tokens  # padded source tokens x hypotheses per line: what a batch costs

    def translate(self, text: str, options: TranslateOptions = DEFAULTS, *, prefix: str = "") -> str:
        """The best translation of one line."""
        return self.translate_batch([text], options, prefixes=[prefix])[0].text

    def translate_lines(
        self,
        lines: Iterable[str],
        *,
        options: TranslateOptions = DEFAULTS,
        prefixes: Iterable[str] | None = None,
        chunk_lines: int = 512,
    ) -> Iterator[Translation]:
        """Translations in input order. Takes `chunk_lines` lines at a time and no line before it is needed."""
        if chunk_lines < 1:
            raise CapsNMTError(f"chunk_lines {chunk_lines} must be 1 or more")
        self._resolve(options)  # a wrong option is an error now, not at the first line
        return self._translate_chunks(iter(lines), options, None if prefixes is None else iter(prefixes), chunk_lines)

    def translate_batch(
        self,
        lines: Sequence[str],
        options: TranslateOptions = DEFAULTS,
        *,
        prefixes: Sequence[str] | None = None,
        first_line: int = 0,
    ) -> list[Translation]:
        """One translation per line, in order. `first_line`, the number of the first one, matters to sampling only."""
        settings = self._resolve(options)
        if prefixes is not None and len(prefixes) != len(lines):
            raise CapsNMTError(f"{len(lines)} lines with {len(prefixes)} prefixes; give one prefix per line")
        jobs = []
        for line, text in enumerate(lines):
            source = [] if not text.strip() else self.text.source_ids(text.rstrip("\r\n"))
            if len(source) > 1:  # more than EOS: cleaning can leave nothing of a line of invisible characters
                prefix = self.text.target_prefix_ids(prefixes[line]) if prefixes and prefixes[line] else []
                jobs.append(_Job(line, source, prefix))

        results = [Translation(text, one_line(text), None, (), "empty") for text in lines]
        per_line = options.num_best if options.sampling else settings.beam
        for batch in _cut(jobs, self.batch_tokens // per_line):
            for job, hypotheses in zip(batch, self._decode(batch, options, settings, first_line), strict=True):
                texts = tuple((one_line(self.text.target_text(found.ids)), found.score) for found in hypotheses)
                results[job.line] = Translation(lines[job.line], texts[0][0], texts[0][1], texts, "ok")
        return results

    def _translate_chunks(
        self, lines: Iterator[str], options: TranslateOptions, prefixes: Iterator[str] | None, chunk_lines: int
    ) -> Iterator[Translation]:
        first_line = 0
        while chunk := list(itertools.islice(lines, chunk_lines)):
            given = None if prefixes is None else list(itertools.islice(prefixes, len(chunk)))
            yield from self.translate_batch(chunk, options, prefixes=given, first_line=first_line)
            first_line += len(chunk)

    def _decode(
        self, batch: Sequence[_Job], options: TranslateOptions, settings: DecodingConfig, first_line: int
    ) -> list[list[Hypothesis]]:
        sources = [job.source for job in batch]
        prefixes = [job.prefix for job in batch]
        max_lengths = [int(settings.max_length_ratio * len(ids)) + settings.max_length_extra for ids in sources]
        if options.sampling is None:
            return beam_search(
                self.engine,
                sources,
                beam=settings.beam,
                num_best=options.num_best,
                length_penalty=settings.length_penalty,
                length_penalty_type=settings.length_penalty_type,
                max_lengths=max_lengths,
                prefixes=prefixes,
            )
        return sample(
            self.engine,
            sources,
            num_samples=options.num_best,
            temperature=options.sampling.temperature,
            top_k=options.sampling.top_k,
            top_p=options.sampling.top_p,
            max_lengths=max_lengths,
            seed=options.sampling.seed,
            prefixes=prefixes,
            sentence_ids=[first_line + job.line for job in batch],
        )

    def _resolve(self, options: TranslateOptions) -> DecodingConfig:
        """The model's decoding settings with the request's own in their places, checked."""
        asked = {
            "beam": options.beam,
            "length_penalty": options.length_penalty,
            "length_penalty_type": options.length_penalty_type,
            "max_length_ratio": options.max_length_ratio,
        }
        settings = self.decoding.model_copy(update={key: value for key, value in asked.items() if value is not None})
        if options.sampling is None:
            check_beam(settings.beam, options.num_best, settings.length_penalty, settings.length_penalty_type)
        else:
            given = options.sampling
            check_sampling(
                num_samples=options.num_best,
                temperature=given.temperature,
                top_k=given.top_k,
                top_p=given.top_p,
                seed=given.seed,
            )
        return settings


def one_line(text: str) -> str:
    """`text` with every line break, also of the kinds that only Unicode knows, as a space."""
    return " ".join(text.splitlines())


def _cut(jobs: Sequence[_Job], max_tokens: int) -> Iterator[list[_Job]]:
    """Batches of similar lengths with at most `max_tokens` padded tokens, or one line if that alone is longer.

    The longest come first: if the memory does not suffice, it shows at the start.
    """
    batch: list[_Job] = []
    for job in sorted(jobs, key=lambda job: -len(job.source)):
        if batch and len(batch[0].source) * (len(batch) + 1) > max_tokens:
            yield batch
            batch = []
        batch.append(job)
    if batch:
        yield batch
