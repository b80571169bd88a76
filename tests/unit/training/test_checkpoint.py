"""A checkpoint holds all that the next update depends on, and appears whole or not at all."""

from __future__ import annotations

import pytest
import torch

from capsnmt.config import TrainingConfig
from capsnmt.data.batches import pad_batch
from capsnmt.errors import CapsNMTError
from capsnmt.text.subwords import EOS
from capsnmt.training import checkpoint as checkpoint_module
from capsnmt.training.checkpoint import (
    Progress,
    best_weights,
    checkpoint_weights,
    checkpoints_in,
    load_checkpoint,
    newest_whole_checkpoint,
    save_best,
    save_checkpoint,
)
from capsnmt.training.distributed import ALONE
from capsnmt.training.loop import build_optimiser, update

CPU = torch.device("cpu")
SETTINGS = TrainingConfig(steps=10, learning_rate=0.01, warmup_steps=1)
BATCH = pad_batch([[5, 6, 7, EOS], [8, EOS]], [[20, 21, EOS], [22, 23, 24, 25, EOS]])


def make(tiny_model, system, seed=3):
    model = tiny_model(system, dropout=0.3).train()  # dropout: the random numbers matter
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    return model, build_optimiser(model, SETTINGS)


def go_on(model, optimiser, updates):
    return [update(model, optimiser, [BATCH], 0.01, SETTINGS, ALONE) for _ in range(updates)]


def equal_weights(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


def test_a_resumed_run_goes_on_bit_for_bit(system, tiny_model, tmp_path):
    model, optimiser = make(tiny_model, system)
    go_on(model, optimiser, 3)
    path = save_checkpoint(tmp_path, Progress(step=3), model, optimiser, ALONE, keep_last=5)
    expected = go_on(model, optimiser, 3)

    other, other_optimiser = make(tiny_model, system, seed=99)
    assert not equal_weights(model, other)
    load_checkpoint(path, other, other_optimiser)
    assert go_on(other, other_optimiser, 3) == expected
    assert equal_weights(model, other)


def test_adams_moments_come_back(system, tiny_model, tmp_path):
    model, optimiser = make(tiny_model, system)
    go_on(model, optimiser, 2)
    path = save_checkpoint(tmp_path, Progress(step=2), model, optimiser, ALONE, keep_last=5)
    other, other_optimiser = make(tiny_model, system, seed=99)
    load_checkpoint(path, other, other_optimiser)
    for mine, loaded in zip(model.parameters(), other.parameters(), strict=True):
        before, after = optimiser.state[mine], other_optimiser.state[loaded]
        assert before.keys() == after.keys()
        assert after["step"].item() == 2
        for key in before:
            assert torch.equal(before[key], after[key]), key
            assert before[key].dtype is after[key].dtype


def test_random_numbers_go_on_where_they_were(tiny_model, tmp_path):
    model, optimiser = make(tiny_model, "simple")
    torch.manual_seed(12)
    torch.rand(7)
    path = save_checkpoint(tmp_path, Progress(step=1), model, optimiser, ALONE, keep_last=5)
    expected = torch.rand(5)
    torch.manual_seed(0)
    load_checkpoint(path, model, optimiser)
    assert torch.equal(torch.rand(5), expected)


@pytest.mark.parametrize("best", [None, -31.25, 0.1 + 0.2])
def test_progress_comes_back_exactly(tiny_model, tmp_path, best):
    model, optimiser = make(tiny_model, "simple")
    progress = Progress(
        step=7, epoch=2, batch=5, target_tokens=10**12, elapsed_s=1 / 3, best_step=6, best_value=best, bad_validations=1
    )
    path = save_checkpoint(tmp_path, progress, model, optimiser, ALONE, keep_last=5)
    assert load_checkpoint(path, model, optimiser) == progress


def test_only_the_newest_are_kept(tiny_model, tmp_path):
    model, optimiser = make(tiny_model, "simple")
    save_best(tmp_path, Progress(step=1), model)
    for step in (2, 9, 10, 100):
        save_checkpoint(tmp_path, Progress(step=step), model, optimiser, ALONE, keep_last=3)
    assert [int(path.name.removeprefix("step-")) for path in checkpoints_in(tmp_path)] == [9, 10, 100]
    assert best_weights(tmp_path) is not None  # the best is never pruned


def test_keep_one(tiny_model, tmp_path):
    model, optimiser = make(tiny_model, "simple")
    for step in (1, 2):
        save_checkpoint(tmp_path, Progress(step=step), model, optimiser, ALONE, keep_last=1)
    assert [path.name for path in checkpoints_in(tmp_path)] == ["step-00000002"]


@pytest.mark.parametrize(
    ("failure", "seen"),
    [(OSError(28, "No space left on device"), CapsNMTError), (KeyboardInterrupt(), KeyboardInterrupt)],
)
def test_an_aborted_writing_leaves_no_checkpoint(tiny_model, tmp_path, monkeypatch, failure, seen):
    model, optimiser = make(tiny_model, "simple")
    save_checkpoint(tmp_path, Progress(step=1), model, optimiser, ALONE, keep_last=1)

    def fail(*_):
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_module, "_write_state", fail)
        with pytest.raises(seen, match="No space left.*Earlier checkpoints" if seen is CapsNMTError else None):
            save_checkpoint(tmp_path, Progress(step=2), model, optimiser, ALONE, keep_last=1)
        with pytest.raises(seen):
            save_best(tmp_path, Progress(step=2), model)
    assert [path.name for path in checkpoints_in(tmp_path)] == ["step-00000001"]  # the old one is not gone either
    assert best_weights(tmp_path) is None
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


