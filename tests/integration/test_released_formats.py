"""What a released version wrote, this one still reads. How these folders came about: tests/released/make.py."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml

from capsnmt import Translator
from capsnmt.config import FORMAT_VERSION, flatten
from capsnmt.decoding.translation import TranslateOptions
from capsnmt.folder import read_folder_config
from capsnmt.models.weights import read_weights

RELEASED = Path(__file__).parents[1] / "released"
FORMATS = {int(folder.name.removeprefix("format-")): folder for folder in RELEASED.glob("format-*")}
EXPECTED = {
    (version, system): records
    for version, folder in FORMATS.items()
    for system, records in json.loads((folder / "expected.json").read_text(encoding="utf-8")).items()
}
FOLDERS = [
    pytest.param(FORMATS[version] / system, records, id=f"{version}-{system}")
    for (version, system), records in EXPECTED.items()
]


def test_every_format_up_to_the_present_one_is_kept():
    assert sorted(FORMATS) == list(range(1, FORMAT_VERSION + 1))


@pytest.mark.parametrize(("folder", "records"), FOLDERS)
def test_a_released_folder_says_what_it_said(folder, records):
    assert f"format-{read_folder_config(folder).format_version}" == folder.parent.name
    translator = Translator(folder, device="cpu")
    sources = [record["source"] for record in records]
    found = translator.translate_batch(sources)
    assert [one.text for one in found] == [record["translation"] for record in records]
    assert [one.score for one in found] == pytest.approx([record["score"] for record in records], abs=1e-3)
    greedy = translator.translate_batch(sources, TranslateOptions(beam=1))
    assert [one.text for one in greedy] == [record["greedy"] for record in records]


@pytest.mark.parametrize(("folder", "records"), FOLDERS)
def test_a_released_folder_scores_as_it_did(folder, records, run_here, tmp_path):
    # Not those with a number: whether `score` protects it as `translate` does is no matter of the format.
    records = [record for record in records if not any(character.isdigit() for character in record["source"])]
    for name, key in (("source", "source"), ("target", "translation")):
        (tmp_path / name).write_text("".join(f"{record[key]}\n" for record in records), encoding="utf-8")
    ended = run_here("score", folder, "-s", tmp_path / "source", "-t", tmp_path / "target")
    assert ended.code == 0, ended.err
    assert list(map(float, ended.lines)) == pytest.approx([record["log_prob"] for record in records], abs=1e-3)


@pytest.fixture(params=sorted(FORMATS), ids=lambda version: f"format-{version}")
def run_folder(request, tmp_path, monkeypatch):
    """A released run, with its recipe, corpus and store, in the folder where we are."""
    shutil.copytree(FORMATS[request.param], tmp_path / "run")
    monkeypatch.chdir(tmp_path / "run")
    return tmp_path / "run"


def records_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def test_a_released_checkpoint_is_resumed(run_folder, run_here):
    store = {path: path.read_bytes() for path in (run_folder / "store").iterdir()}
    before = records_of(run_folder / "capsnmt")
    ended = run_here("train", "recipe.yaml", "--set", "training.steps=1203", "--set", "training.log_every=1")
    assert ended.code == 0, ended.err
    assert "resumed at step 1200" in ended.err
    after = records_of(run_folder / "capsnmt")
    assert after[: len(before)] == before
    new = [record for record in after[len(before) :] if record["kind"] == "train"]
    assert [record["step"] for record in new] == [1201, 1202, 1203]
    assert max(record["loss"] for record in new) < 1.0  # a model that has learnt nothing has more than 3
    assert {path: path.read_bytes() for path in (run_folder / "store").iterdir()} == store  # not prepared again
    assert Translator(run_folder / "capsnmt", device="cpu").translate("acht") == "eight"


def test_released_weights_are_fine_tuned(run_folder, run_here):
    options = ["training.start_from=capsnmt", "training.steps=2", "training.learning_rate=1e-5", "training.log_every=1"]
    ended = run_here("train", "recipe.yaml", "-o", "new", *(part for option in options for part in ("--set", option)))
    assert ended.code == 0, ended.err
    first = records_of(run_folder / "new")[0]
    assert first["step"] == 1
    assert first["loss"] < 1.0


def test_released_checkpoints_are_averaged(run_folder, run_here):
    ended = run_here("average", "capsnmt", "--last", 1, "-o", "average.safetensors")
    assert ended.code == 0, ended.err
    (checkpoint,) = (run_folder / "capsnmt" / "checkpoints").glob("step-*")
    averaged, kept = (read_weights(path) for path in (Path("average.safetensors"), checkpoint / "weights.safetensors"))
    assert averaged.keys() == kept.keys()
    assert all(torch.equal(averaged[name], kept[name]) for name in kept)


@pytest.mark.parametrize("path", sorted(RELEASED.glob("format-*/**/*.yaml")), ids=lambda path: path.parent.name)
def test_no_path_of_the_machine_that_made_it(path):
    values = flatten(yaml.safe_load(path.read_text(encoding="utf-8"))).values()
    assert not [value for value in values if isinstance(value, str) and Path(value).is_absolute()]
