"""bf16 where it was asked for and nowhere else."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from capsnmt.errors import CapsNMTError
from capsnmt.training.precision import use_bf16


def inputs():
    torch.manual_seed(0)
    mask = torch.arange(6)[None] < torch.tensor([[6], [4]])
    return torch.randint(4, 40, (2, 6)), mask, torch.randint(4, 40, (2, 5))


def parts_that_compute(model):
    """Children with matrix products in them: an embedding or a dropout has nothing to gain."""

    def multiplies(part):
        return any(weight.dim() > 1 for weight in part.parameters(recurse=False)) and not isinstance(part, nn.Embedding)

    return [name for name, child in model.named_children() if any(multiplies(part) for part in child.modules())]


def lstm_runs_in_bf16():
    """False on CPUs for which oneDNN has no bf16 LSTM, such as those with AVX2 only."""
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            nn.LSTM(8, 8)(torch.randn(2, 1, 8))
    except RuntimeError:
        return False
    return True


def parts_that_can(model):
    """Parts that this machine can run in bf16."""
    return [name for name in parts_that_compute(model) if lstm_runs_in_bf16() or not has_lstm(model, name)]


def has_lstm(model, name):
    return any(isinstance(part, nn.LSTM) for part in model.get_submodule(name).modules())


class TwoParts(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.second(self.first(x))


def test_only_the_named_part_computes_in_bf16():
    model, x = TwoParts(), torch.randn(3, 8)
    expected = model.second(model.first(x).bfloat16().float())
    use_bf16(model, ["first"])
    first = model.first(x)
    assert first.dtype is torch.float32
    assert torch.equal(first, first.bfloat16().float())  # it was bf16 inside: every value is one of bf16's
    second = model.second(x)
    assert not torch.equal(second, second.bfloat16().float())
    assert model(x).dtype is torch.float32
    assert torch.allclose(model(x), expected, atol=0.1)


def test_every_part_of_every_system_can_run_in_bf16(system, tiny_model):
    expected = tiny_model(system)(*inputs())
    names = parts_that_can(tiny_model(system))
    assert "output" in names
    for name in names:
        model = tiny_model(system)
        use_bf16(model, [name])
        found = model(*inputs())
        assert found.dtype is torch.float32, name
        assert not torch.equal(found, expected), f"{name} was named, but nothing ran in bf16"
        assert (found - expected).abs().mean() < 0.1, name


def test_all_is_every_part(system, tiny_model):
    named, model = tiny_model(system), tiny_model(system)
    use_bf16(named, parts_that_can(named))
    use_bf16(model, ["all"])
    assert torch.equal(model(*inputs()), named(*inputs()))


def test_a_processor_without_bf16_lstms_keeps_them_in_fp32(tiny_model, monkeypatch):
    monkeypatch.setattr("capsnmt.training.precision._lstm_runs_in_bf16", lambda device: False)
    expected, model = tiny_model("capsnmt")(*inputs()), tiny_model("capsnmt")
    assert use_bf16(model, ["all"]) == [name for name, _ in model.named_children()]
    assert torch.equal(model(*inputs()), expected)
    assert use_bf16(model, ["encoder", "output"]) == ["encoder"]
    assert not torch.equal(model(*inputs()), expected)


def test_parts_of_parts_can_be_named(tiny_model):
    expected, model = tiny_model("capsnmt")(*inputs()), tiny_model("capsnmt")
    use_bf16(model, ["capsules.0"])
    assert not torch.equal(model(*inputs()), expected)


def test_the_rest_of_the_model_is_untouched(system, tiny_model):
    src, mask, _ = inputs()
    expected, model = tiny_model(system).encode(src, mask), tiny_model(system)
    use_bf16(model, ["output"])
    for name, tensor in model.encode(src, mask).items():
        assert torch.equal(tensor, expected[name])


def test_gradients_flow_through_a_bf16_part(system, tiny_model):
    model = tiny_model(system)
    use_bf16(model, parts_that_can(model))
    model(*inputs()).square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.dtype is torch.float32, name
        assert torch.isfinite(parameter.grad).all(), name


def test_nothing_named_changes_nothing(system, tiny_model):
    expected, model = tiny_model(system)(*inputs()), tiny_model(system)
    use_bf16(model, [])
    assert torch.equal(model(*inputs()), expected)


def test_an_unknown_part_is_told_the_known_ones(tiny_model):
    with pytest.raises(CapsNMTError) as caught:
        use_bf16(tiny_model("capsnmt"), ["capsule"])
    assert "'capsule'" in str(caught.value)
    assert "training.bf16_modules" in str(caught.value)
    assert "capsules" in str(caught.value)
