"""prepare, train, resume, average, fine-tune: through the command, on a few lines."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest
import torch

import capsnmt
from capsnmt.models.weights import read_weights

FILES = {"config.yaml", "subwords.model", "weights.safetensors", "metrics.jsonl", "card.md"}


def metrics(folder, kind):
    """Records without what the clock says."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    timed = {"tokens_per_s", "loader_wait_share"}
    return [{k: v for k, v in record.items() if k not in timed} for record in records if record["kind"] == kind]


def assert_same_tensors(first, second):
    a, b = read_weights(first), read_weights(second)
    assert a.keys() == b.keys()
    different = [name for name in a if not torch.equal(a[name], b[name])]
    assert not different


def state(folder, step):
    values = json.loads((folder / "checkpoints" / f"step-{step:08d}" / "state.json").read_text(encoding="utf-8"))
    return {key: value for key, value in values.items() if key != "elapsed_s"}


def test_prepare_writes_the_store_and_says_where(recipe, run_here, tmp_path):
    store = tmp_path / "its-own-store"
    path = recipe("capsnmt")
    ended = run_here("prepare", path, "--set", f"data.store={store}")
    assert ended.code == 0, ended.err
    assert ended.lines == [str(store)]
    info = json.loads((store / "store.json").read_text(encoding="utf-8"))
    assert info["train"]["kept"] == 60
    assert info["valid"]["kept"] == 6
    before = {file.name: file.stat().st_mtime_ns for file in store.iterdir()}
    assert run_here("prepare", path, "--set", f"data.store={store}").code == 0
    assert {file.name: file.stat().st_mtime_ns for file in store.iterdir()} == before  # used again, not made again


def test_a_store_of_other_settings_is_not_used(recipe, run_here, tmp_path):
    path, store = recipe("capsnmt"), tmp_path / "its-own-store"
    assert run_here("prepare", path, "--set", f"data.store={store}").code == 0
    ended = run_here("prepare", path, "--set", f"data.store={store}", "--set", "data.max_tokens=7")
    assert ended.code == 1
    assert "data.max_tokens" in ended.err


def test_train_makes_a_complete_model_folder(system, trained, tiny_config):
    folder = trained(system, tiny_config(system))
    assert {file.name for file in folder.iterdir()} >= FILES
    assert [record["step"] for record in metrics(folder, "train")] == [1, 2, 3, 4, 5, 6]
    assert [record["step"] for record in metrics(folder, "valid")] == [3, 6]
    assert all(record["loss"] > 0 and record["bleu"] is not None for record in metrics(folder, "valid"))
    card = (folder / "card.md").read_text(encoding="utf-8")
    assert system in card
    assert "train.de / train.en" in card
    assert list((folder / "tensorboard").iterdir())


def test_the_final_weights_are_those_of_the_best_validation(trained, tiny_config):
    folder = trained("simple", tiny_config("simple"))
    best = min(metrics(folder, "valid"), key=lambda record: record["loss"])["step"]
    assert_same_tensors(folder / "weights.safetensors", folder / f"checkpoints/best-{best:08d}/weights.safetensors")
    kept = folder / f"checkpoints/step-{best:08d}/weights.safetensors"
    assert_same_tensors(folder / "weights.safetensors", kept)


def test_kill_and_resume_is_the_uninterrupted_run(system, recipe, run_here, tmp_path):
    path = recipe(system, accumulate=2)
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    assert run_here("train", path, "-q", "-o", straight).code == 0
    assert run_here("train", path, "-q", "-o", resumed, "--set", "training.steps=3").code == 0
    assert state(resumed, 3)["batch"] > 0  # in the middle of an epoch
    assert run_here("train", path, "-q", "-o", resumed).code == 0
    assert state(resumed, 6) == state(straight, 6)
    for name in ("weights", "optimiser"):
        file = f"checkpoints/step-00000006/{name}.safetensors"
        assert_same_tensors(straight / file, resumed / file)
    assert_same_tensors(straight / "weights.safetensors", resumed / "weights.safetensors")
    for kind in ("train", "valid"):
        assert metrics(straight, kind) == metrics(resumed, kind)


