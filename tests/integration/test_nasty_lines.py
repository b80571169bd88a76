"""One line in, one line out, through the real command, with a model that has learnt next to nothing.

Such a model is the harder case: it writes bytes at random, loses every span and never ends of its own accord.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LINES = ["eins zwei", "", "Fünf für 3 Größen", "völlig: Ω 🎉", "sechs\u2028sieben", "DREI VIER {{name}}"]
INPUT = "".join(f"{line}\n" for line in LINES).encode()


@pytest.fixture(scope="module")
def guessing(write_recipe, run_here, tmp_path_factory) -> Path:
    """A folder with byte fallback, protected spans and reshaping, after six updates."""
    path = tmp_path_factory.mktemp("guessing") / "recipe.yaml"
    model = {"system": "capsnmt", "width": 16, "encoder_layers": 1, "decoder_layers": 1, "num_capsules": [2]}
    values = yaml.safe_load(write_recipe(path, model).read_text(encoding="utf-8"))
    values["data"]["store"] = str(path.parent / "store")
    values["text"]["protect"] = ["placeholder", "tag", "url", "email", "number"]
    values["text"]["subwords"] |= {"vocabulary": 300, "byte_fallback": True, "protected_symbols": 3}
    values["decoding"] = {"beam": 2, "max_source_tokens": 60, "fit_shape": True}
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    ended = run_here("train", path, "--quiet")
    assert ended.code == 0, ended.err
    return Path(ended.lines[-1])


def run_with(variables: dict[str, str | None], *argv: object, stdin: bytes = b"") -> bytes:
    """The real command with these variables of the environment set, or taken out where None is given."""
    changed = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    environment = {name: value for name, value in changed.items() if value is not None}
    command = [sys.executable, "-m", "capsnmt", *map(str, argv)]
    ended = subprocess.run(command, input=stdin, capture_output=True, env=environment, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")
    return ended.stdout


def test_nasty_lines_and_protected_spans(guessing, tmp_path):
    command = [sys.executable, BENCHMARKS / "nasty_lines.py", guessing, "--lines", 300, "--sentences", 80, "--huge", 0]
    command += ["--beam", 1, "--json", tmp_path / "report.json"]
    ended = subprocess.run([*map(str, command)], capture_output=True, timeout=300, check=False, text=True)
    assert ended.returncode == 0, ended.stdout[-5000:] + ended.stderr[-2000:]
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert report["broken"] == {}
    assert (report["nasty"]["lines"], report["plain"]["lines"], report["spans"]["sentences"]) == (300, 30, 80)
    assert {"empty", "repaired"} <= set(report["nasty"]["statuses"])
    assert "failed" not in report["nasty"]["statuses"]
    assert report["nasty"]["lines_with_spans"] > 30


@pytest.mark.parametrize(
    ("changes", "promise"),
    [
        ({}, None),
        ({"line": 3}, "order"),
        ({"source": "Ask  {{x}} for 5."}, "source"),
        ({"translation": "{{x}} 5\u2028"}, "line break"),
        ({"translation": "{{x}} 5" + 60 * " zu viel"}, "3 x source"),
        ({"translation": "{{x}} 5 ⦅0⦆"}, "reserved symbol"),
        ({"translation": "{{x}} 55"}, "protected spans"),
        ({"translation": "{{x}} 5 5"}, "protected spans"),
        ({"translation": "{{x}} 5", "status": "empty"}, "as it came"),
    ],
)
def test_the_check_can_fail(guessing, monkeypatch, changes, promise):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from nasty_lines import Promises

    from capsnmt.folder import load_text, read_folder_config

    promises = Promises(load_text(guessing, read_folder_config(guessing)))
    source = "Ask {{x}} for 5."
    record = {"line": 2, "source": source, "translation": "{{x}} um 5 bitten.", "status": "ok"} | changes
    promises.check(1, source, record, {})
    assert len(promises.broken) == (promise is not None)
    assert all(promise in broken for broken in promises.broken)


@pytest.mark.parametrize(
    "variables",
    [
        {"LC_ALL": "C"},
        {"LC_ALL": None, "LANG": ""},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"},
    ],
    ids=["C", "no LANG", "C without UTF-8 mode", "ascii"],
)
def test_the_locale_changes_nothing(guessing, run_here, tmp_path, variables):
    (tmp_path / "terms.tsv").write_text("für\tfürs\n", encoding="utf-8")
    options = ["translate", guessing, "--format", "json", "--glossary", tmp_path / "terms.tsv"]
    found = run_with({"PYTHONIOENCODING": None} | variables, *options, stdin=INPUT)
    assert found == run_here(*options, stdin=INPUT).out
    records = [json.loads(line) for line in found.decode("utf-8").split("\n")[:-1]]
    assert [record["source"] for record in records] == LINES
    assert "fürs" in records[2]["translation"]


def test_line_ends_and_a_byte_order_mark_change_nothing(guessing, run_here):
    for options in ([], ["--format", "json"]):
        plain = run_here("translate", guessing, *options, stdin=INPUT)
        assert len(plain.lines) == len(LINES)
        assert run_here("translate", guessing, *options, stdin=INPUT.replace(b"\n", b"\r\n")).out == plain.out
        assert run_here("translate", guessing, *options, stdin=b"\xef\xbb\xbf" + INPUT).out == plain.out


def test_a_break_that_only_unicode_knows_is_a_space(guessing, run_here):
    ended = run_here("translate", guessing, stdin="sechs\u2028sieben\nsechs sieben\n".encode())
    assert ended.lines[0] == ended.lines[1]


def test_a_status_for_every_line(guessing, run_here):
    lines = [b"eins zwei", b"", b"\xff\xfe eins", b"\xff", b"12 {{a}}", b"eins " * 200]
    ended = run_here("translate", guessing, "--format", "json", stdin=b"".join(line + b"\n" for line in lines))
    records = [json.loads(line) for line in ended.lines]
    assert [record["status"] == "empty" for record in records] == [False, True, False, True, True, False]
    assert ["invalid_characters" in record["notes"] for record in records] == [False, False, True, True, False, False]
    assert records[2]["status"] in ("invalid_characters", "repaired")
    assert records[5]["status"] in ("cut", "repaired")
    assert "cut" in records[5]["notes"]
    assert [records[number]["translation"] for number in (1, 3, 4)] == ["", "\ufffd", "12 {{a}}"]
