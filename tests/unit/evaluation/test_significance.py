from __future__ import annotations

import pytest

from capsnmt.errors import CapsNMTError
from capsnmt.evaluation.metrics import bleu, chrf
from capsnmt.evaluation.significance import paired_bootstrap, paired_gain, sentence_counts

REFERENCES = [f"sentence number {i} has exactly {i + 3} words of interest in it ." for i in range(40)]
BAD = [
    line.replace("exactly", "about").replace("interest", "note" if i % 3 else "interest")
    for i, line in enumerate(REFERENCES)
]
NEARLY_BAD = [REFERENCES[0], *BAD[1:]]


def test_a_clearly_better_system_is_significant():
    results = paired_bootstrap(REFERENCES, BAD, {"good": REFERENCES}, num_samples=200)
    p_values = {result.score.name: result.p_value for result in results if result.system == "good"}
    assert p_values.keys() == {"BLEU", "chrF2"}
    assert all(p is not None and p < 0.05 for p in p_values.values())


def test_a_better_sentence_by_luck_is_not_significant():
    results = paired_bootstrap(REFERENCES, BAD, {"lucky": NEARLY_BAD}, num_samples=200)
    p_values = [result.p_value for result in results if result.system == "lucky"]
    assert all(p is not None and p > 0.05 for p in p_values)


def test_a_copy_is_not_significant():
    results = paired_bootstrap(REFERENCES, BAD, {"copy": list(BAD)}, num_samples=200)
    assert [result.p_value for result in results if result.system == "copy"] == [1.0, 1.0]


def test_scores_are_those_of_the_metrics_and_the_baseline_has_no_p_value():
    results = paired_bootstrap(REFERENCES, BAD, {"good": REFERENCES}, baseline_name="bad", num_samples=50)
    assert [(result.system, result.score.name) for result in results] == [
        ("bad", "BLEU"),
        ("good", "BLEU"),
        ("bad", "chrF2"),
        ("good", "chrF2"),
    ]
    assert results[0].p_value is None
    assert results[0].score.value == pytest.approx(bleu(BAD, REFERENCES, num_bootstrap=0).value)
    assert results[2].score.value == pytest.approx(chrf(BAD, REFERENCES, num_bootstrap=0).value)
    low, high = results[0].score.confidence or (0.0, 0.0)
    assert low < results[0].score.value < high


def test_signature_names_test_and_tokeniser():
    signature = paired_bootstrap(REFERENCES, BAD, {"good": REFERENCES}, num_samples=50)[0].score.signature
    assert {"bs:50", "seed:12345", "tok:13a", "case:mixed"} <= set(signature.split("|"))


def test_faults_are_named():
    with pytest.raises(CapsNMTError, match="40 references, 40 lines of baseline, 39 lines of short"):
        paired_bootstrap(REFERENCES, BAD, {"short": BAD[1:]})
    with pytest.raises(CapsNMTError, match="called 'baseline'"):
        paired_bootstrap(REFERENCES, BAD, {"baseline": BAD})
    with pytest.raises(CapsNMTError, match="num_samples: 0"):
        paired_bootstrap(REFERENCES, BAD, {"good": REFERENCES}, num_samples=0)


def counted(*systems):
    return [sentence_counts(lines, REFERENCES) for lines in systems]


def test_a_gain_is_the_mean_difference_of_bleu():
    found = paired_gain(counted(REFERENCES, NEARLY_BAD), counted(BAD, BAD), num_samples=50)
    scores = [bleu(lines, REFERENCES, num_bootstrap=0).value for lines in (REFERENCES, NEARLY_BAD, BAD)]
    assert found.mean == pytest.approx((scores[0] + scores[1]) / 2 - scores[2])


def test_counts_say_what_bleu_says_of_short_and_empty_lines_too():
    outputs = ["one", "", "three words here", "a b c d e f g h"]
    references = ["one two", "nothing", "three words there", "a b c d e f h g"]
    found = paired_gain([sentence_counts(outputs, references)], [sentence_counts([""] * 4, references)], num_samples=2)
    assert found.mean == pytest.approx(bleu(outputs, references, num_bootstrap=0).value)


def test_a_seed_that_says_nothing_new_makes_nothing_more_significant():
    once, thrice = (paired_gain(counted(NEARLY_BAD) * n, counted(BAD) * n, num_samples=200) for n in (1, 3))
    assert thrice.p_value == once.p_value
    assert thrice.confidence == pytest.approx(once.confidence)


def test_a_gain_by_luck_is_not_significant_and_a_clear_one_is():
    assert paired_gain(counted(NEARLY_BAD), counted(BAD), num_samples=200).p_value > 0.05
    assert paired_gain(counted(REFERENCES), counted(BAD), num_samples=200).p_value < 0.05
    same = paired_gain(counted(BAD), counted(BAD), num_samples=200)
    assert (same.mean, same.confidence, same.p_value) == (0.0, (0.0, 0.0), 1.0)


def test_outputs_of_other_test_sets_are_not_compared():
    with pytest.raises(CapsNMTError, match="40 and 39 sentences"):
        paired_gain(counted(BAD), [sentence_counts(BAD[1:], REFERENCES[1:])])
