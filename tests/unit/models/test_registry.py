"""MODELS, and the way from a `model` section to a model."""

from __future__ import annotations

import pytest

from capsnmt.errors import CapsNMTError
from capsnmt.models import MODELS, build_model, parse_model_config
from capsnmt.models.contract import TranslationModel


def test_every_entry_names_its_own_config(system):
    config, model = MODELS[system]
    assert config().system == system  # so a recipe's `system` and the config's own cannot differ
    assert issubclass(model, TranslationModel)
    assert parse_model_config({"system": system}) == config()


def test_every_system_refuses_an_unknown_key(system):
    with pytest.raises(CapsNMTError, match="did you mean `dropout`"):
        parse_model_config({"system": system, "dropuot": 0.1})


@pytest.mark.parametrize("values", [{"system": "capsnet"}, {}])
def test_an_unknown_system_is_told_the_known_ones(values):
    with pytest.raises(CapsNMTError) as caught:
        parse_model_config(values)
    assert all(name in str(caught.value) for name in MODELS)


def test_sizes_that_cannot_be_tied_are_a_users_error(system, tiny_config):
    with pytest.raises(CapsNMTError, match="tie_embeddings"):
        build_model(tiny_config(system, tie_embeddings="all"), source_size=20, target_size=30)


def test_sides_may_have_vocabularies_of_their_own(system, tiny_config):
    model = build_model(tiny_config(system, tie_embeddings="target"), source_size=20, target_size=30)
    assert model.output.weight.shape[0] == 30


def test_heads_must_divide_the_width():
    with pytest.raises(CapsNMTError, match="width 20 is not a multiple of num_heads 8"):
        parse_model_config({"system": "transformer", "width": 20, "num_heads": 8})


def test_configs_are_frozen(system):
    with pytest.raises(ValueError, match="frozen"):
        MODELS[system].config().width = 3
