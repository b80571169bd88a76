from __future__ import annotations

import math
import random
from collections import Counter

import pytest
import sacremoses

from capsnmt.errors import CapsNMTError
from capsnmt.evaluation.metrics import Score, bleu, chrf, paper_bleu, split_hyphens

GERMAN = [
    "Die Katze sitzt auf der Matte.",
    "Der Test-Satz ist nicht lang, aber gut.",
    "Heute Abend gehen wir ins Kino.",
    "Das kleine Haus steht am Ende der Straße.",
]


def multi_bleu(hypotheses: list[str], references: list[str]) -> float:
    """A slow multi-bleu.perl for one reference, on tokens."""
    correct, total = Counter[int](), Counter[int]()
    hypothesis_length = reference_length = 0
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        words, wanted = hypothesis.split(), reference.split()
        hypothesis_length += len(words)
        reference_length += len(wanted)
        for n in range(1, 5):
            available = [wanted[i : i + n] for i in range(len(wanted) - n + 1)]
            for start in range(len(words) - n + 1):
                total[n] += 1
                if words[start : start + n] in available:
                    available.remove(words[start : start + n])
                    correct[n] += 1
    if any(correct[n] == 0 for n in range(1, 5)):
        return 0.0
    brevity = 1.0 if hypothesis_length >= reference_length else math.exp(1 - reference_length / hypothesis_length)
    return 100 * brevity * math.prod(correct[n] / total[n] for n in range(1, 5)) ** 0.25


def moses(lines: list[str], language: str = "de") -> list[str]:
    tokeniser = sacremoses.MosesTokenizer(lang=language)
    return [tokeniser.tokenize(line, return_str=True) for line in lines]


def noisy(lines: list[str], seed: int) -> list[str]:
    """Drops, doubles and swaps some words, deterministically."""
    chance = random.Random(seed)
    result = []
    for line in lines:
        words = [word for word in line.split() for _ in range(chance.choice([0, 1, 1, 1, 1, 1, 2]))]
        if len(words) > 2 and chance.random() < 0.5:
            words[0], words[1] = words[1], words[0]
        result.append(" ".join(words))
    return result


@pytest.mark.parametrize("score", [bleu, chrf])
def test_identity_is_100(score):
    assert score(GERMAN, GERMAN, num_bootstrap=0).value == pytest.approx(100)


def test_identity_is_100_in_the_papers_metric():
    assert paper_bleu(GERMAN, GERMAN, target_language="de").value == pytest.approx(100)


def test_bleu_by_hand():
    # Tokens: a b c d e f against a b c d e g. Matches 5/6, 4/5, 3/4, 2/3, so the product is 1/3; equal lengths.
    score = bleu(["a b c d e f"], ["a b c d e g"])
    assert score.value == pytest.approx(100 * (1 / 3) ** 0.25)


def test_brevity_penalty_by_hand():
    # All n-grams match, 4 tokens of 6.
    score = paper_bleu(["a b c d"], ["a b c d e f"], target_language="de")
    assert score.value == pytest.approx(100 * math.exp(1 - 6 / 4))


def test_clipping_by_hand():
    # `the the the the`: one of 4 unigrams is credited, no bigram matches.
    assert paper_bleu(["the the the the"], ["the cat sat down"], target_language="en").value == 0.0
    # 13a with exponential smoothing: 1/4, then 1/(2*3), 1/(4*2), 1/(8*1).
    smoothed = 100 * (1 / 4 * 1 / 6 * 1 / 8 * 1 / 8) ** 0.25
    assert bleu(["the the the the"], ["the cat sat down"]).value == pytest.approx(smoothed)


def test_chrf_by_hand():
    # "ab" against "ac": precision = recall = 1/2 for one character, 0 for two; longer orders do not exist.
    assert chrf(["ab"], ["ac"]).value == pytest.approx(25)


def test_paper_bleu_is_unsmoothed_where_bleu_is_not():
    hypothesis, reference = ["Die Katze sitzt hier drin"], ["Die Katze sitzt dort oben"]  # no 4-gram matches
    assert paper_bleu(hypothesis, reference, target_language="de").value == 0.0
    assert bleu(hypothesis, reference).value > 10


@pytest.mark.parametrize("seed", range(8))
def test_paper_bleu_equals_a_slow_multi_bleu(seed):
    hypotheses = noisy(GERMAN, seed)
    expected = multi_bleu(moses(hypotheses), moses(GERMAN))
    assert expected > 0
    assert paper_bleu(hypotheses, GERMAN, target_language="de").value == pytest.approx(expected)


def test_paper_bleu_tokenises_as_the_target_language_does():
    # French elision is one token (l' ami), in German the apostrophe stands alone (l ' ami).
    hypothesis, reference = ["Je vois l'ami de Jean."], ["Je vois l'ours de Jean ."]
    french = paper_bleu(hypothesis, reference, target_language="fr").value
    german = paper_bleu(hypothesis, reference, target_language="de").value
    assert french == pytest.approx(multi_bleu(moses(hypothesis, "fr"), moses(reference, "fr")))
    assert german == pytest.approx(multi_bleu(moses(hypothesis, "de"), moses(reference, "de")))
    assert french != pytest.approx(german)


