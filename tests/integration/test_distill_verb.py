"""distill through the command: a model's own translations become a corpus, also when it is killed on the way."""

from __future__ import annotations

import json
import signal
import subprocess
import time

import pytest

LONGER = {"steps": 150, "learning_rate": 0.01, "validate_every": 150, "checkpoint_every": 150, "log_every": 100}


@pytest.fixture(scope="module")
def taught(write_recipe, run_here, tmp_path_factory):
    """A model that was trained long enough to say something."""
    model = {"system": "simple", "width": 32, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
    recipe = write_recipe(tmp_path_factory.mktemp("taught") / "recipe.yaml", model, **LONGER)
    ended = run_here("train", recipe, "--quiet")
    assert ended.code == 0, ended.err
    return ended.lines[-1]


@pytest.fixture
def command(taught, corpus, tmp_path):
    def make(*options):
        sides = ["-s", corpus / "train.de", "-r", corpus / "train.en"]
        return ["distill", taught, *sides, "-o", tmp_path / "out", "--quiet", *options]

    return make


def test_the_corpus_is_what_translate_says(command, run_here, taught, corpus, tmp_path):
    ended = run_here(*command("--beam", 3, "--keep-repetition", "--keep-copies", "--max-ratio", 1000))
    assert ended.code == 0, ended.err
    lines = (corpus / "train.de").read_bytes()
    expected = run_here("translate", taught, "--beam", 3, stdin=lines).lines
    assert len(set(expected)) > 3
    assert (tmp_path / "out" / "train.en").read_text(encoding="utf-8").split("\n")[:-1] == [x for x in expected if x]
    assert json.loads(ended.lines[-1])["verdicts"]["kept"] == len([x for x in expected if x])


def test_the_device_reaches_the_teacher(command, run_here):
    ended = run_here(*command("--device", "cuda", "--engine", "onnx"))
    assert ended.code == 1
    assert "device cuda needs engine torch" in ended.err


def test_a_killed_process_is_continued(command, start, run_here, tmp_path):
    process = start(*command("--batch-lines", 1), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    journal = tmp_path / "out" / "translations-1-of-1.jsonl"
    deadline_s = time.monotonic() + 120
    while not (journal.exists() and journal.read_bytes().count(b"\n") > 5):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = journal.read_bytes()
    assert run_here(*command("--batch-lines", 1)).code == 0
    assert journal.read_bytes().startswith(kept[: kept.rfind(b"\n") + 1])
    killed = (tmp_path / "out" / "train.en").read_bytes()
    (tmp_path / "out").rename(tmp_path / "killed")
    assert run_here(*command()).code == 0
    assert (tmp_path / "out" / "train.en").read_bytes() == killed


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--choose", "bleu"), "give --n-best"),
        (("--choose", "bleu", "--command", "cat"), "neither --choose bleu nor --min-score"),
        (("--min-score", "-1", "--command", "cat"), "neither --choose bleu nor --min-score"),
    ],
)
def test_options_that_would_do_nothing_are_refused(options, told, command, run_here):
    verb, model, *rest = command(*options)
    ended = run_here(verb, *([] if "--command" in options else [model]), *rest)
    assert ended.code == 1
    assert told in ended.err


def test_one_teacher_at_a_time(command, run_here):
    ended = run_here(*command("--command", "cat"))
    assert ended.code == 1
    assert "one teacher" in ended.err
