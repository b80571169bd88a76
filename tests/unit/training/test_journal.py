"""metrics.jsonl, also after a crash."""

from __future__ import annotations

import json

from capsnmt.training.journal import Journal


def records(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def write(folder, *steps, start_step=0, show=False):
    with Journal(folder, start_step, 10, show=show) as journal:
        for step in steps:
            journal.record("train", step, loss=1.0 / step, note=None)


def test_every_record_is_a_line_of_json(tmp_path):
    write(tmp_path, 1, 2)
    assert records(tmp_path) == [
        {"kind": "train", "step": 1, "loss": 1.0, "note": None},
        {"kind": "train", "step": 2, "loss": 0.5, "note": None},
    ]


def test_a_record_is_on_disk_at_once(tmp_path):
    with Journal(tmp_path, 0, 10, show=False) as journal:
        journal.record("valid", 1, bleu=3.0)
        assert [record["bleu"] for record in records(tmp_path)] == [3.0]


def test_resuming_drops_what_came_after_the_checkpoint(tmp_path):
    write(tmp_path, 1, 2, 3, 4)
    write(tmp_path, 3, start_step=2)
    assert [record["step"] for record in records(tmp_path)] == [1, 2, 3]


def test_a_fresh_start_drops_all(tmp_path):
    write(tmp_path, 1, 2)  # the run crashed before its first checkpoint
    write(tmp_path, 1)
    assert [record["step"] for record in records(tmp_path)] == [1]


def test_a_line_cut_off_by_a_crash_is_dropped(tmp_path):
    write(tmp_path, 1, 2)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')
    write(tmp_path, 3, start_step=2)
    assert [record["step"] for record in records(tmp_path)] == [1, 2, 3]


def test_it_says_nothing_when_it_should_not(tmp_path, capsys):
    write(tmp_path, 1)
    assert capsys.readouterr() == ("", "")


def test_it_shows_every_record_on_stderr(tmp_path, capsys):
    write(tmp_path, 4, show=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "step 4/10" in err
    assert "loss 0.25" in err


def test_tensorboard_gets_the_numbers(tmp_path):
    write(tmp_path, 1)
    assert list((tmp_path / "tensorboard").glob("events.*"))
