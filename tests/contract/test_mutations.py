"""The contract tests catch the faults that convolutions and attentions are prone to: each is planted and found."""

from __future__ import annotations

import pytest
import test_contract
import torch
import torch.nn.functional as F

from capsnmt.models.bytenet import ByteNet, ResidualBlock
from capsnmt.models.convs2s import ConvolutionBlock, StepAttention
from capsnmt.models.layers import AdditiveAttention, Attention, LSTMDecoder
from capsnmt.models.rnmt import MultiHeadAdditiveAttention

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


# Where each attention gets the memory and its mask: the last argument.
ATTENTIONS = {
    ("capsnmt", "states"): (LSTMDecoder, "attend"),
    ("rnnsearch",): (AdditiveAttention, "forward"),
    ("gnmt",): (AdditiveAttention, "forward"),
    ("rnmt",): (MultiHeadAdditiveAttention, "forward"),
    ("hybrid",): (MultiHeadAdditiveAttention, "forward"),
    ("convs2s",): (StepAttention, "forward"),
}


def attends_with(change, real):
    """An attention that gets another mask than the model made."""
    return lambda module, *given: real(module, *given[:-1], {**given[-1], "mask": change(given[-1]["mask"])})


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
@pytest.mark.parametrize("which", ATTENTIONS, ids="-".join)
def test_a_planted_mask_of_an_attention_is_caught(which, fault, sound_model, batch, monkeypatch):
    module, method = ATTENTIONS[which]
    model = sound_model(*which)
    monkeypatch.setattr(module, method, attends_with(WRONG_MASKS[fault], getattr(module, method)))
    assert "padding" in caught_by(model, batch)


def test_a_transformer_that_sees_what_it_is_to_write_is_caught(sound_model, batch, monkeypatch):
    model, real = sound_model("transformer"), Attention.forward

    def sees_all(attention, x, keys, values, mask):
        causal = mask.dim() == 2  # that of the decoder's own positions; the source's is broadcast over heads
        return real(attention, x, keys, values, torch.ones_like(mask) if causal else mask)

    monkeypatch.setattr(Attention, "forward", sees_all)
    assert caught_by(model, batch) == set(CHECKS)


@pytest.mark.parametrize("kernel", [(), ("even",)], ids=["odd", "even"])
def test_columns_of_bytenet_beyond_a_sentences_own_are_caught(kernel, sound_model, batch, monkeypatch):
    """What lies beyond |t̂| of a sentence is its company's; a decoder that reads it depends on its batch."""
    model, unfolded = sound_model("bytenet", *kernel), ByteNet.unfolded

    def whole_batch(self, lengths):
        found = unfolded(self, lengths)
        return found if isinstance(found, int) else found.amax().expand_as(found)

    monkeypatch.setattr(ByteNet, "unfolded", whole_batch)
    assert caught_by(model, batch) == {"padding"}
