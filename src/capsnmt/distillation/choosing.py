"""Which translation of a line is taken, and which pairs a student had better not see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from capsnmt.decoding.loops import find_loop
from capsnmt.distillation.teachers import Candidate

KEPT = "kept"


@dataclass(frozen=True)
class Filters:
    """Limits of a distilled pair; None switches one off."""

    max_ratio: float | None = 4.0  # words of the longer side to words of the shorter, from five words on
    min_score: float | None = None  # as the teacher gives it
    repetition: bool = True
    copy: bool = True  # the source word for word, which teaches nothing; names and numbers of up to three words may be

    def verdict(self, source: str, chosen: Candidate | None) -> str:
        """`kept`, or the reason why not."""
        if chosen is None or not chosen.text.strip():
            return "not_translated"
        words, target_words = source.split(), chosen.text.split()
        shorter, longer = sorted((len(words), len(target_words)))
        if self.max_ratio is not None and longer >= 5 and longer > self.max_ratio * shorter:
            return "length_ratio"
        if self.repetition and find_loop([hash(word) for word in target_words]) is not None:
            return "repetition"
        if self.copy and len(words) > 3 and words == target_words:
            return "copy"
        if self.min_score is not None and chosen.score is not None and chosen.score < self.min_score:
            return "score"
        return KEPT


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
