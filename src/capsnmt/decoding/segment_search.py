"""Searches for the translations of segments: batches of similar length, a retry of what fails, an end to loops."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from capsnmt.config import DecodingConfig
from capsnmt.decoding.engine import Engine
from capsnmt.decoding.loops import find_loop, without_loops
from capsnmt.decoding.sampling import sample
from capsnmt.decoding.search import Hypothesis, beam_search
from capsnmt.decoding.segments import Segment
from capsnmt.decoding.translation import TranslateOptions

log = logging.getLogger(__name__)

_LEAST_TOKENS = 1  # to weak models nothing at all is often the most probable translation, and it is never one


def max_length(settings: DecodingConfig, source_tokens: int, spare: int) -> int:
    """The most tokens that a translation may have."""
    return max(1, int(settings.max_length_ratio * source_tokens) + spare)


@dataclass(frozen=True)
class SegmentSearch:
    """An engine and how it is asked; lines count from `first_line` in messages and streams of random numbers."""

    engine: Engine
    options: TranslateOptions
    settings: DecodingConfig
    batch_tokens: int
    first_line: int

    def __call__(self, segments: Sequence[Segment]) -> None:
        """Fills in the outputs of segments; a loop that the source does not have is repaired."""
        for segment in segments:
            segment.outputs = [[] for _ in segment.chunks]
        jobs = [_Job(segment, index) for segment in segments for index in range(len(segment.chunks))]
        self._search_jobs(jobs, self.options.num_best)
        looping = [job for job in jobs if any(map(_loops, job.found)) and find_loop(job.ids) is None]
        if self.options.sampling is None and self.settings.beam > self.options.num_best:
            # Another hypothesis of the same beam may be free of loops, and then it is the better sentence.
            self._search_jobs(looping, self.settings.beam)
        for job in looping:
            job.segment.notes.add("loop_repaired")
            free = [found for found in job.found if not _loops(found)]
            repaired = free or [_without_loops(found) for found in job.found]
            job.segment.outputs[job.index] = repaired[: self.options.num_best]

    def _search_jobs(self, jobs: Sequence[_Job], num_best: int) -> None:
        """Chunks of similar length go together."""
        per_job = num_best if self.options.sampling else self.settings.beam
        for batch in _cut_batches(jobs, self.batch_tokens // per_job):
            for job, found in zip(batch, self._search_or_retry(batch, num_best), strict=True):
                job.segment.outputs[job.index] = found

    def _search_or_retry(self, batch: Sequence[_Job], num_best: int) -> list[list[Hypothesis]]:
        """A batch that fails is tried again line by line; a line that fails alone has no output, and is flagged."""
        try:
            return self._search(batch, num_best)
        except (RuntimeError, MemoryError, ValueError, FloatingPointError) as error:
            if len(batch) > 1:
                log.warning("a batch of %d failed (%s): trying again line by line", len(batch), error)
                return [self._search_or_retry([job], num_best)[0] for job in batch]
            log.warning("line %d failed (%s): it is left as it is", self.first_line + batch[0].segment.line + 1, error)
            batch[0].segment.notes.add("failed")
            return [[]]

    def _search(self, batch: Sequence[_Job], num_best: int) -> list[list[Hypothesis]]:
        sources = [job.ids for job in batch]
        prefixes = [job.prefix for job in batch]
        max_lengths = [max_length(self.settings, len(job.ids), job.segment.spare) for job in batch]
        sampling = self.options.sampling
        if sampling is None:
            return beam_search(
                self.engine,
                sources,
                beam=self.settings.beam,
                num_best=num_best,
                length_penalty=self.settings.length_penalty,
                length_penalty_type=self.settings.length_penalty_type,
                coverage_penalty=self.settings.coverage_penalty,
                max_lengths=max_lengths,
                min_length=_LEAST_TOKENS,
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


@dataclass(frozen=True)
class _Job:
    """One chunk of a segment."""

    segment: Segment
    index: int

    @property
    def ids(self) -> list[int]:
        return self.segment.chunks[self.index]

    @property
    def found(self) -> list[Hypothesis]:
        return self.segment.outputs[self.index]

    @property
    def prefix(self) -> list[int]:
        return self.segment.prefix if self.index == 0 else []

    def stream_number(self, first_line: int) -> int:
        """The number of its own stream of random numbers: the line's, and others for what a line was split into."""
        return first_line + self.segment.line + ((self.segment.number * 1000 + self.index) << 40)


def _loops(hypothesis: Hypothesis) -> bool:
    return find_loop(hypothesis.ids) is not None


def _without_loops(hypothesis: Hypothesis) -> Hypothesis:
    """What is left keeps the mean log-probability of a token."""
    ids = without_loops(hypothesis.ids)
    share = (len(ids) + 1) / (len(hypothesis.ids) + 1)
    return replace(hypothesis, ids=ids, log_prob=hypothesis.log_prob * share)


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
