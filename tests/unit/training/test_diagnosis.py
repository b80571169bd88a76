"""What the diagnosis says of coefficients whose state is known, and of the gradients of a real update."""

from __future__ import annotations

import math

import torch

from capsnmt.training.diagnosis import describe_routing, gradient_norms


def test_uniform_coefficients_have_entropy_1_and_use_every_capsule():
    report = describe_routing(torch.full((10, 2, 4), 0.25))
    assert math.isclose(report["entropy_1"], 1.0, abs_tol=1e-6)
    assert math.isclose(report["entropy_2"], 1.0, abs_tol=1e-6)
    assert math.isclose(report["spread_2"], 0.0, abs_tol=1e-6)
    assert math.isclose(report["used"], 4.0, rel_tol=1e-5)
    assert math.isclose(report["largest"], 0.25, rel_tol=1e-5)


def test_sharp_and_balanced_is_told_from_collapsed():
    sharp = torch.eye(4).repeat(3, 1)[:, None]  # every token has a capsule of its own choice
    collapsed = torch.eye(4)[[0] * 12][:, None]  # all choose the first
    for alpha, used, largest in ((sharp, 4.0, 0.25), (collapsed, 1.0, 1.0)):
        report = describe_routing(alpha)
        assert report["entropy_1"] < 1e-6
        assert math.isclose(report["used"], used, rel_tol=1e-5)
        assert math.isclose(report["largest"], largest, rel_tol=1e-5)


def test_spread_is_the_deviation_of_the_logits():
    b = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    report = describe_routing(torch.softmax(b, dim=-1)[:, None])
    assert math.isclose(report["spread_1"], b.std(correction=0).item(), rel_tol=1e-5)


def test_gradient_norms_of_the_parts_make_up_the_whole(model):
    src = torch.randint(4, 40, (3, 6))
    model(src, torch.ones_like(src, dtype=torch.bool), src).sum().backward()
    norms = gradient_norms(model)
    whole = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm().item()
    tied = math.sqrt(sum(norm**2 for norm in norms.values()))
    assert tied >= whole * (1 - 1e-5)  # tied tables count in every part that holds them
    own = {name for name, _ in model.named_parameters(recurse=False)}
    assert norms.keys() == own | {name for name, part in model.named_children() if list(part.parameters())}
    assert {"source_embedding", "output"} <= norms.keys()


def test_a_system_that_routes_says_how(model):
    src = torch.randint(4, 40, (3, 6))
    mask = torch.arange(6)[None] < torch.tensor([[6], [2], [4]])
    alpha = model.routing(src, mask)
    if alpha is None:
        return
    assert alpha.shape[0] == 3
    assert alpha.shape[2] == 6
    assert torch.allclose(alpha.sum(dim=-1), mask[:, None].float().expand(alpha.shape[:3]), atol=1e-5)
