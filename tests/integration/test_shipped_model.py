"""The model that ships translates everyday sentences, at once, without torch and without a word about where it lies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from capsnmt import Translator
from capsnmt.zoo import DEFAULT, model_folder, shipped_models

EVERYDAY = Path(__file__).with_name("everyday.tsv").read_text(encoding="utf-8").split("\n")[:-1]
LARGEST_MB = 25
WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # an import of it fails
from capsnmt.cli import main
main()
"""


@pytest.fixture(scope="module")
def translator():
    return Translator()


def cases():
    """English, one of the German words that must come; a third column says why the model is known to fail."""
    for line in EVERYDAY:
        english, keywords, *why = line.split("\t")
        marks = [pytest.mark.xfail(reason=why[0], strict=True)] if why else []
        yield pytest.param(english, keywords.split("|"), marks=marks, id=english)


@pytest.mark.parametrize(("english", "keywords"), list(cases()))
def test_everyday_sentences(translator, english, keywords):
    german = translator.translate(english)
    assert any(keyword.lower() in german.lower() for keyword in keywords), german


def test_fifty_of_them_are_translated():
    assert sum(line.count("\t") == 1 for line in EVERYDAY) == 50


def test_the_command_needs_no_torch_and_no_folder():
    command = [sys.executable, "-c", WITHOUT_TORCH, "translate"]
    ended = subprocess.run(command, input="I would like a cup of tea.\n", capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert "Tee" in ended.stdout
    assert ended.stdout.count("\n") == 1


@pytest.mark.parametrize("name", shipped_models())
def test_size_and_card(name):
    folder = shipped_models()[name]
    assert sum(path.stat().st_size for path in folder.rglob("*")) <= LARGEST_MB * 1e6
    card = (folder / "card.md").read_text(encoding="utf-8")
    for said in ("CC BY 2.0", "tatoeba.org", "BLEU", "Limits"):
        assert said in card


def test_what_a_user_means_by_a_model(tmp_path, monkeypatch):
    assert model_folder() == shipped_models()[DEFAULT] == model_folder(DEFAULT)
    monkeypatch.chdir(tmp_path)
    (tmp_path / DEFAULT).mkdir()
    assert model_folder(DEFAULT) == Path(DEFAULT)  # the user's own
    assert model_folder("no-such-thing") == Path("no-such-thing")