@pytest.mark.parametrize("name", ["weights.safetensors", "optimiser.safetensors", "state.json", "checksums.json"])
@pytest.mark.parametrize("damage", ["flipped bit", "cut off", "gone", "empty"])
def test_a_damaged_newest_checkpoint_is_reported_and_the_one_before_is_used(tiny_model, tmp_path, caplog, name, damage):
    model, optimiser = make(tiny_model, "simple")
    for step in (1, 2):
        save_checkpoint(tmp_path, Progress(step=step), model, optimiser, ALONE, keep_last=2)
    file = tmp_path / "step-00000002" / name
    content = file.read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        file.write_bytes({"flipped bit": flipped, "cut off": content[:-1], "empty": b""}[damage])
    assert newest_whole_checkpoint(tmp_path) == tmp_path / "step-00000001"
    assert "step-00000002 is damaged" in caplog.text


def test_only_damaged_checkpoints_are_an_error_and_not_a_fresh_start(tiny_model, tmp_path):
    model, optimiser = make(tiny_model, "simple")
    assert newest_whole_checkpoint(tmp_path) is None
    path = save_checkpoint(tmp_path, Progress(step=1), model, optimiser, ALONE, keep_last=2)
    (path / "weights.safetensors").write_bytes(b"")
    with pytest.raises(CapsNMTError, match="every checkpoint"):
        newest_whole_checkpoint(tmp_path)


def test_remains_of_a_killed_process_do_no_harm(tiny_model, tmp_path):
    model, optimiser = make(tiny_model, "simple")
    killed = tmp_path / ".writing-step-00000002"
    killed.mkdir()
    (killed / "weights.safetensors").write_bytes(b"half")
    assert checkpoints_in(tmp_path) == []
    path = save_checkpoint(tmp_path, Progress(step=2), model, optimiser, ALONE, keep_last=1)
    assert load_checkpoint(path, model, optimiser).step == 2


def test_the_same_step_can_be_written_again(tiny_model, tmp_path):
    model, optimiser = make(tiny_model, "simple")
    save_checkpoint(tmp_path, Progress(step=1, epoch=0), model, optimiser, ALONE, keep_last=2)
    path = save_checkpoint(tmp_path, Progress(step=1, epoch=4), model, optimiser, ALONE, keep_last=2)
    assert load_checkpoint(path, model, optimiser).epoch == 4
    assert checkpoint_weights(path).is_file()


def test_the_best_is_replaced(tiny_model, tmp_path):
    model, _ = make(tiny_model, "simple")
    save_best(tmp_path, Progress(step=1), model)
    first = best_weights(tmp_path).read_bytes()
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    save_best(tmp_path, Progress(step=2), model)
    assert best_weights(tmp_path).read_bytes() != first


def test_nothing_in_a_checkpoint_is_a_pickle(tiny_model, tmp_path):
    model, optimiser = make(tiny_model, "simple")
    path = save_checkpoint(tmp_path, Progress(step=1), model, optimiser, ALONE, keep_last=2)
    assert {file.suffix for file in path.iterdir()} == {".safetensors", ".json"}
