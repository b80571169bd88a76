"""Routing against loops written straight from the paper's equations and Algorithm 1."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from capsnmt.models.capsnmt import CapsNMT, CapsNMTConfig, CapsuleLayer
from capsnmt.models.routing import dot_product_score, route, squash, windows

SWITCHES = ("position_aware", "share_iteration_weights", "separable_scoring", "scaled_scores", "capsule_norm")


def test_squash_keeps_the_direction():
    v = torch.randn(50, 7, dtype=torch.float64) * torch.logspace(-3, 3, 50, dtype=torch.float64)[:, None]
    assert torch.allclose(torch.cosine_similarity(squash(v), v, dim=-1), torch.ones(50, dtype=torch.float64))


def test_squash_brings_the_norm_below_one_as_eq_10_says():
    v = torch.randn(50, 7, dtype=torch.float64) * torch.logspace(-3, 3, 50, dtype=torch.float64)[:, None]
    norm, squashed = v.norm(dim=-1), squash(v).norm(dim=-1)
    assert (squashed < 1.0).all()
    assert torch.allclose(squashed, norm**2 / (1 + norm**2))


def test_squash_grows_with_the_norm():
    direction = torch.nn.functional.normalize(torch.randn(5, dtype=torch.float64), dim=0)
    norms = squash(torch.linspace(0.0, 20.0, 100, dtype=torch.float64)[:, None] * direction).norm(dim=-1)
    assert norms[0] == 0.0
    assert (norms.diff() > 0).all()


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-8, 1.0, 1e8, 1e15])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_squash_has_a_finite_gradient_everywhere(scale, dtype):
    v = (scale * torch.ones(2, 5, dtype=dtype)).requires_grad_()
    c = squash(v)
    c.float().sum().backward()
    assert torch.isfinite(c).all()
    assert torch.isfinite(v.grad).all()
    assert (c.float().norm(dim=-1) < 1.01).all()


def test_squash_gradient():
    v = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(squash, (v,))


# ---------------------------------------------------------------- the oracle: floats, lists and loops


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def position(pos, d):
    """Vaswani §3.5: PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos of the same."""
    angles = [pos / 10_000 ** (2 * (k // 2) / d) for k in range(d)]
    return [math.sin(angle) if k % 2 == 0 else math.cos(angle) for k, angle in enumerate(angles)]


def slow_squash(v):
    """Eq. 10, with 0 where it divides 0 by 0."""
    norm = math.sqrt(dot(v, v))
    return [0.0] * len(v) if norm == 0.0 else [norm**2 / (1 + norm**2) * x / norm for x in v]


def slow_route(f, score, *, num_children, num_parents, num_iterations, parent_positions=None):
    """Algorithm 1 for one sentence. f(t, i, j) is Eq. 8, score(c_j, i, j, t) what is added to b_ij."""
    b = [[0.0] * num_parents for _ in range(num_children)]
    all_alphas = []
    for t in range(num_iterations):
        alpha = [
            [math.exp(b[i][j]) / sum(map(math.exp, b[i])) for j in range(num_parents)] for i in range(num_children)
        ]
        c = []
        for j in range(num_parents):
            v = [0.0] * len(f(t, 0, j))
            for i in range(num_children):
                u = [alpha[i][j] * x for x in f(t, i, j)]  # Eq. 7
                v = [x + y for x, y in zip(v, u, strict=True)]  # Eq. 9
            if parent_positions is not None:
                v = [x + y for x, y in zip(v, parent_positions[j], strict=True)]
            c.append(slow_squash(v))
        for i in range(num_children):
            for j in range(num_parents):
                b[i][j] += score(c[j], i, j, t)
        all_alphas.append(alpha)
    return c, all_alphas


def test_route_is_algorithm_1():
    batch, L, M, d, T = 2, 5, 3, 4, 4
    f = torch.rand(T, batch, L, M, d, dtype=torch.float64) - 0.3
    positions = torch.randn(M, d, dtype=torch.float64)
    lengths = (5, 3)
    mask = torch.arange(L)[None] < torch.tensor(lengths)[:, None]
    routed = route(
        lambda t: f[t],
        dot_product_score,
        b=torch.zeros(batch, L, M),
        mask=mask,
        num_iterations=T,
        parent_positions=positions,
    )
    for row, length in enumerate(lengths):
        values = f[:, row].tolist()
        c, alphas = slow_route(
            lambda t, i, j, values=values: values[t][i][j],
            lambda c_j, i, j, t, values=values: dot(c_j, values[t][i][j]),  # Eq. 12
            num_children=length,
            num_parents=M,
            num_iterations=T,
            parent_positions=positions.tolist(),
        )
        assert torch.allclose(routed.capsules[row], torch.tensor(c, dtype=torch.float64), atol=1e-9)
        for t in range(T):
            expected = torch.tensor(alphas[t], dtype=torch.float64)
            assert torch.allclose(routed.coefficients[t][row, :length].double(), expected, atol=1e-6)


def make_layer(M=3, d=8, T=3, **switches):
    torch.manual_seed(2)
    layer = CapsuleLayer(CapsNMTConfig(width=d, num_iterations=T, num_capsules=(M,), **switches), M).double()
    if switches.get("capsule_norm", True):  # away from 1 and 0, so that leaving one out would show
        torch.nn.init.normal_(layer.norm.weight)
        torch.nn.init.normal_(layer.norm.bias)
    return layer


def children(batch=2, L=5, d=8, lengths=(5, 3)):
    h = torch.randn(batch, L, d, dtype=torch.float64)
    return h, torch.arange(L)[None] < torch.tensor(lengths)[:, None]


def slow_capsule_layer(layer, h):
    """The whole layer for one unpadded sentence h (L lists of d floats), from weights as lists."""
    config, M, d = layer.config, layer.num_parents, len(h[0])
    W = layer.W.tolist()  # [t][row][j * d + column]
    parent_positions = None
    if config.position_aware:
        h = [[x + p for x, p in zip(h_i, position(i, d), strict=True)] for i, h_i in enumerate(h)]
        parent_positions = [position(j, d) for j in range(M)]

    def linear(module, x):
        return [dot(w, x) + b for w, b in zip(module.weight.tolist(), module.bias.tolist(), strict=True)]

    def g(x):
        return linear(layer.g[2], [max(0.0, y) for y in linear(layer.g[0], x)])

    def f(t, i, j):  # Eq. 8: ReLU(h_i W_j^t)
        W_t = W[0 if config.share_iteration_weights else t]
        return [max(0.0, sum(h[i][k] * W_t[k][j * d + column] for k in range(d))) for column in range(d)]

    def score(c_j, i, j, t):
        scale = math.sqrt(d) if config.scaled_scores else 1.0
        c_j = [scale * x for x in c_j]
        return (dot(g(c_j), g(h[i])) if config.separable_scoring else dot(c_j, f(t, i, j))) / scale

    c, alphas = slow_route(
        f,
        score,
        num_children=len(h),
        num_parents=M,
        num_iterations=config.num_iterations,
        parent_positions=parent_positions,
    )
    if config.capsule_norm:
        c = [layer_norm(c_j, layer.norm.weight.tolist(), layer.norm.bias.tolist()) for c_j in c]
    return c, alphas


def layer_norm(x, weight, bias):
    mean = sum(x) / len(x)
    deviation = math.sqrt(sum((y - mean) ** 2 for y in x) / len(x) + 1e-5)
    return [(y - mean) / deviation * w + b for y, w, b in zip(x, weight, bias, strict=True)]


@pytest.mark.parametrize("switches", list(itertools.product([False, True], repeat=len(SWITCHES))))
def test_capsule_layer_is_what_the_paper_says(switches):
    layer = make_layer(**dict(zip(SWITCHES, switches, strict=True)))
    h, mask = children()
    with torch.no_grad():
        routed = layer(h, mask)
    for row, length in enumerate(mask.sum(dim=1).tolist()):
        c, alphas = slow_capsule_layer(layer, h[row, :length].tolist())
        assert torch.allclose(routed.capsules[row], torch.tensor(c, dtype=torch.float64), atol=1e-5)
        for t, alpha in enumerate(alphas):
            found = routed.coefficients[t][row, :length].double()
            assert torch.allclose(found, torch.tensor(alpha, dtype=torch.float64), atol=1e-5)


def test_the_oracle_routes_at_all():
    """Coefficients that stay uniform would let any score pass the comparisons above."""
    routed = make_layer()(*children())
    assert (routed.coefficients[-1][0] - 1 / 3).abs().max() > 0.02


def test_coefficients_of_a_child_sum_to_one_over_the_parents():
    h, mask = children()
    for alpha in make_layer()(h, mask).coefficients:
        assert alpha.shape == (2, 5, 3)
        assert torch.allclose(alpha.sum(dim=-1), mask.to(alpha.dtype))  # 1 for a real child, 0 for padding


def test_padding_sends_nothing():
    layer, (h, mask) = make_layer(), children()
    routed = layer(h, mask)
    changed = layer(torch.where(mask[..., None], h, 100 * torch.randn_like(h)), mask)
    assert torch.equal(routed.capsules, changed.capsules)
    for before, after in zip(routed.coefficients, changed.coefficients, strict=True):
        assert (before[~mask] == 0).all()
        assert torch.equal(before, after)


def test_one_iteration_is_a_uniform_sum():
    layer, (h, mask) = make_layer(T=1), children()
    routed = layer(h, mask)
    assert len(routed.coefficients) == 1
    assert torch.allclose(routed.coefficients[0][mask], torch.tensor(1 / 3, dtype=routed.coefficients[0].dtype))


def test_the_first_of_several_iterations_is_uniform_too():
    h, mask = children()
    assert torch.allclose(make_layer().double()(h, mask).coefficients[0][mask].double(), torch.tensor(1 / 3).double())


@pytest.mark.parametrize("changed", [0, 1, 2])
def test_each_iteration_uses_its_own_weights(changed):
    layer, (h, mask) = make_layer(), children()
    assert len(layer.W) == 3
    before = layer(h, mask)
    with torch.no_grad():
        layer.W[changed].mul_(-1.0)
    after = layer(h, mask)
    same = [torch.equal(a, b) for a, b in zip(before.coefficients, after.coefficients, strict=True)]
    # α of iteration t is made from the capsules of t - 1, so W^t shows from α^(t+1) on.
    assert same == [t <= changed for t in range(3)]
    # And through α it reaches the last capsules, whichever W was changed.
    assert not torch.allclose(before.capsules, after.capsules)


@pytest.mark.parametrize("changed", [0, 1, 2])
def test_without_agreement_all_weights_take_part_in_one_uniform_sum(changed):
    """The control of the routing study: the parameters of T iterations, and no routing."""
    layer, (h, mask) = make_layer(agreement=False), children()
    before = layer(h, mask)
    assert len(before.coefficients) == 1
    assert torch.allclose(before.coefficients[0][mask].double(), torch.tensor(1 / 3).double())
    with torch.no_grad():
        layer.W[changed].mul_(-1.0)
    assert not torch.allclose(before.capsules, layer(h, mask).capsules)


def test_without_agreement_one_iteration_is_what_it_was():
    h, mask = children()
    expected, found = (make_layer(T=1, agreement=agreement)(h, mask).capsules for agreement in (True, False))
    torch.testing.assert_close(found, expected)


def test_shared_weights_are_one_slice():
    assert len(make_layer(share_iteration_weights=True).W) == 1


def test_capsules_are_squashed_when_no_norm_follows():
    h, mask = children()
    assert (make_layer(capsule_norm=False)(h, mask).capsules.norm(dim=-1) < 1.0).all()


def test_scaling_changes_nothing_without_separable_scoring():
    h, mask = children()
    scaled, plain = (make_layer(separable_scoring=False, scaled_scores=switch)(h, mask) for switch in (True, False))
    assert torch.allclose(scaled.capsules, plain.capsules)


@pytest.mark.parametrize("switches", [{}, {"separable_scoring": False}, {"scaled_scores": False}])
def test_a_larger_score_scale_multiplies_the_first_agreement(switches):
    h, mask = children()
    plain, scaled = (make_layer(score_scale=scale, **switches)(h, mask).coefficients[1] for scale in (1.0, 3.0))
    logits, tripled = (alpha[mask].log() - alpha[mask].log().mean(dim=-1, keepdim=True) for alpha in (plain, scaled))
    torch.testing.assert_close(tripled, 3.0 * logits, atol=1e-4, rtol=1e-4)


def test_windows_give_each_part_of_a_sentence_its_own_parent():
    mask = torch.tensor([[True] * 9, [True] * 5 + [False] * 4, [True] + [False] * 8])
    logits = windows(mask, 3)  # parents at the first, the middle and the last word
    assert logits[0, [0, 4, 8]].argmax(dim=-1).tolist() == [0, 1, 2]
    assert logits[1, [0, 2, 4]].argmax(dim=-1).tolist() == [0, 1, 2], "by place in the row's own sentence"
    assert logits[0, [0, 4, 8], [0, 1, 2]].tolist() == [0.0, 0.0, 0.0]
    assert logits[0, 0].tolist() == [0.0, -1.0, -4.0]
    assert logits[2, 0].tolist() == [0.0, -1.0, -4.0], "one word is the first"


def test_routing_begins_from_windows():
    config = CapsNMTConfig(width=8, num_capsules=(3,), windows=2.0)
    torch.manual_seed(0)
    mask = torch.ones(1, 9, dtype=torch.bool)
    alpha = CapsuleLayer(config, 3)(torch.randn(1, 9, 8), mask).coefficients[0]
    assert torch.allclose(alpha, (2.0 * windows(mask, 3)).softmax(dim=-1))


@pytest.mark.parametrize("separable", [True, False])
def test_a_shared_transform_is_the_same_for_every_parent(separable):
    torch.manual_seed(0)
    settings = {"width": 8, "separable_scoring": separable, "windows": 1.0}
    shared = CapsuleLayer(CapsNMTConfig(transform="shared", **settings), 3)
    copied = CapsuleLayer(CapsNMTConfig(**settings), 3)
    copied.load_state_dict({**shared.state_dict(), "W": shared.W.repeat(1, 1, 3)})
    h, mask = torch.randn(2, 6, 8), torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    ours, theirs = shared(h, mask), copied(h, mask)
    assert torch.allclose(ours.capsules, theirs.capsules, atol=1e-5)
    assert torch.allclose(ours.coefficients[-1], theirs.coefficients[-1], atol=1e-6)


def test_the_residual_of_a_capsule_is_the_mean_of_its_children():
    torch.manual_seed(0)
    layer = CapsuleLayer(CapsNMTConfig(width=8, capsule_residual=True, capsule_norm=False), 3)
    h, mask = torch.randn(2, 6, 8), torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    routed = layer(h, mask)
    with torch.no_grad():
        layer.W.zero_()  # then nothing but the parents' positions is squashed
    bare = CapsuleLayer(CapsNMTConfig(width=8, capsule_norm=False), 3)
    bare.load_state_dict(layer.state_dict())
    again = layer(h, mask)
    residual = again.capsules - math.sqrt(8) * bare(h, mask).capsules
    for row, length in ((0, 6), (1, 4)):
        alpha = again.coefficients[-1][row, :length]  # (length, M)
        means = torch.stack([(alpha[:, j, None] * h[row, :length]).sum(dim=0) / alpha[:, j].sum() for j in range(3)])
        assert torch.allclose(residual[row], means, atol=1e-5)
    assert not torch.allclose(routed.capsules, again.capsules)


def test_stacked_capsule_layers():
    torch.manual_seed(0)
    config = CapsNMTConfig(width=8, encoder_layers=1, decoder_layers=1, num_capsules=(5, 3))
    model = CapsNMT(config, source_size=20, target_size=20).eval()
    src = torch.randint(4, 20, (2, 7))
    mask = torch.arange(7)[None] < torch.tensor([[7], [4]])
    first, second = model.routed(model.states(src, mask), mask)
    assert first.capsules.shape == (2, 5, 8)
    assert second.capsules.shape == (2, 3, 8)
    assert [alpha.shape for alpha in second.coefficients] == [(2, 5, 3)] * 3
    again = model.capsules[1](first.capsules, torch.ones(2, 5, dtype=torch.bool))  # all five parents are real children
    assert torch.equal(again.capsules, second.capsules)
    assert model.W_c.weight.shape == (8, 3 * 8)
    assert torch.equal(model.encode(src, mask)["context"], model.W_c(second.capsules.flatten(1)))


def test_num_capsules_may_be_one_number():
    assert CapsNMTConfig(num_capsules=4).num_capsules == (4,)


@pytest.mark.parametrize("wrong", [(), (0,), (6, 0), -1])
def test_a_layer_without_capsules_is_refused(wrong):
    with pytest.raises(ValueError, match="at least one"):
        CapsNMTConfig(num_capsules=wrong)
