"""A config may come from anywhere: what it asks for must be possible, and no line of it does anything."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from forging import CONFIG, HOSTILE_CONFIGS, RELEASED, WEIGHTS, set_value

from capsnmt.config import load_recipe
from capsnmt.errors import CapsNMTError
from capsnmt.models.weights import read_weights, save_weights


@pytest.mark.parametrize("case", HOSTILE_CONFIGS)
def test_forged_configs(case, folder, refused):
    forge, words = HOSTILE_CONFIGS[case]
    forge(folder)
    assert words in refused("translate", folder)


@pytest.mark.parametrize(
    "tag",
    [
        "!!python/object/apply:os.mkdir ['{}']",
        "!!python/object/new:os.mkdir ['{}']",
        "!!python/name:os.mkdir",
        "!!python/module:os",
        "!!int ''",
        "!!float x",
        "!!bool x",
        "!!timestamp x",
        "!!binary x",
        "!!set {{a}}",
        "!mine x",
    ],
)
def test_tags_make_nothing(tag, folder, refused, tmp_path):
    trace = tmp_path / "it ran"
    (folder / CONFIG).write_text(f"output: {tag.format(trace)}\n", encoding="utf-8")
    text = refused("translate", folder)
    assert "tag" in text
    assert not trace.exists()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model.width", 10**9),
        ("model.width", 10**30),
        ("model.width", "wide"),
        ("model.width", [16]),
        ("model.width", float("nan")),
        ("model.width", float("inf")),
        ("model.encoder_layers", 10**9),
        ("model.num_capsules", [10**9]),
        ("model.num_capsules", 10**12),
        ("model.num_iterations", 10**9),
        ("model.dropout", float("nan")),
        ("model.system", ["capsnmt"]),
        ("model.system", {}),
        ("model.system", None),
        ("model.system", "../capsnmt"),
        ("model", [1]),
        ("model", {1: 2}),
        ("vocabulary.target_size", 10**12),
        ("vocabulary.source_size", 0),
        ("vocabulary.source_size", -1),
        ("vocabulary.fingerprint", "0123456789abcdef"),
        ("vocabulary.fingerprint", None),
        ("vocabulary", None),
        ("decoding.beam", 10**9),
        ("decoding.max_length_ratio", float("inf")),
        ("decoding.max_length_ratio", 1e300),
        ("decoding.max_length_ratio", "1e999"),
        ("decoding.max_length_extra", 10**9),
        ("decoding.max_source_tokens", 10**9),
        ("decoding.length_penalty", float("nan")),
        ("decoding.length_penalty", 1e300),
        ("languages.source", "../../etc/passwd"),
        ("languages.source", "d\x00e"),
        ("languages.target", "e" * 1000),
        ("languages", "de-en"),
        ("training.learning_rate", float("inf")),
        ("training.seed", -1),
        ("training.adam_betas", [2.0, 0.5]),
        ("data", []),
        ("data.train", {"source": ["a"], "target": {}}),
        ("text.protect", ["everything"]),
        ("text.subwords.joint", False),
        ("format_version", 0),
        ("format_version", True),
        ("format_version", "1"),
        ("format_version", 2**70),
        ("format_version", None),
        ("output", 5),
    ],
)
def test_absurd_values_are_named(key, value, folder, refused):
    set_value(key, value)(folder)
    text = refused("translate", folder)
    assert key.split(".")[-1].removesuffix("_version") in text


@pytest.mark.parametrize("size", ["source_size", "target_size"])
def test_sizes_that_the_subwords_do_not_have(size, folder, refused):
    set_value(f"vocabulary.{size}", 65)(folder)
    assert "65" in refused("translate", folder)


def test_ids_beyond_the_vocabulary_cannot_come(refused, tmp_path):
    """Config and weights agree on a vocabulary that is smaller than that of the subwords."""
    folder = Path(shutil.copytree(RELEASED / "simple", tmp_path / "simple"))
    weights = read_weights(folder / WEIGHTS)
    smaller = len(weights["source_embedding.weight"]) - 100
    weights["source_embedding.weight"] = weights["source_embedding.weight"][:smaller].clone()
    save_weights(weights, folder / WEIGHTS)
    set_value("vocabulary.source_size", smaller)(folder)
    assert str(smaller) in refused("translate", folder)


@pytest.mark.parametrize("override", ["output=&a [*a]", "output=!!python/name:os.system", "output={a: 1, a: 2}"])
def test_overrides_are_read_as_strictly(override):
    with pytest.raises(CapsNMTError, match="--set output"):
        load_recipe(RELEASED / "recipe.yaml", [override])
