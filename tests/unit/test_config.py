"""Recipes: every fault is one clear error that names the key, the value and the fix."""

from __future__ import annotations

import copy

import pytest
import yaml

from capsnmt import verbs
from capsnmt.config import (
    DataConfig,
    ParallelText,
    RunConfig,
    SubwordsConfig,
    TrainingConfig,
    dump_yaml,
    load_recipe,
    load_yaml,
    parse,
    parse_language_pair,
)
from capsnmt.errors import CapsNMTError

VALUES = {
    "languages": {"source": "en", "target": "de"},
    "data": {
        "train": {"source": "train.en", "target": "train.de"},
        "valid": {"tsv": "valid.tsv"},
        "test": None,
        "store": "store",
    },
    "text": {"subwords": {"vocabulary": 100}},
    "model": {"system": "capsnmt", "width": 16},
    "training": {"steps": 10, "learning_rate": 0.1},
    "output": "out",
}


@pytest.fixture
def recipe(tmp_path):
    """recipe(change) → a recipe file, after `change` had its way with the values."""

    def write(change=lambda values: None):
        values = copy.deepcopy(VALUES)
        change(values)
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml.safe_dump(values), encoding="utf-8")
        return path

    return write


def fault(path, overrides=()):
    with pytest.raises(CapsNMTError) as caught:
        load_recipe(path, list(overrides))
    return str(caught.value)


def test_a_recipe_is_read(recipe):
    config = load_recipe(recipe())
    assert config.training.steps == 10
    assert config.data.valid.tsv == "valid.tsv"
    assert config.model == {"system": "capsnmt", "width": 16}
    assert config.decoding.beam == 8


@pytest.mark.parametrize(
    ("section", "typo", "meant"),
    [
        ((), "trainning", "training"),
        (("training",), "learning_rat", "learning_rate"),
        (("text", "subwords"), "vocabulery", "vocabulary"),
        (("text", "normalise"), "unicod", "unicode"),
        (("data", "train"), "sourse", "source"),
        (("data", "test"), "targit", "target"),
        (("decoding",), "bean", "beam"),
    ],
)
def test_an_unknown_key_names_the_nearest_one(recipe, section, typo, meant):
    def change(values):
        for name in section:
            values[name] = values = values.get(name) or {}
        values[typo] = 1

    text = fault(recipe(change))
    assert f"{'.'.join([*section, typo])}: unknown key; did you mean `{meant}`?" in text


def test_an_unknown_key_like_no_other_lists_the_known_ones(recipe):
    text = fault(recipe(lambda values: values["training"].update(xyzzy=1)))
    assert "training.xyzzy: unknown key; known keys: " in text
    assert "learning_rate" in text


@pytest.mark.parametrize("section", [(), ("training",), ("languages",)])
def test_a_missing_key_is_named(recipe, section):
    names = {(): "output", ("training",): "steps", ("languages",): "target"}

    def change(values):
        for name in section:
            values = values[name]
        del values[names[section]]

    assert f"{'.'.join([*section, names[section]])}: required key is missing" in fault(recipe(change))


def test_the_model_must_name_its_system(recipe):
    assert "`system` is missing" in fault(recipe(lambda values: values["model"].pop("system")))


@pytest.mark.parametrize(
    ("key", "value"), [("steps", "many"), ("steps", 0), ("learning_rate", -1.0), ("schedule", "cosine"), ("seed", [1])]
)
def test_a_wrong_value_is_named_with_its_key(recipe, key, value):
    text = fault(recipe(lambda values: values["training"].update({key: value})))
    assert f"training.{key}: " in text
    assert f"(got {value!r})" in text


def test_all_faults_are_told_at_once(recipe):
    def change(values):
        values["training"].update(steps=0, learning_rte=1)
        del values["output"]

    text = fault(recipe(change))
    assert "training.steps" in text
    assert "training.learning_rte" in text
    assert "output: required" in text


def test_errors_name_the_file(recipe):
    path = recipe(lambda values: values.pop("output"))
    assert fault(path).startswith(f"{path}:")


def test_overrides(recipe):
    overrides = ["training.steps=33", "text.subwords.joint=false", "decoding.beam=2", "training.adam_betas=[0.8, 0.9]"]
    config = load_recipe(recipe(), overrides)
    assert config.training.steps == 33
    assert config.text.subwords.joint is False
    assert config.text.subwords.vocabulary == 100  # its neighbours stay
    assert config.decoding.beam == 2  # a section that the file does not have
    assert config.training.adam_betas == (0.8, 0.9)


def test_overrides_reach_the_model_section(recipe):
    assert load_recipe(recipe(), ["model.num_capsules=[4, 2]"]).model["num_capsules"] == [4, 2]


def test_the_last_override_wins(recipe):
    assert load_recipe(recipe(), ["training.steps=5", "training.steps=6"]).training.steps == 6


def test_an_override_may_hold_an_equals_sign(recipe):
    assert load_recipe(recipe(), ["output=a=b"]).output == "a=b"


