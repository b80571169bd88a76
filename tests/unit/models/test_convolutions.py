"""ByteNet's and ConvS2S's parts against torch's own convolutions and against their papers' numbers."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from capsnmt.models import build_model
from capsnmt.models.bytenet import ByteNetConfig, ResidualBlock, columns_at
from capsnmt.models.convs2s import ConvolutionBlock, StepAttention, WeightNormLinear
from capsnmt.models.layers import neighbours


def as_convolution(linear, kernel):
    """The weights of a linear layer on `neighbours` as those of torch's convolution: (out, in, kernel)."""
    return linear.unflatten(1, (kernel, -1)).transpose(1, 2)


@pytest.mark.parametrize(("kernel", "dilation"), [(1, 1), (2, 1), (3, 1), (3, 4), (4, 3)])
def test_a_linear_layer_on_neighbours_is_a_convolution(kernel, dilation):
    x, linear = torch.randn(2, 17, 5), nn.Linear(kernel * 5, 7)
    found = linear(neighbours(x, kernel, dilation))
    expected = F.conv1d(x.transpose(1, 2), as_convolution(linear.weight, kernel), linear.bias, dilation=dilation)
    torch.testing.assert_close(found, expected.transpose(1, 2))


# ---------------------------------------------------------------- ByteNet


def bytenet(**settings):
    torch.manual_seed(3)
    values = {"system": "bytenet", "width": 8, "dilations": [1, 2, 4], "encoder_sets": 1, "decoder_sets": 2}
    return build_model({**values, **settings}, source_size=30, target_size=30).eval()


def test_the_residual_block_is_figure_3():
    block = ResidualBlock(6, kernel=3, dilation=4, dropout=0.0)
    x = torch.randn(2, 11, 12)
    h = block.narrow(F.relu(block.narrow_norm(x)))
    weights = as_convolution(block.convolution.weight, 3)
    h = F.relu(block.convolution_norm(h)).transpose(1, 2)
    centred = F.conv1d(h, weights, block.convolution.bias, dilation=4, padding=4).transpose(1, 2)
    causal = F.conv1d(F.pad(h, (8, 0)), weights, block.convolution.bias, dilation=4).transpose(1, 2)
    outputs = [x + block.widen(F.relu(block.widen_norm(h))) for h in (centred, causal)]
    torch.testing.assert_close(block.unmasked(x, torch.ones(2, 11, 1)), outputs[0])
    torch.testing.assert_close(block.masked(x, torch.zeros(2, 8, 6))[0], outputs[1])


@torch.inference_mode()
def test_bytenet_is_a_decoder_on_the_columns_of_an_encoder():
    """Section 3, from blocks that the test above checks; 5 words unfold to 6 columns, the seventh position has none."""
    model, src, tgt_in = bytenet(), torch.randint(4, 30, (1, 5)), torch.randint(4, 30, (1, 7))
    columns = F.pad(model.source_embedding(src), (0, 0, 0, 1))
    for block in model.encoder:
        columns = block.unmasked(columns, torch.ones(1, 6, 1))
    x = model.target_embedding(tgt_in) + F.pad(columns, (0, 0, 0, 1))
    for block in model.decoder:
        x, _ = block.masked(x, torch.zeros(1, block.reach, 8))
    norm, linear, _ = model.head
    expected = model.output(linear(norm(x)).clamp(min=0.0))
    torch.testing.assert_close(model(src, src > 0, tgt_in), expected, atol=1e-5, rtol=0)


def test_bytenets_decoder_sees_as_far_as_its_dilations_say():
    """1 + Σ (k-1) r = 1 + 2 · 2 · (1 + 2 + 4) = 29 tokens."""
    model = bytenet()
    src, tgt_in = torch.full((1, 3), 5), torch.randint(4, 30, (1, 40))
    leaf = model.target_embedding(tgt_in).detach().requires_grad_()
    model.target_embedding.forward = lambda ids: leaf
    model(src, src > 0, tgt_in)[:, -1].square().sum().backward()
    assert (leaf.grad[0] != 0).any(dim=1).tolist() == [False] * 11 + [True] * 29


def test_bytenets_blocks_keep_what_their_convolution_looks_back_to():
    model = bytenet()
    src = torch.full((2, 5), 6)
    state = model.start(model.encode(src, src > 0))
    sizes = [tuple(state[f"past{number}"].shape) for number in range(6)]
    assert sizes == [(2, 2 * r, 8) for r in (1, 2, 4, 1, 2, 4)]


