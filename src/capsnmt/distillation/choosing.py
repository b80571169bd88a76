"""Which translation of a line is taken, and which pairs a student had better not see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from capsnmt.data.filters import count_words, word_ratio
from capsnmt.decoding.loops import find_loop
from capsnmt.distillation.teachers import Candidate

KEPT = "kept"


@dataclass(frozen=True)
class Filters:
    """Limits of a distilled pair; None switches one off."""

    max_ratio: float | None = 4.0  # words of the longer side to those of the shorter, as `prepare` counts them
    min_score: float | None = None  # as the teacher gives it
    repetition: bool = True  # a loop that the source does not have
    copy: bool = True  # the source word for word, which teaches nothing; names and numbers of up to three words may be

    def verdict(self, source: str, chosen: Candidate | None) -> str:
        """`kept`, or the reason why not."""
        if not source.strip():
            return "empty"
        if chosen is None or not chosen.text.strip():
            return "not_translated"
        if chosen.is_protected:
            return "protected"
        if self.max_ratio is not None and word_ratio((source, chosen.text)) > self.max_ratio:
            return "length_ratio"
        if self.repetition and _loops(chosen.text) and not _loops(source):
            return "repetition"
        if self.copy and count_words(source) > 3 and source.split() == chosen.text.split():
            return "copy"
        if self.min_score is not None and chosen.score is not None and chosen.score < self.min_score:
            return "score"
        return KEPT


def _loops(text: str) -> bool:
    return find_loop([hash(word) for word in text.split()]) is not None


def best_by_score(candidates: Sequence[Candidate], reference: str | None) -> int | None:
    """The teacher's own first."""
    return 0 if candidates else None


def best_by_bleu(candidates: Sequence[Candidate], reference: str | None) -> int | None:
    """The one nearest to the reference by smoothed sentence BLEU; of equals the teacher's first."""
    from sacrebleu.metrics.bleu import BLEU

    assert reference is not None
    metric = BLEU(effective_order=True)
    scores = [metric.sentence_score(each.text, [reference]).score for each in candidates]
    return scores.index(max(scores)) if scores else None


CHOICES = {"score": best_by_score, "bleu": best_by_bleu}
