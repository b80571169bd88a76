"""The measured systems are the paper's, and a missing peer is said to be missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import yaml

from capsnmt.bench.systems import SYSTEMS, chosen_systems, model_section
from capsnmt.config import load_recipe
from capsnmt.errors import CapsNMTError
from capsnmt.models import build_model, parse_model_config

ALL_RECIPES = Path(__file__).parents[3] / "recipes"
RECIPES = ALL_RECIPES / "wmt14-en-de"
STUDY = sorted((ALL_RECIPES / "multi30k-en-de").glob("*.yaml"))


@pytest.mark.parametrize("name", ["capsnmt", "transformer"])
def test_the_base_systems_are_those_of_the_base_recipes_with_tied_tables(name):
    expected = parse_model_config({**load_recipe(RECIPES / f"{name}-base.yaml").model, "tie_embeddings": "all"})
    assert parse_model_config(model_section(SYSTEMS[name], 512)) == expected


def test_table_3_varies_the_number_of_capsules_alone():
    sections = [model_section(SYSTEMS[name], 512) for name in ("capsnmt-m4", "capsnmt", "capsnmt-m8")]
    assert [section.pop("num_capsules") for section in sections] == [[4], [6], [8]]
    assert sections[0] == sections[1] == sections[2]


def test_an_unknown_system_is_named_with_the_known_ones():
    with pytest.raises(CapsNMTError, match=r"marian.*ct2-12"):
        chosen_systems(["marian"], ())


def test_without_ctranslate2_its_rows_are_left_out_with_the_command_that_adds_them(monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    found, notes = chosen_systems((), tuple(SYSTEMS))
    assert {system.kind for system in found.values()} == {"ours"}
    assert len(notes) == 1
    assert "pip install 'capsnmt[bench]'" in notes[0]
    assert chosen_systems(["capsnmt"], ())[1] == []
    with pytest.raises(CapsNMTError, match="pip install"):
        chosen_systems(["ct2-6+6"], ())


def test_systems_keep_the_order_that_was_asked_for():
    found, _ = chosen_systems(["transformer", "capsnmt", "transformer"], ())
    assert list(found) == ["transformer", "capsnmt"]


def built(recipe):
    """The system of a recipe as a benchmark builds it, without memory for its weights."""
    systems, _ = chosen_systems([str(recipe)], ())
    section = model_section(systems[str(recipe)], 512)
    with torch.device("meta"):
        build_model(section, source_size=200, target_size=200)
    return section


@pytest.mark.parametrize("recipe", STUDY, ids=lambda path: path.stem)
def test_every_recipe_of_the_study_is_measured_as_it_is(recipe):
    assert built(recipe) == load_recipe(recipe).model


def test_a_recipe_of_every_system_is_measured_as_it_is(system, tiny_config, tmp_path):
    values = yaml.safe_load(STUDY[0].read_text(encoding="utf-8"))
    recipe = tmp_path / "small.yaml"
    recipe.write_text(yaml.safe_dump({**values, "model": tiny_config(system)}), encoding="utf-8")
    assert built(recipe) == tiny_config(system)
