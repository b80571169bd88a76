"""reproduce through the command: trains, distils, evaluates, reports. What kills do: test_reproduce_kills.py."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from capsnmt import __version__
from capsnmt.analysis import results, speed

ROOT = Path(__file__).resolve().parents[2]
TIMED = ("tokens_per_s", "minutes", "finished")


@pytest.fixture
def suite(write_recipe, tiny_config, tmp_path):
    """suite(name) → a suite file whose runs lie in a folder of that name."""
    simple = write_recipe(tmp_path / "simple.yaml", tiny_config("simple"), steps=4)
    capsnmt = write_recipe(tmp_path / "capsnmt.yaml", tiny_config("capsnmt"), steps=4)
    rows = {
        "simple": {"recipe": str(simple), "label": "Simple aggregation", "paper_bleu": 21.0},
        "student": {"recipe": str(simple), "distilled_from": "simple"},
        "caps": {"recipe": str(capsnmt), "over": {"model.num_iterations": [1, 2]}},
    }
    report = [
        {"kind": "table", "title": "Systems", "rows": ["simple", "student", "caps"], "against": "simple"},
        {"kind": "sweep", "title": "Iterations", "rows": ["caps"]},
        {"kind": "distillation", "title": "Taught", "rows": ["student"]},
        {
            "kind": "by_length",
            "title": "By length",
            "rows": ["simple", "student"],
            "against": "simple",
            "text": "Short <b>lines</b>.",
        },
        {"kind": "training", "title": "On the way", "rows": ["caps"], "values": ["valid.perplexity", "routing.used"]},
        {"kind": "routing", "title": "What capsules take", "rows": ["caps-2"], "sentences": ["eins zwei"]},
        {"kind": "complexity", "title": "What growing sentences cost", "rows": ["simple", "caps-2"]},
        {"kind": "latency", "title": "What a test set costs", "rows": ["caps-2", "simple"]},
    ]

    def write(name):
        path = tmp_path / f"{name}.yaml"
        values = {"title": "A small study", "output": str(tmp_path / name), "rows": rows, "report": report}
        path.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
        return path

    return write


def scores(folder):
    found = json.loads((folder / f"report-{folder.name}" / "results.json").read_text(encoding="utf-8"))
    return [{key: value for key, value in run.items() if key not in (*TIMED, "commands")} for run in found["runs"]]


def section(text, title):
    """The cells of a section's first table, without its heading."""
    lines = text.partition(f"## {title}\n")[2].partition("\n## ")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return cells[2:]


@pytest.mark.timeout(900)
def test_it_reports_and_makes_again_only_what_is_missing(suite, run_here, tmp_path, monkeypatch):
    monkeypatch.setattr(results, "FEWEST_SENTENCES", 1)  # the test set is small
    once = ("--repeats", "1", "--pause", "0")
    monkeypatch.setattr(speed, "GROWTH_REPEATS", (*once, "--step-repeats", "1"))
    monkeypatch.setattr(speed, "LATENCY_REPEATS", (*once, "--sentences", "2", "--passes", "1"))
    planned = run_here("reproduce", suite("calm"), "--dry-run")
    assert [line.partition(":")[0] for line in planned.lines] == ["simple-s1", "caps-1-s1", "caps-2-s1", "student-s1"]
    assert all(line.endswith("to do") for line in planned.lines)
    assert not (tmp_path / "calm").exists()

    ended = run_here("reproduce", suite("calm"))
    assert ended.code == 0, ended.err
    report = tmp_path / "calm" / "report-calm"
    text = (report / "report.md").read_text(encoding="utf-8")
    for said in (
        "Simple aggregation",
        "21.0 (theirs)",
        "(p = ",
        "Signatures: ",
        "## Iterations",
        "capsnmt train",
        "% of the gap closed",
        "capsnmt distill",
        "entropy, iteration 2",
        "target alone",
        "ms a sentence, beam 8",
        "`capsnmt bench growth",
        "`capsnmt bench latency",
        f"Made by `capsnmt reproduce {suite('calm')}`, capsnmt {__version__}.",
    ):
        assert said in text
    costs = section(text, "What a test set costs")
    assert [row[0] for row in costs] == ["caps-2", "Simple aggregation"]
    measured = json.loads((report / "latency.json").read_text(encoding="utf-8"))["rows"]
    for beam, column in ((1, 3), (8, 4)):
        first, second = (row["median_ms"] for row in measured if (row["protocol"], row["beam"]) == ("test set", beam))
        assert [row[column] for row in costs] == ["1.00 ×", f"{first / second:.2f} ×"]
    page = (report / "report.html").read_text(encoding="utf-8")
    assert "Short &lt;b&gt;lines" in page
    assert page.count("data:image/png;base64") == len(list((report / "figures").iterdir())) >= 6
    assert (report / "results.csv").read_text(encoding="utf-8").count("\n") == 1 + 4
    (manifest,) = (tmp_path / "calm").glob("distilled-by-simple-s1-*/manifest.json")

    for change, told in (
        ("training.label_smoothing: 0.3", "label_smoothing"),
        ("training.steps: 5", "training.steps: 4 -> 5"),
    ):
        path = suite("calm")
        path.write_text(f"{path.read_text(encoding='utf-8')}set: {{{change}}}\n", encoding="utf-8")
        refused = run_here("reproduce", path)
        assert refused.code == 1
        assert told in refused.err, "results of other settings are not this suite's"

    before = scores(tmp_path / "calm")
    shutil.rmtree(tmp_path / "calm" / "simple-s1")  # its record stays
    (tmp_path / "calm" / "student-s1.json").unlink()
    shutil.rmtree(tmp_path / "calm" / "student-s1")
    shutil.rmtree(manifest.parent)
    again = run_here("reproduce", suite("calm"))
    assert again.code == 0, again.err
    assert "4 runs, 3 of them done, 1 to do" in again.err
    assert "simple-s1: done" in again.err, "a student needs its teacher's model, not its record"
    assert (report / "report.md").read_text(encoding="utf-8").count("student-s1") == text.count("student-s1")
    assert scores(tmp_path / "calm") == before


