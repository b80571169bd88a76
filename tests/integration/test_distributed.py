"""Two gloo ranks make the updates of one process on the joined batches, also when one of them is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

RECIPE = """
languages: {source: xx, target: yy}
data:
  root: ROOT
  train: {source: train.xx, target: train.yy}
  valid: {source: train.xx, target: train.yy}
  store: ROOT/store
text: {subwords: {type: word, vocabulary: 40, protected_symbols: 0}}
model: {system: SYSTEM, width: 16, encoder_layers: 1, decoder_layers: 1, dropout: 0.0}
training:
  steps: STEPS
  batch_tokens: 64
  learning_rate: 0.01
  warmup_steps: 3
  schedule: constant
  validate_every: 1000
  validate_sentences: 0
  checkpoint_every: 2
  keep_last: 3
"""


@pytest.fixture
def recipe(tmp_path):
    lines = [" ".join(str((line * 7 + i * i) % 10) for i in range(1 + line % 6)) for line in range(120)]
    for side in ("xx", "yy"):
        (tmp_path / f"train.{side}").write_text("\n".join(lines) + "\n")

    def write(name, system="simple", steps=12):
        text = RECIPE.replace("ROOT", str(tmp_path)).replace("SYSTEM", system).replace("STEPS", str(steps))
        path = tmp_path / f"{name}.yaml"
        path.write_text(f"{text}\noutput: {tmp_path / name}\n")
        return path

    return write


def command(recipe, *options, ranks=1, restarts=0):
    launcher = [sys.executable, "-m"]
    if ranks > 1:
        launcher += ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", f"--max-restarts={restarts}"]
        launcher += ["-m"]
    return [*launcher, "capsnmt", "train", str(recipe), "--quiet", *options]


def weights(recipe):
    folder = recipe.with_suffix("")
    return load_file(sorted((folder / "checkpoints").glob("step-*"))[-1] / "weights.safetensors")


def largest_difference(first, second):
    assert first.keys() == second.keys()
    return max((first[name] - second[name]).abs().max().item() for name in first)


def test_two_ranks_equal_one_process_on_the_joined_batch(recipe):
    one, two, half = (recipe(name, "capsnmt", steps=20) for name in ("one", "two", "half"))
    subprocess.run(command(one, "--set", "training.accumulate=2"), check=True)
    subprocess.run(command(two, ranks=2), check=True)
    subprocess.run(command(half), check=True)
    assert largest_difference(weights(one), weights(two)) < 2e-5
    assert largest_difference(weights(one), weights(half)) > 1e-3  # the second rank's batches do matter


def test_a_run_goes_on_with_another_number_of_ranks(recipe):
    """Saved on two ranks, resumed on one, and back: the same updates of three batches as one process makes of them."""
    three = ("--set", "training.accumulate=3")
    calm, moved = recipe("calm", steps=20), recipe("moved", steps=20)
    subprocess.run(command(calm, *three), check=True)
    for ranks, steps in ((2, 7), (1, 14), (2, 20)):
        subprocess.run(command(moved, *three, "--set", f"training.steps={steps}", ranks=ranks), check=True)
    assert largest_difference(weights(calm), weights(moved)) < 2e-5
    first, second = (state(path) for path in (calm, moved))
    assert first["epoch"] > 0  # an update that has batches of two epochs was among them
    for key in ("step", "epoch", "batch", "target_tokens"):
        assert first[key] == second[key]


def state(recipe):
    newest = sorted((recipe.with_suffix("") / "checkpoints").glob("step-*"))[-1]
    return json.loads((newest / "state.json").read_text(encoding="utf-8"))


def processes_of(recipe):
    """Process ids of the ranks that train this recipe."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_bytes().decode().split("\0")
            except OSError:
                continue
            if str(recipe) in words and "torch.distributed.run" not in words:
                found.append(int(folder.name))
    return sorted(found)


@pytest.mark.skipif(not Path("/proc").exists(), reason="finds the ranks through /proc")
def test_a_killed_rank_is_restarted_and_nothing_is_lost(recipe):
    calm, rough = recipe("calm", steps=400), recipe("rough", steps=400)
    subprocess.run(command(calm, ranks=2), check=True)
    with subprocess.Popen(command(rough, ranks=2, restarts=2)) as run:
        try:
            checkpoints = rough.with_suffix("") / "checkpoints"
            deadline_s = time.monotonic() + 120
            while not (checkpoints.exists() and any(checkpoints.glob("step-*"))):
                assert time.monotonic() < deadline_s
                assert run.poll() is None
                time.sleep(0.02)
            os.kill(processes_of(rough)[-1], signal.SIGKILL)
            assert run.wait(timeout=240) == 0
        finally:
            run.kill()  # else a failure would wait for it
    first, second = weights(calm), weights(rough)
    assert all(torch.equal(first[name], second[name]) for name in first)
