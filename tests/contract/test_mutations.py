"""The contract tests catch the faults that convolutions and attention are prone to: each is planted and is found."""

from __future__ import annotations

import pytest
import test_contract
import torch
import torch.nn.functional as F

from capsnmt.models.bytenet import ResidualBlock
from capsnmt.models.convs2s import ConvolutionBlock
from capsnmt.models.layers import LSTMDecoder

BLOCKS = {"bytenet": ResidualBlock, "convs2s": ConvolutionBlock}
CHECKS = {
    "steps": test_contract.test_stepwise_logits_are_forward_logits,
    "future": test_contract.test_no_future_leaks_into_the_logits,
    "padding": test_contract.test_padding_and_company_change_nothing,
}


def inputs_of(block, x):
    return block.inputs(x) if isinstance(block, ResidualBlock) else block.dropout(x)


def sees_the_next_position(block, x, past):
    """Padding that is one too small on the left and one too large on the right."""
    window = torch.cat([past, inputs_of(block, x)], dim=1)
    shifted = F.pad(window[:, 1:], (0, 0, 0, 1))
    return block.outputs(x, shifted), window[:, window.size(1) - past.size(1) :]


def forgets_the_newest(block, x, past):
    """A ring buffer that is written one slot late."""
    window = torch.cat([past, inputs_of(block, x)], dim=1)
    end = window.size(1) - 1
    return block.outputs(x, window), window[:, end - past.size(1) : end]


def reads_the_padding(unmasked):
    """An encoder that takes padding for words."""
    return lambda block, x, mask: unmasked(block, x, torch.ones_like(mask))


FAULTS = {
    "a mask that lets the next word through": ("masked", lambda real: sees_the_next_position, set(CHECKS)),
    "a ring buffer that is one late": ("masked", lambda real: forgets_the_newest, {"steps"}),
    "an encoder without a mask": ("unmasked", reads_the_padding, {"padding"}),
}


def attends_with(change):
    """An `attend` that gets another mask than the model made."""
    return lambda real: (
        lambda decoder, layer, u, memory: real(decoder, layer, u, {**memory, "mask": change(memory["mask"])})
    )


WRONG_MASKS = {
    "attention over the padding": torch.ones_like,
    "attention with another sentence's mask": lambda mask: mask.roll(1, dims=0),
}


def caught_by(model, batch):
    caught = set()
    for what, check in CHECKS.items():
        try:
            check(model, batch)
        except AssertionError:
            caught.add(what)
    return caught


@pytest.fixture
def sound_model(tiny_model, batch):
    """sound_model(system, variant) → one that passes; biases are away from zero, as training leaves them: padding is
    then not zero by itself.
    """

    def build(*variant):
        model = tiny_model(*variant)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
        assert caught_by(model, batch) == set()
        return model

    return build


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught(name, fault, sound_model, batch, monkeypatch):
    method, plant, expected = FAULTS[fault]
    model, block = sound_model(name), BLOCKS[name]
    monkeypatch.setattr(block, method, plant(getattr(block, method)))
    assert caught_by(model, batch) == expected


@pytest.mark.parametrize("fault", WRONG_MASKS)
def test_a_planted_mask_of_the_lstm_decoder_is_caught(fault, sound_model, batch, monkeypatch):
    model = sound_model("capsnmt", "states")
    monkeypatch.setattr(LSTMDecoder, "attend", attends_with(WRONG_MASKS[fault])(LSTMDecoder.attend))
    assert caught_by(model, batch) == {"padding"}