def test_null_overrides(recipe):
    assert load_recipe(recipe(), ["training.checkpoint_every=null"]).training.checkpoint_every is None


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.steps", "expected key=value"),
        ("training.stepz=3", "did you mean `steps`"),
        ("output.deeper=3", "output is not a section"),
        ("training.adam_betas=[1, 2", "not valid YAML"),
        ("training.steps=soon", "(got 'soon')"),
    ],
)
def test_wrong_overrides(recipe, override, message):
    assert message in fault(recipe(), [override])


@pytest.mark.parametrize("folder", ["plain/folder", "2024", "1e3", "no", "null", "with: colon", "a # b", "[x"])
def test_folders_given_on_the_command_line_are_taken_as_they_are(recipe, folder):
    config = verbs.recipe(recipe(), data=folder, output=folder)
    assert config.data.root == folder
    assert config.output == folder


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(CapsNMTError, match=r"cannot read .*no\.yaml: No such file"):
        load_recipe(tmp_path / "no.yaml")


@pytest.mark.parametrize("content", [b"a: [1, 2", b"a: b: c", b"\xff\xfe\xfa", b"!!python/object/apply:os.getcwd []"])
def test_a_file_that_is_no_yaml(tmp_path, content):
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    with pytest.raises(CapsNMTError, match="not valid YAML"):
        load_yaml(path)


@pytest.mark.parametrize("content", ["", "just a word", "- a\n- b\n"])
def test_a_file_without_settings(tmp_path, content):
    path = tmp_path / "bad.yaml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(CapsNMTError, match="expected a mapping"):
        load_recipe(path)


def test_what_is_written_is_read_back(recipe, tmp_path):
    config = load_recipe(recipe(), ["languages.target=fr", "training.checkpoint_minutes=1.5"])
    dump_yaml(config, tmp_path / "copy.yaml")
    assert load_recipe(tmp_path / "copy.yaml") == config


@pytest.mark.parametrize("values", [{"source": "a", "target": "b"}, {"tsv": "c"}])
def test_parallel_text(values):
    assert ParallelText(**values)


@pytest.mark.parametrize(
    "values",
    [{}, {"source": "a"}, {"target": "b"}, {"tsv": "c", "source": "a", "target": "b"}, {"tsv": "c", "target": "b"}],
)
def test_parallel_text_is_two_files_or_a_tsv(values):
    with pytest.raises(CapsNMTError, match="give either `source` and `target`, or `tsv`"):
        parse(ParallelText, values, "data.train")


def test_averaging_needs_the_checkpoints():
    with pytest.raises(CapsNMTError, match="average_last: 9 needs keep_last >= 9"):
        parse(TrainingConfig, {"steps": 1, "learning_rate": 1.0, "average_last": 9, "keep_last": 5}, "training")


def test_stopping_by_bleu_needs_a_bleu():
    values = {"steps": 1, "learning_rate": 1.0, "stop_metric": "bleu", "validate_sentences": 0}
    with pytest.raises(CapsNMTError, match="stop_metric: bleu needs validate_sentences > 0"):
        parse(TrainingConfig, values, "training")


def test_sections_are_frozen(recipe):
    with pytest.raises(ValueError, match="frozen"):
        load_recipe(recipe()).training.steps = 3


def test_each_side_may_have_a_vocabulary_of_its_own_size():
    both = parse(SubwordsConfig, {"vocabulary": 100}, "subwords")
    assert (both.size_of("source"), both.size_of("target")) == (100, 100)
    each = parse(SubwordsConfig, {"vocabulary": [160, 80], "joint": False}, "subwords")
    assert (each.size_of("source"), each.size_of("target")) == (160, 80)
    with pytest.raises(CapsNMTError, match=r"\[160, 80\] has a size for each side and needs joint: false"):
        parse(SubwordsConfig, {"vocabulary": [160, 80]}, "subwords")
    for too_small in (31, [160, 31]):
        with pytest.raises(CapsNMTError, match="too small; 32 is the least"):
            parse(SubwordsConfig, {"vocabulary": too_small, "joint": False}, "subwords")


def test_language_pairs():
    pair = parse_language_pair("en-de")
    assert (pair.source, pair.target) == ("en", "de")


@pytest.mark.parametrize("text", ["", "en", "en-", "-de", "e-d", "ende"])
def test_wrong_language_pairs_are_a_users_error(text):
    with pytest.raises(CapsNMTError, match="en-de"):
        parse_language_pair(text)


def test_every_field_of_the_recipe_is_a_section_or_described():
    """The defaults are the paper's, and what has no default must be given."""
    required = {name for name, field in RunConfig.model_fields.items() if field.is_required()}
    assert required == {"languages", "data", "text", "model", "training", "output"}
    assert {name for name, field in DataConfig.model_fields.items() if field.is_required()} == {
        "train",
        "valid",
        "store",
    }
