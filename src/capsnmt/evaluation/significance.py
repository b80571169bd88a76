"""Is one system better than another, or luckier on this test set? SacreBLEU's paired bootstrap answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest, Result

from capsnmt.errors import CapsNMTError
from capsnmt.evaluation.metrics import PlainChrf, Score, require_equal_counts


@dataclass(frozen=True)
class PairedScore:
    """A system's score and the probability of so large a difference from the baseline by chance."""

    system: str
    score: Score
    p_value: float | None  # None for the baseline


def paired_bootstrap(
    references: Sequence[str],
    baseline: Sequence[str],
    others: Mapping[str, Sequence[str]],
    *,
    baseline_name: str = "baseline",
    num_samples: int = 1000,
) -> list[PairedScore]:
    """BLEU and chrF2 of the baseline and of each other system, with p-values against the baseline (two-sided)."""
    if baseline_name in others:
        raise CapsNMTError(f"two systems are called {baseline_name!r}: give the baseline another name")
    if num_samples < 1:
        raise CapsNMTError(f"num_samples: {num_samples} is too few to resample; 1000 is usual")
    systems: dict[str, Sequence[str]] = {baseline_name: baseline, **others}
    require_equal_counts({"references": references, **{f"lines of {name}": lines for name, lines in systems.items()}})
    test = PairedTest(
        [(name, list(lines)) for name, lines in systems.items()],
        {"BLEU": BLEU(tokenize="13a"), "chrF2": PlainChrf()},
        [list(references)],
        test_type="bs",
        n_samples=num_samples,
    )
    signatures, results = test()
    return [
        _paired_score(system, metric, result, results[metric][0], signature.format())
        for metric, signature in signatures.items()
        for system, result in zip(systems, results[metric], strict=True)
    ]


def _paired_score(
    system: str, metric: str, result: Result | str, baseline: Result | str, signature: str
) -> PairedScore:
    assert isinstance(result, Result)
    assert isinstance(baseline, Result)
    p_value = result.p_value
    if p_value is not None and result.score == baseline.score:
        # A difference of 0 is never surprising, but sacreBLEU counts the samples ABOVE the observed difference, so a
        # system compared with its own copy gets the smallest p-value there is.
        p_value = 1.0
    confidence = None
    if result.mean is not None and result.ci is not None:
        confidence = (float(result.mean - result.ci), float(result.mean + result.ci))
    return PairedScore(system, Score(metric, float(result.score), signature, confidence), p_value)
