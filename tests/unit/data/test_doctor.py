import gzip
import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

import capsnmt
from capsnmt.cli import app
from capsnmt.config import LanguagesConfig, RunConfig
from capsnmt.data import doctor, filters
from capsnmt.data.corpus import read_lines
from capsnmt.data.doctor import DoctorReport, examine_files, examine_recipe, print_report, raw_lines
from capsnmt.data.prepare import load_store, prepare
from capsnmt.errors import CapsNMTError

EN_DE = LanguagesConfig(source="en", target="de")
CLEAN = [
    (f"the old man bought {number} books in the city", f"der alte Mann hat in der Stadt {number} Bücher gekauft")
    for number in range(20)
]
FRENCH = "les enfants jouent dans le jardin derrière la maison"


def write(folder: Path, name: str, pairs: list[tuple[str, str]]) -> tuple[Path, Path]:
    files = folder / f"{name}.en", folder / f"{name}.de"
    for side, file in enumerate(files):
        file.write_bytes("".join(pair[side] + "\n" for pair in pairs).encode("utf-8"))
    return files


def recipe(folder: Path, **data: Any) -> RunConfig:
    texts = {name: {"source": f"{name}.en", "target": f"{name}.de"} for name in ("train", "valid", "test")}
    return RunConfig.model_validate(
        {
            "languages": {"source": "en", "target": "de"},
            "data": {"root": str(folder), **texts, "store": str(folder / "store"), **data},
            "text": {"subwords": {"type": "char", "vocabulary": 200, "byte_fallback": False}},
            "model": {"system": "any"},
            "training": {"steps": 1, "learning_rate": 0.1},
            "output": str(folder / "model"),
        }
    )


def found(report: DoctorReport) -> dict[tuple[str, str], tuple[int, list[int]]]:
    return {
        (finding.part, finding.what): (finding.count, [line for line, _ in finding.examples])
        for finding in report.findings
    }


# ---------------------------------------------------------------- the reader of bytes


@given(
    st.binary(max_size=200) | st.lists(st.sampled_from([b"\n", b"\r", b"\xe2\x80\xa8", b"a", b"\xc3"])).map(b"".join)
)
@example(b"")
@example(b"\xef\xbb\xbf")
@example(b"\xef\xbb\xbf\n")
@example("zwölf\u2028Bögen".encode())
def test_every_line_feed_ends_a_line_and_nothing_else_does(raw: bytes) -> None:
    expected = raw.split(b"\n")
    if not expected[-1]:
        expected.pop()
    for limit in (3, 8, 1 << 20):  # the small ones cut lines
        lines = list(raw_lines(io.BytesIO(raw), limit=limit))
        assert len(lines) == raw.count(b"\n") + (not raw.endswith(b"\n") and raw != b"")
        assert [line.is_valid for line in lines] == [is_utf8(line) for line in expected]


def is_utf8(raw: bytes) -> bool:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


@given(st.lists(st.text(st.characters(exclude_characters="\n", codec="utf-8"))), st.sampled_from(["\n", "\r\n"]))
def test_valid_text_is_read_as_prepare_reads_it(lines: list[str], end: str) -> None:
    raw = end.join(lines).encode("utf-8")
    with tempfile.NamedTemporaryFile() as file:
        file.write(raw)
        file.flush()
        assert [line.text for line in raw_lines(io.BytesIO(raw))] == list(read_lines(file.name))


def test_a_long_line_is_cut_at_a_character_and_checked_to_its_end() -> None:
    raw = "ää".encode() * 10 + b"\n" + "ää".encode() * 10 + b"\xff\nend"
    first, second, last = raw_lines(io.BytesIO(raw), limit=7)
    assert (first.text, first.is_valid) == ("äää", True)
    assert not second.is_valid
    assert (last.text, last.is_valid) == ("end", True)


# ---------------------------------------------------------------- what it finds


def test_a_clean_corpus_has_no_findings(tmp_path: Path) -> None:
    for name, pairs in {"train": CLEAN[:10], "valid": CLEAN[10:15], "test": CLEAN[15:]}.items():
        write(tmp_path, name, pairs)
    report = examine_recipe(recipe(tmp_path))
    assert (report.findings, report.notes, report.kept, report.would_stop) == ([], [], 10, False)
    assert report.lines["valid"] == {str(tmp_path / "valid.en"): 5, str(tmp_path / "valid.de"): 5}