def test_resuming_works_over_the_end_of_an_epoch_and_with_bpe_dropout(recipe, run_here, tmp_path):
    path = recipe("simple")
    changes = ["--set", "text.subwords.dropout=0.3", "--set", "training.batch_tokens=400"]
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    assert run_here("train", path, "-q", "-o", straight, *changes).code == 0
    assert run_here("train", path, "-q", "-o", resumed, *changes, "--set", "training.steps=3").code == 0
    assert run_here("train", path, "-q", "-o", resumed, *changes).code == 0
    assert state(resumed, 6)["epoch"] > state(resumed, 3)["epoch"]
    assert_same_tensors(straight / "checkpoints/step-00000006/weights.safetensors",
                        resumed / "checkpoints/step-00000006/weights.safetensors")  # fmt: skip


def test_the_same_command_on_a_finished_run_trains_no_more(recipe, run_here, tmp_path):
    path = recipe("simple", steps=2, checkpoint_every=1)
    assert run_here("train", path, "-q").code == 0
    folder = tmp_path / "model"
    before = (folder / "weights.safetensors").read_bytes()
    assert "resumed at step 2" in run_here("train", path).err  # at the newest checkpoint, not at the first
    assert (folder / "weights.safetensors").read_bytes() == before
    assert [record["step"] for record in metrics(folder, "train")] == [1, 2]


def test_another_recipe_does_not_go_on_in_the_folder(recipe, run_here):
    path = recipe("simple", steps=1)
    assert run_here("train", path, "-q").code == 0
    ended = run_here("train", path, "-q", "--set", "training.learning_rate=0.5")
    assert ended.code == 1
    assert "training.learning_rate: 0.01 -> 0.5" in ended.err


def test_the_seed_decides_the_run(recipe, run_here, tmp_path):
    path = recipe("simple", steps=2)
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        assert run_here("train", path, "-q", "-o", tmp_path / name, "--set", f"training.seed={seed}").code == 0
    a, b, c = ((tmp_path / name / "weights.safetensors").read_bytes() for name in "abc")
    assert a == b
    assert a != c


def test_averaged_weights_at_the_end_of_training(recipe, run_here, tmp_path):
    path = recipe("simple", steps=4, checkpoint_every=1, average_last=3)
    assert run_here("train", path, "-q").code == 0
    parts = [read_weights(tmp_path / f"model/checkpoints/step-{step:08d}/weights.safetensors") for step in (2, 3, 4)]
    for name, tensor in read_weights(tmp_path / "model/weights.safetensors").items():
        torch.testing.assert_close(tensor, torch.stack([part[name] for part in parts]).mean(dim=0))


def test_early_stopping(recipe, run_here, tmp_path):
    # With this rate the loss only gets worse after the first validation.
    path = recipe("simple", steps=50, validate_every=1, validate_sentences=0, patience=2, learning_rate=30.0)
    assert run_here("train", path, "-q").code == 0
    steps = [record["step"] for record in metrics(tmp_path / "model", "valid")]
    assert len(steps) < 50
    best = metrics(tmp_path / "model", "valid")[-1]["best"]
    assert steps[-1] == best + 2
    assert (tmp_path / "model/weights.safetensors").is_file()


def test_average_verb(trained, tiny_config, run_here, tmp_path):
    folder = trained("simple", tiny_config("simple"))
    own = (folder / "weights.safetensors").read_bytes()
    output = tmp_path / "average.safetensors"
    ended = run_here("average", folder, "--last", 2, "-o", output)
    assert ended.code == 0, ended.err
    assert ended.lines == [str(output)]
    parts = [read_weights(folder / f"checkpoints/step-{step:08d}/weights.safetensors") for step in (3, 6)]
    for name, tensor in read_weights(output).items():
        torch.testing.assert_close(tensor, (parts[0][name] + parts[1][name]) / 2)
    assert (folder / "weights.safetensors").read_bytes() == own


def test_average_of_more_than_there_is(trained, tiny_config, run_here):
    ended = run_here("average", trained("simple", tiny_config("simple")), "--last", 9)
    assert ended.code == 1
    assert "has 2 checkpoints, 9 were asked for" in ended.err


