"""The training-side contract, over every system and every tiny variant of it."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from capsnmt.models import MODELS

VOCABULARY = 40


def test_every_system_has_tiny_configs(system, tiny_config):
    assert tiny_config(system)["system"] == system


def elements(tensors: dict[str, Tensor]) -> int:
    return sum(tensor[0].numel() for tensor in tensors.values())


def run_steps(model, src, mask, tgt_in):
    memory = model.encode(src, mask)
    state, logits = model.start(memory), []
    for position in range(tgt_in.size(1)):
        step_logits, state = model.step(tgt_in[:, position], memory, state)
        logits.append(step_logits)
    return torch.stack(logits, dim=1)


def test_shapes(model, batch):
    src, mask, tgt_in, _ = batch
    assert model(src, mask, tgt_in).shape == (*tgt_in.shape, VOCABULARY)


@torch.inference_mode()
def test_stepwise_logits_are_forward_logits(model, batch):
    src, mask, tgt_in, tgt_mask = batch
    together, stepwise = model(src, mask, tgt_in), run_steps(model, src, mask, tgt_in)
    torch.testing.assert_close(stepwise[tgt_mask], together[tgt_mask], atol=1e-5, rtol=0)


@torch.inference_mode()
def test_padding_and_company_change_nothing(model, batch):
    src, mask, tgt_in, tgt_mask = batch
    together = model(src, mask, tgt_in)
    for row in range(src.size(0)):
        source, target = src[row : row + 1, mask[row]], tgt_in[row : row + 1, tgt_mask[row]]
        alone = model(source, torch.ones_like(source, dtype=torch.bool), target)
        torch.testing.assert_close(alone[0], together[row, tgt_mask[row]], atol=1e-5, rtol=0)


@torch.inference_mode()
def test_what_stands_in_the_padding_does_not_matter(model, batch):
    src, mask, tgt_in, tgt_mask = batch
    other_src = torch.where(mask, src, torch.randint_like(src, 4, VOCABULARY))
    other_tgt = torch.where(tgt_mask, tgt_in, torch.randint_like(tgt_in, 4, VOCABULARY))
    expected, found = model(src, mask, tgt_in), model(other_src, mask, other_tgt)
    torch.testing.assert_close(found[tgt_mask], expected[tgt_mask], atol=1e-6, rtol=0)


@torch.inference_mode()
def test_the_order_of_a_batch_does_not_matter(model, batch):
    src, mask, tgt_in, tgt_mask = batch
    order = torch.tensor([2, 0, 3, 1])
    expected, found = model(src, mask, tgt_in)[order], model(src[order], mask[order], tgt_in[order])
    torch.testing.assert_close(found[tgt_mask[order]], expected[tgt_mask[order]], atol=1e-5, rtol=0)


@torch.inference_mode()
def test_no_future_leaks_into_the_logits(model, batch):
    src, mask, tgt_in, _ = batch
    expected = model(src, mask, tgt_in)
    for t in range(tgt_in.size(1) - 1):
        changed = tgt_in.clone()
        changed[:, t + 1 :] = (changed[:, t + 1 :] + 7) % VOCABULARY
        found = model(src, mask, changed)
        torch.testing.assert_close(found[:, : t + 1], expected[:, : t + 1], atol=1e-6, rtol=0)
        assert not torch.allclose(found[:, t + 1], expected[:, t + 1], atol=1e-4)  # the present does matter


@pytest.mark.parametrize("t", [0, 2, 5])
def test_no_future_has_a_gradient(variant, tiny_model, batch, t):
    src, mask, tgt_in, _ = batch
    model = tiny_model(*variant, tie_embeddings="target")  # so that the source has an embedding of its own
    leaf = model.target_embedding(tgt_in).detach().requires_grad_()
    model.target_embedding.forward = lambda ids: leaf
    model(src, mask, tgt_in)[:, t].square().sum().backward()
    assert (leaf.grad[:, t + 1 :] == 0).all()
    assert all((leaf.grad[:, position] != 0).any() for position in range(t + 1))  # all of the past is seen


@torch.inference_mode()
def test_every_source_token_matters(model, batch):
    src, mask, tgt_in, _ = batch
    expected = model(src, mask, tgt_in)
    for row, position in mask.nonzero().tolist():
        changed = src.clone()
        changed[row, position] = 4 + (changed[row, position] - 4 + 9) % (VOCABULARY - 4)
        difference = (model(changed, mask, tgt_in) - expected).abs().amax(dim=(1, 2))
        assert difference[row] > 1e-5
        assert difference[torch.arange(len(src)) != row].max() < 1e-6  # and only to its own sentence


@torch.inference_mode()
def test_the_order_of_the_source_matters(model):
    src = torch.tensor([[5, 6, 7, 8]])
    mask, tgt_in = torch.ones_like(src, dtype=torch.bool), torch.tensor([[2]])
    assert not torch.allclose(model(src, mask, tgt_in), model(src.flip(1), mask, tgt_in), atol=1e-4)


def test_every_parameter_gets_a_gradient(model, batch):
    src, mask, tgt_in, tgt_mask = batch
    model.train()
    logits = model(src, mask, tgt_in)
    torch.nn.functional.cross_entropy(logits[tgt_mask], torch.randint(VOCABULARY, (int(tgt_mask.sum()),))).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert (parameter.grad != 0).any(), name


def test_memory_and_state_are_dicts_of_batch_first_tensors(model, batch):
    src, mask, tgt_in, _ = batch
    memory = model.encode(src, mask)
    state = model.start(memory)
    _, next_state = model.step(tgt_in[:, 0], memory, state)
    for tensors in (memory, state, next_state):
        assert isinstance(tensors, dict)
        assert tensors
        assert all(isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in tensors.items())
        assert {tensor.size(0) for tensor in tensors.values()} == {src.size(0)}
    assert state.keys() == next_state.keys()


@torch.inference_mode()
def test_reordering_rows_is_one_line_for_all_systems(model, batch):
    src, mask, tgt_in, _ = batch
    memory = model.encode(src, mask)
    _, state = model.step(tgt_in[:, 0], memory, model.start(memory))
    expected, _ = model.step(tgt_in[:, 1], memory, state)
    rows = torch.tensor([3, 1, 1, 0, 2])
    moved_memory, moved_state = ({name: tensor[rows] for name, tensor in part.items()} for part in (memory, state))
    found, _ = model.step(tgt_in[rows, 1], moved_memory, moved_state)
    torch.testing.assert_close(found, expected[rows], atol=1e-5, rtol=0)


@torch.inference_mode()
def test_steps_do_not_change_the_state_they_were_given(model, batch):
    """A beam continues the same state several times."""
    src, mask, tgt_in, _ = batch
    memory = model.encode(src, mask)
    state = model.start(memory)
    before = {name: tensor.clone() for name, tensor in state.items()}
    first, _ = model.step(tgt_in[:, 0], memory, state)
    assert all(torch.equal(state[name], before[name]) for name in state)
    again, _ = model.step(tgt_in[:, 0], memory, state)
    assert torch.equal(first, again)


@torch.inference_mode()
def test_size_of_the_memory(model, variant, promised):
    """The paper's claim: a fixed-size memory, the same for 5 and for 5,000 source tokens."""
    constant = promised("memory", variant) == "constant"
    sizes = []
    for length in (5, 5000) if constant else (5, 255, 505):
        src = torch.randint(4, VOCABULARY, (1, length))
        sizes.append(elements(model.encode(src, torch.ones_like(src, dtype=torch.bool))))
    growth = {after - before for before, after in itertools.pairwise(sizes)}
    assert len(growth) == 1  # linear, not quadratic
    assert (growth == {0}) == constant


