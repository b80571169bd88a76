"""export through the command, and what is left of a folder that only translates."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys

import pytest

from capsnmt.runtime.manifest import MANIFEST, RUNTIME, read_manifest

LINES = ["eins zwei", "", "drei", "vier fünf sechs", "sieben acht neun null"]
INPUT = "".join(line + "\n" for line in LINES).encode()
ANY = ("--max-bleu-loss", 100, "--max-chrf-loss", 100, "--min-speed-up", 0)  # tiny models lose much and win nothing

# Runs the command in a process in which torch, onnx and what comes with training cannot be imported.
WITHOUT = """
import sys
for name in ("torch", "onnx", "safetensors", "sacrebleu", "pyarrow"):
    sys.modules[name] = None
from capsnmt.cli import main
main(sys.argv[1:])
"""


@pytest.fixture
def copy(trained, tiny_config, tmp_path):
    """copy(system) → a trained folder that a test may change."""

    def make(system):
        return shutil.copytree(trained(system, tiny_config(system)), tmp_path / system)

    return make


def run_without_torch(*argv, stdin=b""):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", WITHOUT, *map(str, argv)]
    return subprocess.run(command, input=stdin, capture_output=True, env=environment, timeout=120, check=False)


def leave_only_the_runtime(folder):
    for path in folder.iterdir():
        if path.name != RUNTIME:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_a_runtime_only_folder_translates_without_torch(system, copy, run_here, tmp_path):
    folder = copy(system)
    expected = run_here("translate", folder, "--engine", "torch", stdin=INPUT)
    assert run_here("export", folder, "--precision", "fp32").code == 0
    assert json.loads((folder / RUNTIME / MANIFEST).read_text())["verified"]["max_log_prob_difference"] < 1e-4
    leave_only_the_runtime(folder)
    ended = run_without_torch("translate", folder, stdin=INPUT)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert ended.stdout == expected.out

    (tmp_path / "s").write_text("eins\nzwei drei\n")
    (tmp_path / "t").write_text("one\ntwo three\n")
    scored = run_without_torch("score", folder, "-s", tmp_path / "s", "-t", tmp_path / "t")
    assert scored.returncode == 0, scored.stderr
    assert len(scored.stdout.split()) == 2


def test_an_ensemble_of_exported_models_is_that_of_torch(copy, run_here):
    folders = [copy("capsnmt"), copy("transformer")]
    expected = run_here("translate", *folders, stdin=INPUT)
    assert (expected.code, len(expected.lines)) == (0, len(LINES)), expected.err
    for folder in folders:  # first one model on ONNX Runtime and one on torch, then both
        assert run_here("export", folder, "--precision", "fp32").code == 0
        leave_only_the_runtime(folder)
        assert run_here("translate", *folders, stdin=INPUT).out == expected.out
    ended = run_without_torch("translate", *folders, stdin=INPUT)
    assert (ended.returncode, ended.stderr, ended.stdout) == (0, b"", expected.out)


def test_int8_is_measured_and_kept(copy, run_here):
    folder = copy("capsnmt")
    ended = run_here("export", folder, *ANY)
    assert ended.code == 0, ended.err
    figures = json.loads(ended.lines[-1])["int8"]
    assert {"bleu_loss", "chrf_loss", "speed_up", "sentences", "bleu_before", "bleu_after"} <= figures.keys()
    assert figures["sentences"] == 6
    manifest = read_manifest(folder)
    assert manifest.precision == "int8"
    assert manifest.verified["int8"] == figures
    assert len(run_here("translate", folder, stdin=INPUT).lines) == len(LINES)


def test_selection_is_measured_and_can_be_left_out(copy, run_here):
    folder = copy("capsnmt")
    ended = run_here("export", folder, "--precision", "fp32", "--selection", *ANY)
    assert ended.code == 0, ended.err
    assert "bleu_loss" in json.loads(ended.lines[-1])["selection"]
    assert read_manifest(folder).lexicon is not None
    torch = run_here("translate", folder, "--engine", "torch", stdin=INPUT)
    assert run_here("translate", folder, "--no-selection", stdin=INPUT).out == torch.out
    leave_only_the_runtime(folder)
    ended = run_without_torch("translate", folder, stdin=INPUT)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert ended.stdout.count(b"\n") == len(LINES)


def test_a_runtime_outside_of_the_margin_is_refused_with_its_figures(copy, run_here):
    folder = copy("capsnmt")
    assert run_here("export", folder, "--precision", "fp32").code == 0
    before = (folder / RUNTIME / MANIFEST).read_bytes()
    ended = run_here("export", folder, "--max-bleu-loss", 100, "--max-chrf-loss", 100, "--min-speed-up", 1000)
    assert ended.code == 1
    assert "refused" in ended.err
    assert "times as fast" in ended.err
    assert "BLEU" in ended.err
    assert (folder / RUNTIME / MANIFEST).read_bytes() == before  # the old one stays
    assert not list(folder.glob(".exporting-*"))


def test_what_a_killed_export_left_is_removed_unless_it_is_at_work(copy, run_here):
    folder = copy("simple")
    (folder / ".exporting-abcdefgh" / "fp32").mkdir(parents=True)
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    refused = run_here("export", folder, "--precision", "fp32")
    assert refused.code == 1
    assert "another process is exporting" in refused.err
    assert (folder / ".exporting-abcdefgh").is_dir()
    os.close(descriptor)  # as the kernel does when a process dies
    assert run_here("export", folder, "--precision", "fp32").code == 0
    assert not list(folder.glob(".exporting-*"))


def test_int8_without_sentences_is_refused(copy, run_here, corpus):
    folder = copy("simple")
    config = (folder / "config.yaml").read_text().replace(str(corpus), str(corpus) + "-gone")
    (folder / "config.yaml").write_text(config)
    ended = run_here("export", folder)
    assert ended.code == 1
    assert "--source" in ended.err
    given = ("-s", corpus / "test.de", "-r", corpus / "test.en")
    assert run_here("export", folder, *given, *ANY).code == 0


def test_translate_takes_the_runtime_unless_the_weights_have_changed(copy, run_here, monkeypatch, caplog):
    from capsnmt.runtime.choice import choose_engine

    folder = copy("simple")
    assert choose_engine(folder) == "torch"
    assert run_here("export", folder, "--precision", "fp32").code == 0
    assert choose_engine(folder) == "onnx"
    assert choose_engine(folder, device="cuda") == "torch"
    assert choose_engine(folder, "torch") == "torch"
    with (folder / "weights.safetensors").open("ab") as file:
        file.write(b"more")
    assert choose_engine(folder) == "torch"
    assert "export" in caplog.text


@pytest.mark.parametrize("options", [("--engine", "tensorflow"), ("--engine", "onnx", "--device", "cuda")])
def test_engines_that_cannot_be_had_are_users_errors(copy, run_here, options):
    ended = run_here("translate", copy("simple"), *options, stdin=INPUT)
    assert ended.code == 1
    assert "engine" in ended.err


def test_no_runtime_no_onnx(copy, run_here):
    ended = run_here("translate", copy("simple"), "--engine", "onnx", stdin=INPUT)
    assert ended.code == 1
    assert "capsnmt export" in ended.err
