"""kill -9 loses nothing: at random moments of a training, and before every change of a file in all that it writes."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from forks import FORKS
from torch import nn

from capsnmt import verbs
from capsnmt.data.prepare import load_store, prepare
from capsnmt.folder import create_folder, load_text, read_folder_config
from capsnmt.models.weights import read_weights
from capsnmt.text.pipeline import TextPipeline
from capsnmt.training.checkpoint import (
    Progress,
    best_weights,
    clear_remains,
    load_checkpoint,
    newest_whole_checkpoint,
    save_best,
    save_checkpoint,
)
from capsnmt.training.distributed import ALONE
from capsnmt.training.journal import Journal
from capsnmt.training.loop import finish

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "kills.py"
CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir"}  # and opening for writing


def test_killed_trainings_and_saves_lose_nothing(tmp_path):
    options = ["--kills", "3", "--save-kills", "5", "--updates", "60", "--json", str(tmp_path / "result.json")]
    ended = subprocess.run([sys.executable, str(BENCHMARK), *options], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert result["training"]["by_kind"]["save"] >= 1
    assert result["training"]["kills"] >= 3
    assert result["save_loop"]["kills"] == 5


PATIENCE_S = 120.0


def die_before_operation(number, action, *args):
    """Runs the action in a process that is killed just before its n-th change of a file; False if it came to an end."""
    process = FORKS.Process(target=run_and_die, args=(number, action, *args))
    process.start()
    process.join(PATIENCE_S)
    if process.exitcode is None:
        process.kill()
        pytest.fail(f"{action.__name__} did not end before its operation {number} in {PATIENCE_S:.0f} s")
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def run_and_die(number, action, *args):
    left, empty = number, False

    def count():
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(event, details):
        nonlocal empty
        opened = event == "open" and bool((details[2] or 0) & (os.O_WRONLY | os.O_RDWR))
        if opened or event in CHANGES:
            count()
        empty = empty or opened

    def profile(_frame, event, function):
        nonlocal empty
        if empty and event == "c_call" and function.__name__ == "write":  # opened and emptied, not yet filled
            empty = False
            count()

    sys.addaudithook(audit)
    sys.setprofile(profile)
    action(*args)
    os._exit(0)


def killed_at_every_operation(folder, make, action, *args):
    """Yields a folder for each operation of the action: made anew, and left as the killed process left it."""
    for number in range(1, 1000):
        made = folder / str(number)
        made.mkdir(parents=True)
        make(made)
        if not die_before_operation(number, action, made, *args):
            assert number > 3, "hardly any operation was seen"
            return
        yield made


def names(folder):
    return {path.name for path in folder.iterdir()}


def save(folder, step, best_step):
    """What the loop does after a validation; all numbers are those of the step."""
    model = nn.Linear(3, 2)
    optimiser = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        nn.init.constant_(parameter, step)
        optimiser.state[parameter] = {key: torch.full_like(parameter, step) for key in ("exp_avg", "exp_avg_sq")}
    progress = Progress(step=step, best_step=best_step)
    if best_step == step:
        save_best(folder, progress, model)
    save_checkpoint(folder, progress, model, optimiser, ALONE, keep_last=2)


def resume(folder):
    """What the loop does at its start; the newest checkpoint and its best must be what they say."""
    model = nn.Linear(3, 2)
    optimiser = torch.optim.AdamW(model.parameters())
    progress = load_checkpoint(newest_whole_checkpoint(folder), model, optimiser)
    for parameter in model.parameters():
        assert all((tensor == progress.step).all() for tensor in (parameter, *optimiser.state[parameter].values()))
    clear_remains(folder, progress, keep_last=2)
    assert best_weights(folder) == folder / f"best-{progress.best_step:08d}" / "weights.safetensors"
    assert (read_weights(best_weights(folder))["weight"] == progress.best_step).all()
    return progress.step


def save_two(folder):
    save(folder, 2, 2)
    save(folder, 3, 2)


@pytest.mark.parametrize("best_step", [2, 4])
def test_a_killed_save_leaves_the_checkpoint_before_it_or_the_new_one(tmp_path, best_step):
    before = {"step-00000002", "step-00000003", "best-00000002"}
    after = {"step-00000003", "step-00000004", f"best-{best_step:08d}"}
    reached = set()
    for folder in killed_at_every_operation(tmp_path, save_two, save, 4, best_step):
        for path in folder.glob("[sb]*"):  # what has its final name is whole
            assert names(path) >= set(json.loads((path / "checksums.json").read_text(encoding="utf-8")))
        step = resume(folder)
        assert names(folder) == {3: before, 4: after}[step]
        if step == 3:
            save(folder, 4, best_step)
            assert names(folder) == after
        reached.add(step)
    assert reached == {3, 4}


def leave_remains(folder):
    save_two(folder)
    for name in ("step-00000005", "best-00000005", ".writing-step-00000004", ".removing-step-00000001"):
        (folder / name).mkdir()
        (folder / name / "weights.safetensors").write_bytes(b"half")


def clear(folder):
    clear_remains(folder, Progress(step=3, best_step=2), keep_last=2)


def test_remains_are_cleared_even_if_the_clearing_is_killed(tmp_path):
    for folder in killed_at_every_operation(tmp_path, leave_remains, clear):
        assert resume(folder) == 3
        assert names(folder) == {"step-00000002", "step-00000003", "best-00000002"}


def test_damaged_checkpoints_ahead_of_the_run_do_not_push_out_whole_ones(tmp_path):
    save_two(tmp_path)
    (tmp_path / "step-00000003" / "weights.safetensors").write_bytes(b"")
    (tmp_path / "step-00000009").mkdir()
    assert resume(tmp_path) == 2
    save(tmp_path, 4, 2)
    save(tmp_path, 5, 2)
    assert resume(tmp_path) == 5
    assert names(tmp_path) == {"step-00000004", "step-00000005", "best-00000002"}


def write_records(folder):
    with Journal(folder, 0, 10, show=False) as journal:
        for step in (1, 2, 3, 4):
            journal.record("train", step, loss=1.0)


def resume_records(folder):
    with Journal(folder, 2, 10, show=False):
        pass
    return recorded_steps(folder)


def recorded_steps(folder):
    return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def test_no_record_is_lost_when_the_resuming_is_killed(tmp_path):
    for folder in killed_at_every_operation(tmp_path, write_records, resume_records):
        assert recorded_steps(folder) in ([1, 2, 3, 4], [1, 2])
        assert resume_records(folder) == [1, 2]


def config_in(folder, recipe):
    return verbs.recipe(recipe, overrides=[f"data.store={folder / 'store'}"], output=str(folder / "model"))


def prepare_in(folder, recipe):
    return prepare(config_in(folder, recipe), progress=False)


def test_a_killed_prepare_leaves_no_half_store_and_the_next_one_tidies_up(tmp_path, recipe):
    path = recipe("simple")
    for folder in killed_at_every_operation(tmp_path / "killed", names, prepare_in, path):
        if (folder / "store").exists():
            assert len(load_store(folder / "store").train) == 60
        assert len(load_store(prepare_in(folder, path)).train) == 60
        assert names(folder) == {"store"}


def test_prepare_leaves_alone_what_another_process_is_at(tmp_path, recipe):
    path, others = recipe("simple"), tmp_path / ".store.abcdefgh.unfinished"
    others.mkdir()
    descriptor = os.open(others, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    prepare_in(tmp_path, path)
    assert others.is_dir()
    os.close(descriptor)  # as the kernel does when a process dies
    prepare_in(tmp_path, path)
    assert not others.exists()


def create_in(folder, recipe, store):
    config = config_in(folder, recipe)
    return create_folder(config, TextPipeline.load(store, config.text))


@pytest.mark.parametrize("resumed", [True, False])
def test_a_model_folder_is_complete_before_it_says_so(tmp_path, recipe, resumed):
    path, store = recipe("simple"), prepare_in(tmp_path, recipe("simple"))

    def make(folder):
        if resumed:
            create_in(folder, path, store)

    for folder in killed_at_every_operation(tmp_path / "killed", make, create_in, path, store):
        model = folder / "model"
        if resumed or (model / "config.yaml").exists():
            load_text(model, read_folder_config(model))
        create_in(folder, path, store)
        load_text(model, read_folder_config(model))
        assert names(model) == {"config.yaml", "subwords.model"}


def finish_in(folder, recipe):
    finish(folder, config_in(folder, recipe), Progress(step=3, best_step=2))


def test_a_killed_finish_is_finished_by_the_next_run(tmp_path, recipe):
    path = recipe("simple")

    def make(folder):
        save_two(folder / "checkpoints")
        (folder / "metrics.jsonl").write_text('{"kind": "valid", "step": 2, "perplexity": 1.5}\n', encoding="utf-8")

    for folder in killed_at_every_operation(tmp_path / "killed", make, finish_in, path):
        weights = folder / "weights.safetensors"
        assert not weights.exists() or (read_weights(weights)["weight"] == 2).all()
        finish_in(folder, path)
        assert (read_weights(weights)["weight"] == 2).all()
        assert names(folder) == {"checkpoints", "metrics.jsonl", "weights.safetensors", "card.md"}