@torch.inference_mode()
def test_size_of_the_state(model, variant, batch, promised):
    src, mask, tgt_in, _ = batch
    memory = model.encode(src, mask)
    state = model.start(memory)
    sizes = [elements(state)]
    for position in range(tgt_in.size(1)):
        _, state = model.step(tgt_in[:, position], memory, state)
        sizes.append(elements(state))
    growth = {after - before for before, after in itertools.pairwise(sizes)}
    assert len(growth) == 1  # the same at every step
    assert (growth == {0}) == (promised("state", variant) == "constant")


@torch.inference_mode()
def test_one_source_token_is_enough(model):
    src = torch.tensor([[3]])
    logits = model(src, torch.ones_like(src, dtype=torch.bool), torch.tensor([[2, 5]]))
    assert logits.shape == (1, 2, VOCABULARY)
    assert torch.isfinite(logits).all()


@torch.inference_mode()
def test_evaluation_is_deterministic_and_training_drops_out(variant, tiny_model, batch):
    src, mask, tgt_in, _ = batch
    model = tiny_model(*variant, dropout=0.5)
    assert torch.equal(model(src, mask, tgt_in), model(src, mask, tgt_in))
    model.train()
    assert not torch.equal(model(src, mask, tgt_in), model(src, mask, tgt_in))


def test_models_are_what_the_registry_says(system, tiny_model):
    assert isinstance(tiny_model(system), MODELS[system].model)