@pytest.fixture
def suite_of_two(write_recipe, tiny_config, tmp_path):
    """suite_of_two(name) → a teacher and its student, each trained by two processes, in a folder of that name."""
    settings = {"steps": 40, "accumulate": 2, "batch_tokens": 32, "validate_every": 20}
    recipe = write_recipe(tmp_path / "simple.yaml", tiny_config("simple", dropout=0.1), **settings)
    rows = {"teacher": {"recipe": str(recipe)}, "student": {"recipe": str(recipe), "distilled_from": "teacher"}}

    def write(name):
        path = tmp_path / f"{name}.yaml"
        values = {"title": "Two", "output": str(tmp_path / name), "processes": 2, "rows": rows}
        path.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
        return path

    return write


def started_for(folder):
    """Process ids of what works for a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().decode()
            except OSError:
                continue
            if str(folder) in words and "reproduce" not in words.split("\0"):
                found.append(int(entry.name))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere orphans live, and there is no /proc")
@pytest.mark.timeout(900)
def test_two_processes_train_each_run_and_end_with_the_command(suite_of_two, run_here, tmp_path):
    """Killed while they train, and started again, the scores are those of a suite that was left alone."""
    calm, rough = tmp_path / "calm", tmp_path / "rough"
    planned = run_here("reproduce", suite_of_two("calm"), "--dry-run")
    assert all(line.endswith("2 processes, to do") for line in planned.lines)
    ended = run_here("reproduce", suite_of_two("calm"))
    assert ended.code == 0, ended.err + (calm / "teacher-s1.log").read_text(encoding="utf-8")
    assert "2 x cpu" in (calm / "teacher-s1.log").read_text(encoding="utf-8"), "both trained"
    (manifest,) = calm.glob("distilled-by-teacher-s1-*/manifest.json")
    corpus = json.loads(manifest.read_text(encoding="utf-8"))
    assert corpus["shards"] == 2, "both translated"
    text = (calm / "report-calm" / "report.md").read_text(encoding="utf-8")
    assert text.count("torchrun --standalone --nproc-per-node 2 -m capsnmt train") == 2
    assert "torchrun --standalone --nproc-per-node 2 -m capsnmt distill" in text
    assert "A training had 2 processes of " in text

    command = [sys.executable, "-m", "capsnmt", "reproduce", str(suite_of_two("rough")), "--rows", "teacher"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    waited_until = time.monotonic() + 240
    while not any(rough.glob("teacher-s1/checkpoints/step-*")):
        assert process.poll() is None
        assert time.monotonic() < waited_until
        time.sleep(0.02)
    assert len(started_for(rough)) == 3, "torchrun and its two"
    process.kill()
    process.wait()
    waited_until = time.monotonic() + 20
    while started_for(rough):
        assert time.monotonic() < waited_until, "what it started ends with it"
        time.sleep(0.1)
    assert run_here("reproduce", suite_of_two("rough"), "--rows", "teacher").code == 0
    assert scores(rough) == [row for row in scores(calm) if row["row"] == "teacher"]


@pytest.mark.parametrize(("suite", "pairs"), [("wmt14-en-de", "4,500,000"), ("wmt14-en-fr", "36,000,000")])
def test_a_dry_run_says_what_the_papers_tables_would_cost(suite, pairs, run_here, monkeypatch):
    monkeypatch.chdir(ROOT)  # where its recipes are named from
    ended = run_here("reproduce", f"suites/{suite}.yaml", "--dry-run", "--devices", "8xM40")
    assert ended.code == 0, ended.err
    assert "MORE than" not in ended.out.decode("utf-8"), "every training fits into the paper's devices"
    total = re.fullmatch(r"all of it on 8xM40: ([\d.]+) days, ([\d,]+) GB of disk", ended.lines[-1])
    trained = [float(days) for days in re.findall(r": training ([\d.]+) days", "\n".join(ended.lines))]
    assert total
    assert float(total[1]) > sum(trained) > 50
    taught = [line for line in ended.lines if f"teacher's translations of {pairs} sentences" in line]
    assert len(taught) == 1, "three students share what one teacher translated"


def test_devices_are_for_a_dry_run(run_here, suite):
    ended = run_here("reproduce", suite("calm"), "--devices", "8xM40")
    assert ended.code == 1
    assert "--devices 8xM40 is for --dry-run" in ended.err


def test_rows_that_do_not_exist_are_told_before_anything_is_trained(suite, run_here, tmp_path):
    path = suite("wrong")
    path.write_text(path.read_text(encoding="utf-8").replace("against: simple", "against: simpel"), encoding="utf-8")
    ended = run_here("reproduce", path)
    assert ended.code == 1
    assert "simpel, which is no row" in ended.err
    assert not (tmp_path / "wrong").exists()
