"""A system on Moses tokens gets the scores that the same translations get as plain text."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from capsnmt import verbs
from capsnmt.config import LanguagesConfig

LANGUAGES = LanguagesConfig(source="en", target="de")
SOURCES = ["He said: yes, it is (almost) done.", 'The "red" house, e.g., is old; who knows?']
TOKENS = {
    "He said : yes , it is ( almost ) done .": "Er sagte : ja , es ist ( fast ) fertig .",
    'The " red " house , e.g. , is old ; who knows ?': 'Das " rote " Haus ist z.B. alt ; wer weiß ?',
}
REFERENCES = ["Er sagte: ja, es ist (fast) fertig.", 'Das "rote" Haus ist z.B. alt; wer weiß?']


class OnTokens:
    """Knows sentences in tokens only, and answers in tokens."""

    languages = LANGUAGES

    def __init__(self, folder, *, engine):
        pass

    def translate_lines(self, lines, *, options):
        return [SimpleNamespace(text=TOKENS.get(line, "?")) for line in lines]


@pytest.fixture
def scores(monkeypatch):
    """scores(**arguments of `evaluate`) → by name, and the outputs that were scored."""
    monkeypatch.setattr(verbs, "Translator", OnTokens)

    def evaluate(**arguments):
        report, outputs = verbs.evaluate(SOURCES, REFERENCES, num_bootstrap=0, **arguments)
        return {score.name: score.value for score in report.scores}, outputs

    return evaluate


def test_plain_text_goes_in_and_plain_text_is_scored(scores):
    found, outputs = scores(folder="model", moses=True)
    assert outputs == REFERENCES
    assert all(value == pytest.approx(100.0) for value in found.values())
    assert scores(folder="model")[0]["BLEU"] == 0.0, "without it, the model does not know the words"


def test_tokens_of_a_file_are_detokenised(scores):
    hypotheses = {"hypotheses": list(TOKENS.values()), "languages": LANGUAGES}
    assert scores(**hypotheses, moses=True)[1] == REFERENCES
    assert scores(**hypotheses)[1] == list(TOKENS.values())