PLANTED = {
    21: ("", "leer"),
    22: ("blank", " \u200b\u00a0"),  # nothing is left of it
    23: ("7 " * 251, "7 " * 251),
    24: ("1" * 2501, "1" * 2501),
    25: ("one two three four five six seven eight nine", "eins zwei"),
    26: CLEAN[0],
    27: (f"  {CLEAN[0][0]}", CLEAN[0][1]),
    28: ("The sentence is in valid", "der Satz ist auch in valid"),
    29: ("is THIS in test??", "ist das in test?"),
    30: (FRENCH, "die Kinder spielen im Garten hinter dem Haus"),
    31: ("a lost \ufffd character", "ein verlorenes Zeichen"),
    32: ("a bell \x07 and\x85 more", "eine Glocke und mehr davon"),
    33: ("a tab\there", "ein Tabulator hier"),
    34: ("a separator\u2028inside", "ein Trenner\u2028innen"),
    35: ("in the target too", "auch im Ziel \ufffd"),
}
EXPECTED = {
    ("train", "empty side"): (2, [21, 22]),
    ("train", "over-long (> 250 words or 2500 characters)"): (2, [23, 24]),
    ("train", "length ratio (> 4)"): (1, [25]),
    ("train", "duplicate pair"): (2, [26, 27]),
    ("train", "source is in valid"): (1, [28]),
    ("train", "source is in test"): (1, [29]),
    ("train", "probably wrong language"): (1, [30]),
    ("train", "U+FFFD (lost character)"): (2, [31, 35]),
    ("train", "control character"): (1, [32]),
    ("train", "TAB"): (1, [33]),
}


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    write(tmp_path, "train", [*CLEAN, *PLANTED.values()])
    write(tmp_path, "valid", [("The sentence is in valid.", "Der Satz ist auch in valid.")])
    write(tmp_path, "test", [("Is this in test?", "Ist das in test?")])
    return tmp_path


def test_every_planted_fault_is_found_with_its_line(planted: Path) -> None:
    report = examine_recipe(recipe(planted))
    assert found(report) == EXPECTED
    assert not report.would_stop
    assert {finding.severity for finding in report.findings[1:]} == {"information"}
    assert report.findings[0].severity == "filtered by config"  # empty pairs always are
    assert report.kept == 33
    assert (report.findings[0].total, report.findings[0].share) == (35, 2 / 35)


@pytest.mark.parametrize("change", ["crlf", "bom", "unterminated", "gz", "small chunks"])
def test_the_form_of_the_files_changes_nothing(planted: Path, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {name: {"source": f"{name}.en", "target": f"{name}.de"} for name in ("train", "valid", "test")}
    for files in names.values():
        for key, name in files.items():
            raw = (planted / name).read_bytes()
            if change == "crlf":
                raw = raw.replace(b"\n", b"\r\n")
            elif change == "bom":
                raw = b"\xef\xbb\xbf" + raw
            elif change == "unterminated":
                raw = raw.removesuffix(b"\n")
            elif change == "gz":
                raw, files[key] = gzip.compress(raw), f"{name}.gz"
            (planted / files[key]).write_bytes(raw)
    if change == "small chunks":
        monkeypatch.setattr(doctor, "_CHUNK_PAIRS", 3)
    assert found(examine_recipe(recipe(planted, **names))) == EXPECTED


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"deduplicate": True},
        {"max_words": 9},
        {"max_characters": 60, "max_ratio": 2.0},
        {"wrong_language": True, "drop_overlap": True},
        {"deduplicate": True, "max_words": 8, "max_ratio": 1.5, "wrong_language": True, "drop_overlap": True},
    ],
)
def test_doctor_and_prepare_agree(planted: Path, settings: dict[str, Any]) -> None:
    config = recipe(planted, filters=settings, max_tokens=5000)
    report = examine_recipe(config)
    info = load_store(prepare(config, progress=False)).info
    assert report.kept == info["train"]["kept"] < 34
    filtered = [finding for finding in report.findings if finding.severity == "filtered by config"]
    left_out = {key: info["train"][key] for key in info["train"] if key not in ("read", "kept", "too_long")}
    if len(settings) < 2:  # otherwise a pair may have several reasons, of which prepare counts the first
        assert sorted(finding.count for finding in filtered) == sorted(left_out.values())
    assert sum(finding.count for finding in filtered) >= sum(left_out.values())


