"""How translations are written."""

from __future__ import annotations

import json

import pytest

from capsnmt.decoding.formats import as_json, as_nbest, as_text
from capsnmt.decoding.translation import Translation


def test_json_is_one_line_for_every_reader():
    source = "a\nb\rc\x0bd\x0ce\x1cf\x1dg\x1eh\x85i\u2028j\u2029k"
    line = as_json(0, Translation(source, "x", -1.0, (("x", -1.0),), "ok"))
    assert len(line.splitlines()) == 1
    assert json.loads(line)["source"] == source


def test_json_says_what_happened():
    found = json.loads(as_json(6, Translation("é", "é", float("-inf"), (), "repaired", ("loop_repaired", "split"))))
    assert found == {
        "line": 7,
        "status": "repaired",
        "notes": ["loop_repaired", "split"],
        "source": "é",
        "translation": "é",
        "score": None,
        "hypotheses": [],
    }


@pytest.mark.parametrize(
    ("hypotheses", "expected"), [((), "3 ||| t ||| 0.000000"), ((("u", -1.5),), "3 ||| u ||| -1.500000")]
)
def test_nbest(hypotheses, expected):
    assert as_nbest(3, Translation("s", "t", None, hypotheses, "ok")) == expected
    assert as_text(3, Translation("s", "t", None, hypotheses, "ok")) == "t"