def test_paper_bleu_is_cased_unless_told():
    lowered = [line.lower() for line in GERMAN]
    assert paper_bleu(lowered, GERMAN, target_language="de").value < 50
    assert paper_bleu(lowered, GERMAN, target_language="de", lowercase=True).value == pytest.approx(100)


def test_hyphens_split_as_in_get_ende_bleu():
    assert split_hyphens("der Test-Satz - a-b-c") == "der Test ##AT##-##AT## Satz - a ##AT##-##AT## b-c"


def test_compound_split_credits_the_parts_of_hyphenated_words():
    hypothesis = ["Der Test-Satz ist nicht so lang"]
    reference = ["Der Probe-Satz ist nicht so lang"]
    plain = paper_bleu(hypothesis, reference, target_language="de").value
    split = paper_bleu(hypothesis, reference, target_language="de", split_compounds=True).value
    # Whole: 6 tokens, of which one differs. Split: 8 tokens (Der Test ##AT##-##AT## Satz ...), of which one differs.
    assert plain == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)
    assert split == pytest.approx(100 * (7 / 8 * 5 / 7 * 4 / 6 * 3 / 5) ** 0.25)


def test_compound_split_leaves_other_words_alone():
    hypotheses, references = ["Heute gehen wir ins Kino."], ["Heute Abend gehen wir ins Kino."]
    plain = paper_bleu(hypotheses, references, target_language="de").value
    assert plain > 0
    assert paper_bleu(hypotheses, references, target_language="de", split_compounds=True).value == plain


def test_signatures_say_what_was_done():
    assert {"case:mixed", "tok:13a", "smooth:exp", "bs:50", "seed:12345"} <= set(
        bleu(noisy(GERMAN, 1), GERMAN, num_bootstrap=50).signature.split("|")
    )
    assert "bs:" not in bleu(GERMAN, GERMAN, num_bootstrap=0).signature
    assert {"case:mixed", "nc:6", "nw:0"} <= set(chrf(GERMAN, GERMAN, num_bootstrap=0).signature.split("|"))
    plain = paper_bleu(GERMAN, GERMAN, target_language="de").signature.split("|")
    assert plain[0] == "multi-bleu"
    assert {f"tok:moses-de-{sacremoses.__version__}", "case:mixed", "compounds:no", "smooth:none"} <= set(plain)
    other = paper_bleu(GERMAN, GERMAN, target_language="de", lowercase=True, split_compounds=True).signature
    assert {"case:lc", "compounds:split"} <= set(other.split("|"))


@pytest.mark.parametrize("score", [bleu, chrf])
def test_confidence_contains_the_value(score):
    result = score(noisy(GERMAN * 15, 3), GERMAN * 15, num_bootstrap=300)
    assert result.confidence is not None
    low, high = result.confidence
    assert 0 < low < result.value < high < 100


def test_confidence_narrows_with_more_sentences():
    def width(score: Score) -> float:
        assert score.confidence is not None
        return score.confidence[1] - score.confidence[0]

    few, many = noisy(GERMAN * 4, 3), noisy(GERMAN * 64, 3)
    assert width(bleu(many, GERMAN * 64, num_bootstrap=200)) < width(bleu(few, GERMAN * 4, num_bootstrap=200)) / 2


@pytest.mark.parametrize("score", [bleu, chrf])
def test_no_confidence_for_one_line_or_without_samples(score):
    assert score(GERMAN[:1], GERMAN[:1], num_bootstrap=100).confidence is None
    assert score(GERMAN, GERMAN, num_bootstrap=0).confidence is None


def test_empty_hypotheses_score_0():
    nothing = [""] * len(GERMAN)
    assert bleu(nothing, GERMAN, num_bootstrap=10).value == 0.0
    assert chrf(nothing, GERMAN, num_bootstrap=10).value == 0.0
    assert paper_bleu(nothing, GERMAN, target_language="de").value == 0.0


def test_unequal_counts_are_an_error_that_names_both():
    for score in (bleu, chrf):
        with pytest.raises(CapsNMTError, match=r"3 hypotheses, 4 references"):
            score(GERMAN[:3], GERMAN)
    with pytest.raises(CapsNMTError, match=r"3 hypotheses, 4 references"):
        paper_bleu(GERMAN[:3], GERMAN, target_language="de")


def test_nothing_to_score_is_an_error():
    with pytest.raises(CapsNMTError, match="0 lines"):
        bleu([], [])


def test_resamples_that_match_nothing_have_a_mean():
    hypotheses = ["", "", "", "", GERMAN[0]]
    found = chrf(hypotheses, [GERMAN[0]] * 5, num_bootstrap=100)
    assert found.confidence is not None
    assert found.confidence[0] < found.value < found.confidence[1]