@pytest.mark.parametrize(("length", "columns"), [(1, 1), (4, 4), (5, 6), (50, 60)])
def test_the_source_is_unfolded_to_a_times_its_length(length, columns):
    """a = 1.2, b = 0: English-German in the paper."""
    src = torch.full((1, length), 7)
    assert bytenet().encode(src, src > 0)["columns"].shape == (1, columns, 16)
    assert bytenet(unfold_extra=3).encode(src, src > 0)["columns"].shape == (1, columns + 3, 16)


@pytest.mark.parametrize(("length", "columns"), [(1, 60), (49, 60), (50, 60), (51, 120)])
def test_a_length_may_be_rounded_up_before_it_is_unfolded(length, columns):
    """To multiples of 50, and then by 20 %: section 6."""
    src = torch.full((1, length), 7)
    assert bytenet(unfold_multiple=50).encode(src, src > 0)["columns"].shape == (1, columns, 16)


@pytest.mark.parametrize(("multiple", "columns"), [(1, [12, 6]), (7, [16, 8])])
def test_a_row_is_unfolded_by_its_own_length(multiple, columns):
    src = torch.randint(4, 30, (2, 10))
    mask = torch.arange(10)[None] < torch.tensor([[10], [5]])
    found = bytenet(unfold_multiple=multiple).encode(src, mask)["columns"]
    assert (found != 0).any(dim=2).sum(dim=1).tolist() == columns


def test_an_unfold_ratio_has_two_decimals_at_most():
    assert ByteNetConfig(unfold_ratio=1.15).unfold_ratio == 1.15
    with pytest.raises(ValueError, match="two decimals"):
        ByteNetConfig(unfold_ratio=1.125)


def test_unfolded_columns_know_the_source():
    model, src = bytenet(), torch.randint(4, 30, (1, 10))
    other = src.clone()
    other[0, -1] = (other[0, -1] + 1) % 30
    first, second = (model.encode(ids, torch.ones_like(ids, dtype=torch.bool))["columns"] for ids in (src, other))
    assert not torch.allclose(first[:, 10:], second[:, 10:], atol=1e-4)


def test_beyond_the_columns_there_are_zeros():
    columns = torch.randn(2, 3, 4)
    found = columns_at(columns, torch.tensor([[0, 2, 3], [2, 9, 1]]))
    zero = torch.zeros(4)
    expected = [[columns[0, 0], columns[0, 2], zero], [columns[1, 2], zero, columns[1, 1]]]
    assert torch.equal(found, torch.stack([torch.stack(row) for row in expected]))


def test_bytenet_has_the_papers_depth_by_default():
    config = ByteNetConfig()
    assert len(config.dilations) * config.encoder_sets == 30
    assert len(config.dilations) * config.decoder_sets == 30


def test_dilations_must_be_positive():
    with pytest.raises(ValueError, match="dilations"):
        ByteNetConfig(dilations=(1, 0))


# ---------------------------------------------------------------- ConvS2S


def convs2s(**settings):
    torch.manual_seed(4)
    layers = [[2, 12, 3], [1, 16, 1]]
    values = {"system": "convs2s", "embedding_width": 8, "encoder_layers": layers, "decoder_layers": layers}
    return build_model({**values, **settings}, source_size=30, target_size=30).eval()


def test_weight_norm_is_torchs():
    ours, torchs = WeightNormLinear(5, 7), weight_norm(nn.Linear(5, 7))
    with torch.no_grad():
        ours.g.mul_(torch.rand(7, 1) + 0.5)
        torchs.parametrizations.weight.original0.copy_(ours.g)
        torchs.parametrizations.weight.original1.copy_(ours.v)
        torchs.bias.copy_(ours.bias)
    x = torch.randn(3, 5)
    torch.testing.assert_close(ours(x), torchs(x))


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_gated_convolution_keeps_the_variance(dropout):
    """§3.5: weights from N(0, √(4p/n)) undo what the gates and dropout do to the variance."""
    torch.manual_seed(5)
    block = ConvolutionBlock(256, 256, 3, dropout=dropout)
    x = torch.randn(4, 60, 256) * 0.2  # gates are close to linear for small inputs
    gated = F.glu(block.convolution(neighbours(block.dropout(x), 3)), dim=-1)
    assert gated.var().item() == pytest.approx(x.var().item(), rel=0.15)


def test_the_convolution_block_is_the_papers():
    block = ConvolutionBlock(6, 10, 3, dropout=0.0)
    x = torch.randn(2, 9, 6)
    weights = as_convolution(block.convolution.v, 3)  # g = ‖v‖ at the start
    for found, before in ((block.unmasked(x, torch.ones(2, 9, 1)), 1), (block.masked(x, torch.zeros(2, 2, 6))[0], 2)):
        a, b = F.conv1d(F.pad(x.transpose(1, 2), (before, 2 - before)), weights).transpose(1, 2).chunk(2, dim=-1)
        torch.testing.assert_close(found, (a * b.sigmoid() + F.linear(x, block.residual.v)) * math.sqrt(0.5))