def test_bad_utf8_is_counted_to_the_end(tmp_path: Path) -> None:
    source, target = write(tmp_path, "text", CLEAN)
    lines = source.read_bytes().split(b"\n")
    for number in (2, 5, 6, 9, 13, 17, 20):
        lines[number - 1] = b"caf\xe9 \n"[:-1]
    source.write_bytes(b"\n".join(lines))
    target.write_bytes(target.read_bytes().replace("Bücher".encode(), b"B\xfccher", 1))
    report = examine_files(source, target, languages=EN_DE)
    assert found(report) == {
        ("corpus", "bad UTF-8 in source"): (7, [2, 5, 6, 9, 13]),
        ("corpus", "bad UTF-8 in target"): (1, [1]),
    }
    assert report.findings[0].examples[0][1] == "caf\\xe9 "
    assert report.findings[0].total == 20
    assert report.would_stop


def test_differing_line_counts(tmp_path: Path) -> None:
    source, target = write(tmp_path, "text", CLEAN)
    with target.open("ab") as file:
        file.write(b"more\nb\xffd\nlast")
    report = examine_files(source, target, languages=EN_DE)
    assert found(report) == {
        ("corpus", "line counts differ"): (3, [21]),
        ("corpus", "bad UTF-8 in target"): (1, [22]),
    }
    assert f"{source} has 20 lines, {target} has 23 lines" in report.findings[0].examples[0][1]
    assert report.lines == {"corpus": {str(source): 20, str(target): 23}}
    assert report.would_stop


def test_a_tsv(tmp_path: Path) -> None:
    good = [f"{source}\t{target}\tattribution\n".encode() for source, target in CLEAN]
    (tmp_path / "train.tsv").write_bytes(b"".join([*good, b"no tab\n", b"\t\n", b"b\xe9d\tline\n", good[2]]))
    for name in ("valid", "test"):
        write(tmp_path, name, [("hello", "hallo")])
    report = examine_recipe(recipe(tmp_path, train={"tsv": "train.tsv"}))
    assert found(report) == {
        ("train", "bad UTF-8"): (1, [23]),
        ("train", "no TAB between source and target"): (1, [21]),
        ("train", "empty side"): (1, [22]),
        ("train", "duplicate pair"): (1, [24]),
    }
    assert [finding.severity for finding in report.findings[:2]] == ["stops prepare"] * 2
    assert report.kept == 21


@pytest.mark.parametrize("drop_overlap", [False, True])
def test_a_fault_in_test_stops_prepare_only_if_prepare_reads_it(planted: Path, drop_overlap: bool) -> None:
    with (planted / "test.en").open("ab") as file:
        file.write(b"one more\n")
    config = recipe(planted, filters={"drop_overlap": drop_overlap})
    report = examine_recipe(config)
    assert found(report)["test", "line counts differ"] == (1, [2])
    assert report.would_stop is drop_overlap
    if drop_overlap:
        with pytest.raises(CapsNMTError, match="2 lines"):
            prepare(config, progress=False)
    else:
        prepare(config, progress=False)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    source, target = write(tmp_path, "text", CLEAN)
    packed = tmp_path / "packed.gz"
    packed.write_bytes(gzip.compress(os.urandom(5000))[:-100])
    for other in (tmp_path / "missing.de", tmp_path, packed):
        report = examine_files(source, other, languages=EN_DE)
        assert str(other) in next(f for f in report.findings if f.what == "cannot be read").examples[0][1]
        assert "line counts differ" not in {finding.what for finding in report.findings}
        assert report.would_stop
    target.write_bytes(b"\n" * 20)
    assert found(examine_files(source, target))["corpus", "no training pair is left"] == (1, [1])


