"""Is one system better than another, or luckier on this test set? SacreBLEU's paired bootstrap answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
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


@dataclass(frozen=True)
class Gain:
    """How much higher the BLEU of one system is than another's, in the mean over trainings."""

    mean: float
    confidence: tuple[float, float]  # 95 %
    p_value: float  # of so large a difference by chance, two-sided


def paired_gain(
    references: Sequence[str],
    systems: Sequence[Sequence[str]],
    baselines: Sequence[Sequence[str]],
    *,
    num_samples: int = 1000,
) -> Gain:
    """Paired bootstrap of the mean of BLEU(system) - BLEU(baseline) over pairs of outputs, one pair a seed.

    A sample draws sentences once, for every seed alike: three seeds are three views of one test set, not a test set of
    three times the size.
    """
    require_equal_counts({"references": references, **{f"output {n}": o for n, o in enumerate([*systems, *baselines])}})
    drawn = np.random.default_rng(12345).multinomial(
        len(references), np.full(len(references), 1.0 / len(references)), size=num_samples
    )
    times = np.vstack([np.ones((1, len(references)), dtype=drawn.dtype), drawn])  # the whole test set, then the samples
    differences = np.mean(
        [
            _resampled_bleu(references, system, times) - _resampled_bleu(references, baseline, times)
            for system, baseline in zip(systems, baselines, strict=True)
        ],
        axis=0,
    )
    found, samples = differences[0], differences[1:]
    # As sacreBLEU does: how often do samples, moved to a mean of 0, differ by as much as was found?
    as_large = int((np.abs(samples - samples.mean()) >= abs(found)).sum())
    low, high = np.percentile(samples, [2.5, 97.5])
    return Gain(float(found), (float(low), float(high)), (as_large + 1) / (num_samples + 1))


def _resampled_bleu(references: Sequence[str], outputs: Sequence[str], times: np.ndarray) -> np.ndarray:
    """BLEU of every row of `times` (samples, sentences), which says how often each sentence occurs in it."""
    metric = BLEU(tokenize="13a", effective_order=True)  # of single sentences only the counts are read
    scores = [metric.sentence_score(output, [reference]) for output, reference in zip(outputs, references, strict=True)]
    counts = np.array([[*score.counts, *score.totals, score.sys_len, score.ref_len] for score in scores])
    sums = times @ counts  # (samples, 2 orders + 2)
    order = len(scores[0].counts)
    return np.array(
        [
            BLEU.compute_bleu(
                row[:order].tolist(), row[order : 2 * order].tolist(), int(row[-2]), int(row[-1]), smooth_method="exp"
            ).score
            for row in sums
        ]
    )