def test_attention_is_equations_1_and_2():
    attention = StepAttention(6, 4)
    h, g, z, e = torch.randn(2, 3, 6), torch.randn(2, 3, 4), torch.randn(2, 5, 4), torch.randn(2, 5, 4)
    lengths = [5, 2]
    mask = torch.arange(5)[None] < torch.tensor(lengths)[:, None]
    found = attention(h, g, {"z": z, "values": z + e, "mask": mask})
    for row, m in enumerate(lengths):
        for i in range(3):
            d = F.linear(h[row, i], attention.W_d.v) + g[row, i]
            a = torch.stack([d @ z[row, j] for j in range(m)]).softmax(dim=0)
            c = sum(a[j] * (z[row, j] + e[row, j]) for j in range(m)) * m * math.sqrt(1 / m)
            expected = (h[row, i] + F.linear(c, attention.W_c.v)) * math.sqrt(0.5)
            torch.testing.assert_close(found[row, i], expected)


@torch.inference_mode()
def test_convs2s_is_its_section_3():
    """From convolutions that a test above checks, with positions on both sides and a look at z + e in every layer."""
    model, src, tgt_in = convs2s(), torch.randint(4, 30, (1, 5)), torch.randint(4, 30, (1, 4))
    e = model.source_embedding(src) + model.source_positions.weight[:5]
    x = model.encoder_in(e)
    for block in model.encoder:
        x = block.unmasked(x, torch.ones(1, 5, 1))
    z = model.encoder_out(x)
    g = model.target_embedding(tgt_in) + model.target_positions.weight[:4]
    h = model.decoder_in(g)
    for block, attention in zip(model.decoder, model.attention, strict=True):
        h, _ = block.masked(h, torch.zeros(1, block.kernel - 1, block.inputs))
        a = ((attention.W_d(h) + g) @ z.transpose(1, 2)).softmax(dim=-1)
        h = (h + attention.W_c(a @ (z + e) * math.sqrt(5))) * math.sqrt(0.5)
    expected = model.output(model.decoder_out(h))
    torch.testing.assert_close(model(src, src > 0, tgt_in), expected, atol=1e-5, rtol=0)


def test_the_encoders_gradient_is_divided_by_the_number_of_attentions():
    """§3.4; the source embeddings' own share of the values is left whole."""
    model = convs2s(dropout=0.0)
    src, tgt_in = torch.randint(4, 30, (2, 5)), torch.randint(4, 30, (2, 4))
    mask = torch.ones_like(src, dtype=torch.bool)
    memory = model.encode(src, mask)
    weights = [model.encoder_out.v, model.encoder[0].convolution.v]
    logits, _ = model.decode(tgt_in, memory, model.start(memory))
    scaled = torch.autograd.grad(logits.square().sum(), weights, retain_graph=True)
    z = memory["z"].detach().requires_grad_()
    e = (memory["values"] - memory["z"]).detach()
    cut = {"z": z, "values": z + e, "mask": mask}
    logits, _ = model.decode(tgt_in, cut, model.start(cut))
    (whole,) = torch.autograd.grad(logits.square().sum(), z)
    fresh = model.encode(src, mask)["z"]
    fresh._backward_hooks.clear()
    unscaled = torch.autograd.grad(fresh, weights, whole)
    for found, full in zip(scaled, unscaled, strict=True):
        torch.testing.assert_close(found, full / 3)  # two layers and one


def test_positions_beyond_the_table_are_its_last():
    model = convs2s(max_positions=4)
    embedded = torch.zeros(1, 7, 8)
    placed = model._positioned(embedded, model.source_positions, torch.arange(7))
    assert torch.equal(placed[0, 3:], model.source_positions.weight[3].expand(4, 8))
    assert not torch.equal(placed[0, 2], placed[0, 3])


def test_convs2s_keeps_k_minus_1_inputs_of_each_layer_that_looks_back():
    model = convs2s()
    src = torch.full((2, 5), 6)
    state = model.start(model.encode(src, src > 0))
    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == {
        "position": (2,),
        "past0": (2, 2, 12),
        "past1": (2, 2, 12),
    }


def test_embeddings_start_as_the_paper_says():
    model = convs2s(embedding_width=256)
    ids = torch.arange(30)
    for embedded in (model.source_embedding(ids), model.target_embedding(ids), model.source_positions(ids)):
        assert embedded.std().item() == pytest.approx(0.1, rel=0.05)
