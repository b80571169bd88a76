"""Is one system better than another, or luckier on this test set? SacreBLEU's paired bootstrap answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
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


def sentence_counts(outputs: Sequence[str], references: Sequence[str]) -> npt.NDArray[np.int64]:
    """What BLEU is computed from, (sentences, 6): n-grams that match (n = 1 … 4), words of output and of reference."""
    require_equal_counts({"outputs": outputs, "references": references})
    metric = BLEU(tokenize="13a", effective_order=True)  # of single sentences only the counts are read
    scores = [metric.sentence_score(output, [reference]) for output, reference in zip(outputs, references, strict=True)]
    return np.array([[*score.counts, score.sys_len, score.ref_len] for score in scores], dtype=np.int64)


def paired_gain(
    systems: Sequence[npt.NDArray[np.int64]],
    baselines: Sequence[npt.NDArray[np.int64]],
    *,
    num_samples: int = 1000,
) -> Gain:
    """Paired bootstrap of the mean of BLEU(system) - BLEU(baseline) over pairs of `sentence_counts`, one pair a seed.

    A sample draws sentences once, for every seed alike: three seeds are three views of one test set, not a test set of
    three times the size.
    """
    number = len(systems[0])
    if faulty := [len(counts) for counts in [*systems, *baselines] if len(counts) != number]:
        raise CapsNMTError(f"cannot compare outputs of {number} and {faulty[0]} sentences: are they of one test set?")
    drawn = np.random.default_rng(12345).multinomial(number, np.full(number, 1.0 / number), size=num_samples)
    times = np.vstack([np.ones((1, number), dtype=drawn.dtype), drawn])  # the whole test set, then the samples
    differences = np.mean(
        [
            _resampled_bleu(system, times) - _resampled_bleu(baseline, times)
            for system, baseline in zip(systems, baselines, strict=True)
        ],
        axis=0,
    )
    found, samples = differences[0], differences[1:]
    # As sacreBLEU does: how often do samples, moved to a mean of 0, differ by as much as was found?
    as_large = int((np.abs(samples - samples.mean()) >= abs(found)).sum())
    low, high = np.percentile(samples, [2.5, 97.5])
    return Gain(float(found), (float(low), float(high)), (as_large + 1) / (num_samples + 1))


def _resampled_bleu(counts: npt.NDArray[np.int64], times: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """BLEU of every row of `times` (samples, sentences), which says how often each sentence occurs in it."""
    order = counts.shape[1] - 2
    words = counts[:, order]
    totals = np.stack([np.maximum(words - n, 0) for n in range(order)], axis=1)  # n-grams of so many words
    sums = times @ np.hstack([counts, totals])  # (samples, 2 orders + 2)
    scores = []
    for row in sums.tolist():
        matches, (output_words, reference_words), ngrams = row[:order], row[order : order + 2], row[order + 2 :]
        found = BLEU.compute_bleu(matches, ngrams, output_words, reference_words, smooth_method="exp")
        scores.append(found.score)
    return np.array(scores)
