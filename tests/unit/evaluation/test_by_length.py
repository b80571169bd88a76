from __future__ import annotations

import pytest

from capsnmt.errors import CapsNMTError
from capsnmt.evaluation.by_length import in_bins, longer_than
from capsnmt.evaluation.metrics import bleu, chrf

LENGTHS = [1, 5, 10, 11, 20, 21, 30, 35, 50, 51, 70]
SOURCES = [" ".join(["word"] * length) for length in LENGTHS]
REFERENCES = [" ".join(f"w{i}.{k}" for k in range(length + 4)) for i, length in enumerate(LENGTHS)]
HYPOTHESES = [reference if i % 2 else reference.replace("w", "v", 1) for i, reference in enumerate(REFERENCES)]


def test_longer_than_is_strict_and_nested():
    rows = longer_than(SOURCES, HYPOTHESES, REFERENCES, num_bootstrap=0)
    assert [(row.label, row.count) for row in rows] == [
        ("> 0", 11),
        ("> 10", 8),
        ("> 20", 6),
        ("> 30", 4),
        ("> 40", 3),
        ("> 50", 2),
    ]


def test_bins_hold_each_sentence_once():
    rows = in_bins(SOURCES, HYPOTHESES, REFERENCES, num_bootstrap=0)
    assert [(row.label, row.count) for row in rows] == [
        ("1-10", 3),
        ("11-20", 2),
        ("21-30", 2),
        ("31-40", 1),
        ("41-50", 1),
        ("51+", 2),
    ]
    assert sum(row.count for row in rows) == len(SOURCES)


def test_blank_sources_get_their_own_bin_and_are_longer_than_nothing():
    sources, lines = [*SOURCES, " "], [*REFERENCES, "x"]
    rows = in_bins(sources, lines, lines, num_bootstrap=0)
    assert (rows[0].label, rows[0].count) == ("0", 1)
    assert sum(row.count for row in rows) == len(sources)
    assert longer_than(sources, lines, lines, (0,), num_bootstrap=0)[0].count == len(SOURCES)


def test_rows_score_their_own_sentences():
    row = in_bins(SOURCES, HYPOTHESES, REFERENCES, num_bootstrap=50)[0]
    assert row.bleu == bleu(HYPOTHESES[:3], REFERENCES[:3], num_bootstrap=50)
    assert row.bleu is not None
    assert row.bleu.confidence is not None
    assert row.chrf == chrf(HYPOTHESES[:3], REFERENCES[:3], num_bootstrap=0)


def test_length_is_counted_in_source_words_not_in_target_words():
    rows = in_bins(["one two"], ["x " * 40], ["x " * 40], num_bootstrap=0)
    assert [row.label for row in rows if row.count] == ["1-10"]


def test_empty_groups_have_no_score():
    rows = in_bins(SOURCES[:2], HYPOTHESES[:2], REFERENCES[:2], num_bootstrap=0)
    assert [(row.count, row.bleu, row.chrf) for row in rows[1:]] == [(0, None, None)] * 5


def test_one_sentence_has_a_score_without_confidence():
    row = longer_than(SOURCES, REFERENCES, REFERENCES, (60,))[0]
    assert row.count == 1
    assert row.bleu is not None
    assert row.bleu.value == pytest.approx(100)
    assert row.bleu.confidence is None


@pytest.mark.parametrize("table", [longer_than, in_bins])
def test_unequal_counts_are_an_error(table):
    with pytest.raises(CapsNMTError, match="10 sources, 11 hypotheses, 11 references"):
        table(SOURCES[1:], HYPOTHESES, REFERENCES)
