"""Weights to disk and back."""

from __future__ import annotations

import pytest
import torch

from capsnmt.errors import CapsNMTError
from capsnmt.models.weights import load_weights, read_weights, save_weights, weights_of


def test_round_trip(model, variant, tiny_model, tmp_path):
    save_weights(weights_of(model), tmp_path / "w.safetensors")
    other = tiny_model(*variant)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.normal_()
    load_weights(other, read_weights(tmp_path / "w.safetensors"), "here")
    for (name, mine), (other_name, loaded) in zip(model.named_parameters(), other.named_parameters(), strict=True):
        assert name == other_name
        assert torch.equal(mine, loaded)


def test_tied_weights_are_stored_once_and_stay_tied(system, tiny_model, tmp_path):
    model = tiny_model(system, tie_embeddings="all")
    weights = weights_of(model)
    assert sum(tensor.shape == model.output.weight.shape for tensor in weights.values()) == 1
    save_weights(weights, tmp_path / "w.safetensors")
    load_weights(model, read_weights(tmp_path / "w.safetensors"), "here")
    assert model.output.weight is model.target_embedding.weight


def test_missing_and_unknown_names_are_told(system, tiny_model):
    model = tiny_model(system)
    weights = weights_of(model)
    gone = next(iter(weights))
    weights["something.else"] = weights.pop(gone)
    with pytest.raises(CapsNMTError) as caught:
        load_weights(model, weights, "the/folder")
    assert "the/folder" in str(caught.value)
    assert gone in str(caught.value)
    assert "something.else" in str(caught.value)


def test_a_wrong_shape_names_the_weight_and_both_shapes(system, tiny_model):
    model = tiny_model(system)
    weights = weights_of(model)
    name = next(iter(weights))
    weights[name] = torch.zeros(3, 7)
    with pytest.raises(CapsNMTError) as caught:
        load_weights(model, weights, "the/folder")
    assert name in str(caught.value)
    assert "(3, 7)" in str(caught.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(CapsNMTError, match="does not exist"):
        read_weights(tmp_path / "w.safetensors")


@pytest.mark.parametrize("content", [b"", b"no safetensors at all", b"\x80\x02}q\x00."])
def test_a_damaged_file(content, tmp_path):
    (tmp_path / "w.safetensors").write_bytes(content)
    with pytest.raises(CapsNMTError, match="damaged"):
        read_weights(tmp_path / "w.safetensors")
