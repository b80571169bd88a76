"""Our Transformer against torch's own stacks with the same weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from capsnmt.models.layers import sinusoidal_positions
from capsnmt.models.transformer import Transformer, TransformerConfig

D, HEADS, INNER, VOCABULARY = 16, 4, 40, 30
SRC_LENGTHS, TGT_LENGTHS = (7, 3, 1), (2, 6, 5)


def make(norm, layers=2):
    torch.manual_seed(6)
    config = TransformerConfig(
        width=D, num_heads=HEADS, inner_width=INNER, encoder_layers=layers, decoder_layers=layers + 1, norm=norm
    )
    model = Transformer(config, source_size=VOCABULARY, target_size=VOCABULARY).eval()
    for parameter in model.parameters():  # biases and norms away from 0 and 1, so that a forgotten one shows
        if parameter.dim() == 1:
            nn.init.normal_(parameter, mean=0.5)
    return model


def attention_weights(attention, prefix):
    parts = (attention.query, attention.key, attention.value)
    return {
        f"{prefix}.in_proj_weight": torch.cat([part.weight for part in parts]),
        f"{prefix}.in_proj_bias": torch.cat([part.bias for part in parts]),
        f"{prefix}.out_proj.weight": attention.output.weight,
        f"{prefix}.out_proj.bias": attention.output.bias,
    }


def named(module, prefix):
    return {f"{prefix}.{name}": value for name, value in module.state_dict().items()}


def torch_encoder(model):
    pre = model.config.norm == "pre"
    layer = nn.TransformerEncoderLayer(D, HEADS, INNER, 0.0, batch_first=True, norm_first=pre)
    encoder = nn.TransformerEncoder(
        layer, len(model.encoder), nn.LayerNorm(D) if pre else None, enable_nested_tensor=False
    ).eval()
    for ours, theirs in zip(model.encoder, encoder.layers, strict=True):
        weights = attention_weights(ours.attention, "self_attn")
        weights |= named(ours.feed_forward[0], "linear1") | named(ours.feed_forward[2], "linear2")
        weights |= named(ours.attention_sublayer.norm, "norm1") | named(ours.feed_forward_sublayer.norm, "norm2")
        theirs.load_state_dict(weights)
    if pre:
        encoder.norm.load_state_dict(model.encoder_norm.state_dict())
    return encoder


def torch_decoder(model):
    pre = model.config.norm == "pre"
    layer = nn.TransformerDecoderLayer(D, HEADS, INNER, 0.0, batch_first=True, norm_first=pre)
    decoder = nn.TransformerDecoder(layer, len(model.decoder), nn.LayerNorm(D) if pre else None).eval()
    for ours, theirs in zip(model.decoder, decoder.layers, strict=True):
        weights = attention_weights(ours.attention, "self_attn")
        weights |= attention_weights(ours.source_attention, "multihead_attn")
        weights |= named(ours.feed_forward[0], "linear1") | named(ours.feed_forward[2], "linear2")
        weights |= named(ours.attention_sublayer.norm, "norm1") | named(ours.source_sublayer.norm, "norm2")
        weights |= named(ours.feed_forward_sublayer.norm, "norm3")
        theirs.load_state_dict(weights)
    if pre:
        decoder.norm.load_state_dict(model.decoder_norm.state_dict())
    return decoder


def batch():
    masks = [
        torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None] for lengths in (SRC_LENGTHS, TGT_LENGTHS)
    ]
    src, tgt_in = (torch.randint(4, VOCABULARY, mask.shape).masked_fill(~mask, 0) for mask in masks)
    return src, masks[0], tgt_in, masks[1]


def embed(embedding, ids):
    return embedding.weight[ids] * D**0.5 + sinusoidal_positions(ids.size(1), D, device=ids.device)


def our_encoder_output(model, src, mask):
    """What the keys and values of the memory are made of, read where it passes."""
    seen = []
    hook = model.encoder_norm.register_forward_hook(lambda module, args, output: seen.append(output))
    model.encode(src, mask)
    hook.remove()
    return seen[0]


@pytest.mark.parametrize("norm", ["post", "pre"])
@torch.no_grad()
def test_encoder(norm):
    model = make(norm)
    src, mask, _, _ = batch()
    expected = torch_encoder(model)(embed(model.source_embedding, src), src_key_padding_mask=~mask)
    torch.testing.assert_close(our_encoder_output(model, src, mask)[mask], expected[mask], atol=1e-5, rtol=0)


@pytest.mark.parametrize("norm", ["post", "pre"])
@torch.no_grad()
def test_whole_model(norm):
    model = make(norm)
    src, mask, tgt_in, tgt_mask = batch()
    encoded = torch_encoder(model)(embed(model.source_embedding, src), src_key_padding_mask=~mask)
    causal = torch.ones(tgt_in.size(1), tgt_in.size(1), dtype=torch.bool).triu(1)  # torch's masks: True = hidden
    decoded = torch_decoder(model)(
        embed(model.target_embedding, tgt_in),
        encoded,
        tgt_mask=causal,
        tgt_key_padding_mask=~tgt_mask,
        memory_key_padding_mask=~mask,
    )
    seen = []
    model.output.register_forward_hook(lambda module, args, output: seen.append(args[0]))
    logits = model(src, mask, tgt_in)
    torch.testing.assert_close(seen[0][tgt_mask], decoded[tgt_mask], atol=1e-5, rtol=0)
    torch.testing.assert_close(logits[tgt_mask], (decoded @ model.output.weight.T)[tgt_mask], atol=1e-4, rtol=0)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_gradients(norm):
    """The same function has the same gradient: one of each side, through masks and all."""
    model = make(norm)
    src, mask, _, _ = batch()
    encoder = torch_encoder(model)
    our_encoder_output(model, src, mask)[mask].square().sum().backward()
    encoder(embed(model.source_embedding, src).detach(), src_key_padding_mask=~mask)[mask].square().sum().backward()
    ours, theirs = model.encoder[0].feed_forward[0].weight.grad, encoder.layers[0].linear1.weight.grad
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
