from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from capsnmt.config import LanguagesConfig
from capsnmt.errors import CapsNMTError
from capsnmt.evaluation.metrics import bleu, paper_bleu
from capsnmt.evaluation.report import EvaluationReport, evaluate_outputs, print_report

EN_DE = LanguagesConfig(source="en", target="de")
SOURCES = ["the cat sits on the mat", "a test sentence of seven words here", "", "Angela Merkel", "we go to the cinema"]
REFERENCES = ["die Katze sitzt auf der Matte", "ein Test-Satz mit hier fünf", "", "Angela Merkel", "wir gehen ins Kino"]
HYPOTHESES = ["die Katze sitzt auf der Matte", "ein Probe-Satz mit hier fünf", "", "Angela Merkel", " "]


def evaluate(split_compounds: bool = False) -> EvaluationReport:
    return evaluate_outputs(
        SOURCES, HYPOTHESES, REFERENCES, languages=EN_DE, num_bootstrap=50, split_compounds=split_compounds
    )


def test_counts():
    report = evaluate()
    assert report.num_sentences == 5
    assert report.num_empty_hypotheses == 1  # the last; the blank source in the middle has to stay blank
    assert report.num_copied_sources == 1
    assert report.length_ratio == pytest.approx(13 / 17)


def test_scores_and_tables_are_those_of_their_functions():
    report = evaluate()
    assert [score.name for score in report.scores] == ["BLEU", "chrF2", "paper BLEU", "paper BLEU (lower-cased)"]
    assert report.scores[0] == bleu(HYPOTHESES, REFERENCES, num_bootstrap=50)
    assert sum(row.count for row in report.in_bins) == 5
    assert report.longer_than[0].count == 4


def test_compound_split_stands_beside_the_plain_score():
    report = evaluate(split_compounds=True)
    scores = {score.name: score for score in report.scores}
    assert scores["paper BLEU"] == paper_bleu(HYPOTHESES, REFERENCES, target_language="de")
    assert scores["paper BLEU (compounds split)"].value > scores["paper BLEU"].value


def test_no_reference_words_no_ratio():
    report = evaluate_outputs(["a", "b"], ["x", "y"], ["", ""], languages=EN_DE, num_bootstrap=0)
    assert report.length_ratio is None
    assert report.scores[0].value == 0.0


def test_to_dict_survives_json():
    values = evaluate(split_compounds=True).to_dict()
    assert json.loads(json.dumps(values)) == values
    assert values["target_language"] == "de"
    assert values["scores"][0]["signature"].startswith("nrefs:1")
    assert len(values["scores"][0]["confidence"]) == 2
    assert values["in_bins"][-1] == {"label": "51+", "count": 0, "bleu": None, "chrf": None}


def test_printed_report_shows_values_intervals_and_signatures():
    report = evaluate()
    stream = io.StringIO()
    print_report(report, Console(file=stream, width=200))
    text = stream.getvalue()
    low, high = report.scores[0].confidence or (0.0, 0.0)
    for expected in (f"{report.scores[0].value:.2f}", f"{low:.2f}–{high:.2f}", "en → de", "51+", "copied sources 1"):
        assert expected in text
    assert all(score.signature in text for score in report.scores)


def test_unequal_counts_are_an_error():
    with pytest.raises(CapsNMTError, match="4 sources, 5 hypotheses, 5 references"):
        evaluate_outputs(SOURCES[1:], HYPOTHESES, REFERENCES, languages=EN_DE)
