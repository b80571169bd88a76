"""Translating and distilling over Ray, two workers on this machine: the same lines, also if they are killed."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from capsnmt import cluster, verbs
from capsnmt.decoding.translation import TranslateOptions

pytest.importorskip("ray")

MODEL = Path(__file__).parents[1] / "released" / "format-1" / "capsnmt"
WORDS = ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]
PATIENCE_S = 240.0


def some_lines(count):
    generator = random.Random(count)
    return [" ".join(generator.choices(WORDS, k=generator.randrange(7))) + "\n" for _ in range(count)]


def workers_below(process):
    """Process ids of the workers that descend from it."""
    parents, workers = {}, []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
            name = (stat.parent / "cmdline").read_bytes()
        except OSError:  # it has ended meanwhile
            continue
        if name.startswith(b"ray::BlockTranslator"):
            workers.append(int(stat.parent.name))

    def descends(one):
        while one > 1 and one != process:
            one = parents.get(one, 0)
        return one == process

    return sorted(filter(descends, workers))


def wait_for(found, what):
    deadline_s = time.monotonic() + PATIENCE_S
    while not (value := found()):
        assert time.monotonic() < deadline_s, what
        time.sleep(0.05)
    return value


@pytest.mark.skipif(not Path("/proc").exists(), reason="finds the workers through /proc")
def test_killed_workers_lose_and_double_nothing(run_here, start, tmp_path):
    lines = some_lines(480)
    expected = run_here("translate", MODEL, "--batch-lines", 8, stdin="".join(lines).encode())
    assert expected.code == 0, expected.err
    output = tmp_path / "translations"
    options = ["--engine", "ray", "--workers", 2, "--batch-lines", 8, "-o", output]
    process = start("translate", MODEL, *options)
    try:
        process.stdin.write("".join(lines[:8]).encode())
        process.stdin.flush()
        wait_for(lambda: output.exists() and output.stat().st_size, "a block was not answered before more lines came")
        process.stdin.write("".join(lines[8:240]).encode())
        process.stdin.flush()
        for worker in wait_for(lambda: workers_below(process.pid), "no worker was found"):
            os.kill(worker, signal.SIGKILL)
        _, errors = process.communicate("".join(lines[240:]).encode(), timeout=PATIENCE_S)
    finally:
        process.kill()  # else a failure would wait for it
    assert process.returncode == 0, errors
    assert output.read_bytes() == expected.out


def test_what_is_no_model_folder_is_told_before_a_cluster_starts(run_here, tmp_path):
    ended = run_here("translate", tmp_path, "--engine", "ray", stdin=b"eins\n")
    assert ended.code == 1
    assert "is not a model folder" in ended.err


def test_a_shipped_model_is_sent_as_its_folder(monkeypatch):
    sent = []
    monkeypatch.setattr(cluster, "translate_blocks", lambda job, blocks, workers: sent.append(job) or iter(()))
    monkeypatch.setattr("capsnmt.zoo.shipped_models", lambda: {"xx-yy": MODEL})
    verbs.translate_blocks(cluster.Job(("xx-yy",), TranslateOptions(), engine="ray"), [])
    assert sent[0].folders == (str(MODEL.resolve()),)


def test_distilling_writes_the_same_corpus(run_here, tmp_path):
    source = tmp_path / "source.de"
    source.write_text("".join(some_lines(60)), encoding="utf-8")
    for folder, engine in (("here", ["auto"]), ("ray", ["ray", "--workers", 2])):
        output = tmp_path / folder
        ended = run_here("distill", MODEL, "-s", source, "-o", output, "--batch-lines", 8, "-q", "--engine", *engine)
        assert ended.code == 0, ended.err
    assert (tmp_path / "ray" / "manifest.json").read_bytes() == (tmp_path / "here" / "manifest.json").read_bytes()