def test_a_sample_of_languages_is_stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_SAMPLE_FROM", 10)
    monkeypatch.setattr(doctor, "_SAMPLE_EVERY", 6)
    pairs = [(f"{FRENCH} {number}", german) for number, (_, german) in enumerate(CLEAN)]
    source, target = write(tmp_path, "text", pairs)
    report = examine_files(source, target, languages=EN_DE)
    (finding,) = report.findings
    assert (finding.count, finding.total, finding.share) == (12, 12, 1.0)  # 1 to 10, 12, 18
    assert report.notes == [
        "corpus, probably wrong language: 12 pairs were judged, the first 10 and every 6th of the others"
    ]
    for name in ("train", "valid", "test"):
        write(tmp_path, name, pairs if name == "train" else CLEAN[:1])
    exact = examine_recipe(recipe(tmp_path, filters={"wrong_language": True}))  # what is filtered is counted exactly
    assert found(exact)["train", "probably wrong language"][0] == 20
    assert exact.kept == 0


def test_without_languages_or_detector_the_rest_is_examined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = write(tmp_path, "text", [*CLEAN, CLEAN[1]])
    assert "--languages en-de" in examine_files(source, target).notes[0]
    filters._language_identifier.cache_clear()
    monkeypatch.setattr(filters, "find_spec", lambda name: None)
    report = examine_files(source, target, languages=EN_DE)
    assert "py3langid" in report.notes[0]
    assert found(report) == {("corpus", "duplicate pair"): (1, [21])}


# ---------------------------------------------------------------- the verb


def test_the_table_shows_no_raw_controls_and_no_markup(tmp_path: Path) -> None:
    source, target = write(tmp_path, "text", [("a \x1b[31m [bold]b[/bold] \u202e", "c [/nothing]")])
    text = io.StringIO()
    print_report(examine_files(source, target), Console(file=text, width=200))
    assert "\\x1b[31m [bold]b[/bold] \\u202e" in text.getvalue()
    assert not {"\x1b", "\u202e"} & set(text.getvalue())


def test_exit_codes_and_json(planted: Path) -> None:
    settings = recipe(planted).model_dump(mode="json")
    (planted / "recipe.yaml").write_text(yaml.safe_dump(settings | {"data": settings["data"] | {"root": "nowhere"}}))
    arguments = ["doctor", str(planted / "recipe.yaml"), "--data", str(planted), "--json"]
    ended = CliRunner().invoke(app, [*arguments, str(planted / "report.json")])
    assert (ended.exit_code, "prepare would run; 33 training pairs stay" in ended.output) == (0, True)
    written = json.loads((planted / "report.json").read_bytes())
    assert written["prepare_would_run"] is True
    assert {
        (row["part"], row["what"]): (row["count"], [one["line"] for one in row["examples"]])
        for row in written["findings"]
    } == EXPECTED
    (planted / "valid.de").write_bytes(b"\xff\n")
    ended = CliRunner().invoke(app, [*arguments, "-"])
    assert ended.exit_code == 1
    assert json.loads(ended.stdout)["prepare_would_run"] is False


def test_the_function_takes_a_recipe_or_two_files(planted: Path) -> None:
    assert found(capsnmt.doctor(recipe(planted))) == EXPECTED
    files = {"source": planted / "train.en", "target": planted / "train.de"}
    assert capsnmt.doctor(**files, languages=EN_DE).kept == 33
    for wrong in ({}, {"source": "a"}, {"config": recipe(planted), **files}):
        with pytest.raises(CapsNMTError, match="either a recipe, or --source and --target"):
            capsnmt.doctor(**wrong)


def test_the_locale_changes_nothing(planted: Path) -> None:
    command = [sys.executable, "-m", "capsnmt", "doctor", "-s", "train.en", "-t", "train.de", "--json", "-"]
    outputs = [
        subprocess.run(
            command, cwd=planted, env={**os.environ, "LC_ALL": locale}, capture_output=True, check=True
        ).stdout
        for locale in ("C", "C.UTF-8")
    ]
    assert outputs[0] == outputs[1]
    assert len(json.loads(outputs[0])["findings"]) == 7
