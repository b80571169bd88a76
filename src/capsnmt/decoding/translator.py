"""Lines in = lines out: from strings through an engine to strings, in the order of the input, whatever the input is."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from capsnmt.config import DecodingConfig
from capsnmt.decoding.engine import Engine
from capsnmt.decoding.line_batch import LineBatch
from capsnmt.decoding.sampling import check_sampling
from capsnmt.decoding.search import check_beam
from capsnmt.decoding.segments import Segment
from capsnmt.decoding.translation import TextCodec, TranslateOptions, Translation
from capsnmt.errors import CapsNMTError

DEFAULTS = TranslateOptions()


class LineTranslator:
    """Translates lines with one engine. A line's result does not depend on the lines around it."""

    def __init__(
        self, *, engine: Engine, text: TextCodec, decoding: DecodingConfig, language: str, batch_tokens: int = 2048
    ) -> None:
        if batch_tokens < 1:
            raise CapsNMTError(f"batch_tokens {batch_tokens} must be 1 or more")
        self.engine = engine
        self.text = text
        self.decoding = decoding
        self.language = language  # of the source: what the sentence splitter needs to know
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
        batch = self.line_batch(options, first_line=first_line)
        if prefixes is not None and len(prefixes) != len(lines):
            raise CapsNMTError(f"{len(lines)} lines with {len(prefixes)} prefixes; give one prefix per line")
        parts = [batch.plan(number, line, prefixes[number] if prefixes else "") for number, line in enumerate(lines)]
        batch.decode([part for line in parts for part in line if isinstance(part, Segment)])
        return [batch.finish(line, found) for line, found in zip(lines, parts, strict=True)]

    def line_batch(self, options: TranslateOptions = DEFAULTS, *, first_line: int = 0) -> LineBatch:
        """The steps of translating lines, for those who take them one by one."""
        return LineBatch(
            engine=self.engine,
            text=self.text,
            language=self.language,
            batch_tokens=self.batch_tokens,
            options=options,
            settings=self._resolve(options),
            first_line=first_line,
        )

    def _translate_chunks(
        self, lines: Iterator[str], options: TranslateOptions, prefixes: Iterator[str] | None, chunk_lines: int
    ) -> Iterator[Translation]:
        first_line = 0
        while chunk := list(itertools.islice(lines, chunk_lines)):
            given = None if prefixes is None else list(itertools.islice(prefixes, len(chunk)))
            yield from self.translate_batch(chunk, options, prefixes=given, first_line=first_line)
            first_line += len(chunk)

    def _resolve(self, options: TranslateOptions) -> DecodingConfig:
        """The model's decoding settings with the request's own in their places, checked."""
        asked = {
            "beam": options.beam,
            "length_penalty": options.length_penalty,
            "length_penalty_type": options.length_penalty_type,
            "coverage_penalty": options.coverage_penalty,
            "max_length_ratio": options.max_length_ratio,
        }
        settings = self.decoding.model_copy(update={key: value for key, value in asked.items() if value is not None})
        if options.sampling is None:
            check_beam(
                settings.beam,
                options.num_best,
                settings.length_penalty,
                settings.length_penalty_type,
                settings.coverage_penalty,
            )
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
