"""The model folder: who may go on in it, and what it takes to be read."""

from __future__ import annotations

import pytest
import yaml

from capsnmt.config import FORMAT_VERSION, RunConfig, SubwordsConfig, TextConfig, parse
from capsnmt.errors import CapsNMTError
from capsnmt.folder import CONFIG, create_folder, load_text, read_folder_config
from capsnmt.models import whole_model_section
from capsnmt.text.pipeline import JOINT_FILE, TextPipeline
from capsnmt.text.subwords import train_subwords

SUBWORDS = SubwordsConfig(type="char", vocabulary=32, protected_symbols=0)


def train(folder, lines):
    folder.mkdir()
    train_subwords(lines, SUBWORDS, folder / JOINT_FILE)
    return TextPipeline.load(folder, TextConfig(subwords=SUBWORDS))


@pytest.fixture
def text(tmp_path):
    return train(tmp_path / "store", ["one two three", "eins zwei drei"] * 5)


@pytest.fixture
def make_config(tmp_path):
    def make(**training):
        values = {
            "languages": {"source": "en", "target": "de"},
            "data": {"train": {"tsv": "a.tsv"}, "valid": {"tsv": "b.tsv"}, "store": str(tmp_path / "store")},
            "text": {"subwords": SUBWORDS.model_dump()},
            "model": {"system": "capsnmt", "width": training.pop("width", 16)},
            "training": {"steps": 10, "learning_rate": 0.1} | training,
            "output": str(tmp_path / "model"),
        }
        return parse(RunConfig, values, "recipe")

    return make


def edit(folder, **changes):
    values = yaml.safe_load((folder / CONFIG).read_text(encoding="utf-8"))
    values |= changes
    (folder / CONFIG).write_text(yaml.safe_dump(values), encoding="utf-8")


def test_a_new_folder_holds_the_recipe_and_the_subwords(make_config, text):
    config = make_config()
    folder = create_folder(config, text)
    read = read_folder_config(folder)
    assert read.model_dump(include=set(RunConfig.model_fields)) == config.model_dump()
    assert read.format_version == FORMAT_VERSION
    assert (read.vocabulary.source_size, read.vocabulary.target_size) == (text.source_size, text.target_size)
    assert load_text(folder, read).fingerprint == text.fingerprint == read.vocabulary.fingerprint
    assert load_text(folder, read).source_ids("two one") == text.source_ids("two one")


def test_the_folder_needs_no_store_any_more(make_config, text, tmp_path):
    folder = create_folder(make_config(), text)
    (tmp_path / "store" / JOINT_FILE).unlink()
    assert load_text(folder, read_folder_config(folder)).target_text(text.target_ids("zwei")) == "zwei"


def test_the_same_recipe_may_go_on(make_config, text):
    assert create_folder(make_config(), text) == create_folder(make_config(), text)


@pytest.mark.parametrize("change", [{"steps": 99}, {"keep_last": 7}, {"log_every": 3}, {"patience": 2}])
def test_what_changes_no_result_may_change(make_config, text, change):
    create_folder(make_config(), text)
    assert create_folder(make_config(**change), text).is_dir()


def test_the_folder_tells_the_recipe_as_it_ran_last(make_config, text):
    create_folder(make_config(), text)
    folder = create_folder(make_config(steps=99), text)
    assert read_folder_config(folder).training.steps == 99


def test_another_recipe_is_refused_by_its_keys(make_config, text):
    create_folder(make_config(), text)
    with pytest.raises(CapsNMTError) as caught:
        create_folder(make_config(learning_rate=0.2, width=32, steps=99), text)
    message = str(caught.value)
    assert "training.learning_rate: 0.1 -> 0.2" in message
    assert "model.width: 16 -> 32" in message
    assert "training.steps" not in message
    assert "output" in message  # the way out


def test_a_default_that_is_spelt_out_is_the_same_recipe(make_config, text):
    config = make_config()
    create_folder(config, text, whole=whole_model_section)
    spelt = config.model_copy(update={"model": {**config.model, "attending": "first"}})
    folder = create_folder(spelt, text, whole=whole_model_section)
    assert read_folder_config(folder).model["attending"] == "first"
    other = config.model_copy(update={"model": {**config.model, "attending": "all"}})
    with pytest.raises(CapsNMTError, match=r"model\.attending: 'first' -> 'all'"):
        create_folder(other, text, whole=whole_model_section)


def test_a_new_setting_of_the_model_is_noticed(make_config, text):
    create_folder(make_config(), text)
    config = make_config()
    config.model["num_capsules"] = [4]
    with pytest.raises(CapsNMTError, match=r"model\.num_capsules: None -> \[4\]"):
        create_folder(config, text)


def test_another_vocabulary_is_refused(make_config, text, tmp_path):
    create_folder(make_config(), text)
    other = train(tmp_path / "other", ["quite other letters: xyz"] * 5)
    with pytest.raises(CapsNMTError, match=r"vocabulary\.fingerprint"):
        create_folder(make_config(), other)


def test_a_swapped_subword_model_is_noticed(make_config, text, tmp_path):
    folder = create_folder(make_config(), text)
    other = train(tmp_path / "other", ["quite other letters: xyz"] * 5)
    other.copy_to(folder)
    with pytest.raises(CapsNMTError) as caught:
        load_text(folder, read_folder_config(folder))
    assert other.fingerprint in str(caught.value)
    assert text.fingerprint in str(caught.value)


def test_a_missing_subword_model_is_named(make_config, text):
    folder = create_folder(make_config(), text)
    (folder / JOINT_FILE).unlink()
    with pytest.raises(CapsNMTError, match=JOINT_FILE):
        load_text(folder, read_folder_config(folder))


def test_a_newer_format_asks_for_an_upgrade(make_config, text):
    folder = create_folder(make_config(), text)
    edit(folder, format_version=FORMAT_VERSION + 1)
    with pytest.raises(CapsNMTError, match=f"format {FORMAT_VERSION + 1}.*upgrade capsnmt"):
        read_folder_config(folder)


def test_a_newer_format_with_new_keys_asks_for_an_upgrade_too(make_config, text):
    folder = create_folder(make_config(), text)
    edit(folder, format_version=FORMAT_VERSION + 1, a_key_of_the_future=1)
    with pytest.raises(CapsNMTError, match="upgrade capsnmt"):
        read_folder_config(folder)


def test_no_model_folder(tmp_path):
    with pytest.raises(CapsNMTError, match=f"is not a model folder: it has no {CONFIG}"):
        read_folder_config(tmp_path)
