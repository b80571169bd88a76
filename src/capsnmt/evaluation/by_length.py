"""Scores by the length of the source sentence, in words separated by white space.

The paper's figure takes the sentences longer than a threshold, so its groups contain each other; the disjoint bins
beside it show where a fixed-size memory starts to lose words.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from capsnmt.evaluation.metrics import Score, bleu, chrf, require_equal_counts

PAPER_THRESHOLDS = (0, 10, 20, 30, 40, 50)
BIN_UPPER_BOUNDS = (10, 20, 30, 40, 50)


@dataclass(frozen=True)
class LengthRow:
    """The scores of the sentences in one group; no scores if there are no sentences."""

    label: str
    count: int
    bleu: Score | None
    chrf: Score | None


def longer_than(
    sources: Sequence[str],
    hypotheses: Sequence[str],
    references: Sequence[str],
    thresholds: Sequence[int] = PAPER_THRESHOLDS,
    *,
    num_bootstrap: int = 1000,
) -> list[LengthRow]:
    """The paper's figure: one row per threshold, of the sentences with MORE source words than that."""
    lengths = _source_lengths(sources, hypotheses, references)
    groups = [(f"> {limit}", [i for i, length in enumerate(lengths) if length > limit]) for limit in thresholds]
    return [_row(label, chosen, hypotheses, references, num_bootstrap) for label, chosen in groups]


def in_bins(
    sources: Sequence[str],
    hypotheses: Sequence[str],
    references: Sequence[str],
    upper_bounds: Sequence[int] = BIN_UPPER_BOUNDS,
    *,
    num_bootstrap: int = 1000,
) -> list[LengthRow]:
    """Disjoint bins 1-10, 11-20, ..., 51+. Blank sources, if there are any, get a bin of their own, called 0."""
    lengths = _source_lengths(sources, hypotheses, references)
    edges = [0, *sorted(upper_bounds)]
    groups = [
        (f"{low + 1}-{high}", [i for i, length in enumerate(lengths) if low < length <= high])
        for low, high in itertools.pairwise(edges)
    ]
    groups.append((f"{edges[-1] + 1}+", [i for i, length in enumerate(lengths) if length > edges[-1]]))
    if 0 in lengths:
        groups.insert(0, ("0", [i for i, length in enumerate(lengths) if length == 0]))
    return [_row(label, chosen, hypotheses, references, num_bootstrap) for label, chosen in groups]


def _source_lengths(sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]) -> list[int]:
    require_equal_counts({"sources": sources, "hypotheses": hypotheses, "references": references})
    return [len(source.split()) for source in sources]


def _row(
    label: str, chosen: list[int], hypotheses: Sequence[str], references: Sequence[str], num_bootstrap: int
) -> LengthRow:
    if not chosen:
        return LengthRow(label, 0, None, None)
    group = [hypotheses[i] for i in chosen], [references[i] for i in chosen]
    return LengthRow(label, len(chosen), bleu(*group, num_bootstrap=num_bootstrap), chrf(*group, num_bootstrap=0))