def test_fine_tuning(system, trained, tiny_config, recipe, second_corpus, run_here, tmp_path):
    general = trained(system, tiny_config(system))
    path = recipe(system, steps=1, validate_every=1, learning_rate=1e-12)
    changes = [
        f"model={json.dumps(tiny_config(system))}",
        f"training.start_from={general}",
        f"data.subwords_from={general}",
        f"data.store={tmp_path / 'second-store'}",
    ]
    ended = run_here("train", path, "-q", "--data", second_corpus, *(part for c in changes for part in ("--set", c)))
    assert ended.code == 0, ended.err
    tuned = tmp_path / "model"
    assert (tuned / "subwords.model").read_bytes() == (general / "subwords.model").read_bytes()
    start = read_weights(general / "weights.safetensors")
    for name, tensor in read_weights(tuned / "weights.safetensors").items():  # one update at no rate: where it started
        torch.testing.assert_close(tensor, start[name], atol=1e-6, rtol=0)


def test_fine_tuning_with_another_vocabulary_names_the_way_out(
    trained, tiny_config, recipe, run_here, second_corpus, tmp_path
):
    general = trained("simple", tiny_config("simple"))
    changes = ["--set", f"training.start_from={general}", "--set", f"data.store={tmp_path / 'second-store'}"]
    ended = run_here("train", recipe("simple"), "-q", "--data", second_corpus, *changes)
    assert ended.code == 1
    assert "data.subwords_from" in ended.err


def test_fine_tuning_from_another_size_is_refused(trained, tiny_config, recipe, run_here):
    general = trained("simple", tiny_config("simple"))
    ended = run_here(
        "train", recipe("simple"), "-q", "--set", f"training.start_from={general}", "--set", "model.width=8"
    )
    assert ended.code == 1
    assert "does not fit the model" in ended.err


def test_a_typo_in_the_model_section_does_not_wait_for_the_corpus(recipe, run_here, tmp_path):
    store = tmp_path / "never"
    ended = run_here("train", recipe("capsnmt"), "--set", "model.num_capsule=3", "--set", f"data.store={store}")
    assert ended.code == 1
    assert "did you mean `num_capsules`?" in ended.err
    assert not store.exists()


def test_a_missing_corpus_is_one_clean_line(recipe, run_here, tmp_path):
    store = tmp_path / "never"
    ended = run_here("train", recipe("capsnmt"), "-q", "--data", tmp_path / "nowhere", "--set", f"data.store={store}")
    assert ended.code == 1
    assert "valid.de does not exist" in ended.err  # a short text is read before a long one
    assert not store.exists()


def test_progress_goes_to_stderr_and_the_folder_to_stdout(recipe, run_here, tmp_path):
    ended = run_here("train", recipe("simple", steps=2))
    assert ended.lines == [str(tmp_path / "model")]
    assert "parameters" in ended.err
    assert "step 2/2" in ended.err


def test_quiet_is_quiet(recipe, run_here):
    assert run_here("train", recipe("simple", steps=1), "--quiet").err == ""


def test_ctrl_c_ends_with_130_and_the_run_can_go_on(recipe, start, run_here, tmp_path):
    path = recipe("simple", steps=100_000, validate_every=100_000, validate_sentences=0, checkpoint_every=5)
    process = start("train", path)
    checkpoints = tmp_path / "model" / "checkpoints"
    deadline_s = time.monotonic() + 40
    while not list(checkpoints.glob("step-*")) and time.monotonic() < deadline_s and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    try:
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130, err.decode()
    assert b"Traceback" not in err
    done = max(int(path.name.removeprefix("step-")) for path in checkpoints.glob("step-*"))
    assert run_here("train", path, "-q", "--set", f"training.steps={done + 1}").code == 0
    assert state(tmp_path / "model", done + 1)["step"] == done + 1


def test_verbs_are_python_functions_too(recipe, tmp_path):
    from capsnmt import verbs

    folder = capsnmt.train(verbs.recipe(recipe("simple", steps=1)), show=False)
    assert folder == tmp_path / "model"
    assert capsnmt.prepare(verbs.recipe(recipe("simple", steps=1)), show=False) == Path(
        verbs.recipe(recipe("simple")).data.store
    )
    assert capsnmt.average(folder, last=1) == folder / "weights.safetensors"


@pytest.mark.parametrize("part", ["capsules", "output"])
def test_training_in_bf16(recipe, run_here, tmp_path, part):
    ended = run_here("train", recipe("capsnmt", steps=2), "-q", "--set", f"training.bf16_modules=[{part}]")
    assert ended.code == 0, ended.err
    weights = read_weights(tmp_path / "model" / "weights.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
