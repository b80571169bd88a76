"""RNMT+'s and the hybrid's parts against slow ways to compute the same."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F

from capsnmt.errors import CapsNMTError
from capsnmt.models import build_model
from capsnmt.models.capsnmt import CapsNMTConfig
from capsnmt.models.hybrid import HybridConfig, capsule_settings
from capsnmt.models.layers import reversal_index
from capsnmt.models.rnmt import BidirectionalLayer, LayerNormLSTM, MultiHeadAdditiveAttention


def test_layer_norm_lstm_is_its_equations():
    torch.manual_seed(2)
    lstm = LayerNormLSTM(3, 5)
    with torch.no_grad():
        lstm.scale.add_(torch.randn(4, 5) * 0.3)
        lstm.bias.add_(torch.randn(4, 5) * 0.3)
    x, h, c = torch.randn(2, 6, 3), torch.randn(2, 5), torch.randn(2, 5)
    outputs, last_h, last_c = lstm(lstm.W(x), h, c)
    W, U = lstm.W.weight.chunk(4), lstm.U.weight.chunk(4)
    for t in range(6):
        i, f, o, g = (
            F.layer_norm(x[:, t] @ W[gate].T + h @ U[gate].T, (5,), lstm.scale[gate], lstm.bias[gate])
            for gate in range(4)
        )
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c  # "No non-linearity is applied to the LSTM output"
        torch.testing.assert_close(outputs[:, t], h)
    assert torch.equal(last_h, outputs[:, -1])
    torch.testing.assert_close(last_c, c)


def test_a_traced_encoder_reads_sentences_of_other_lengths():
    """An export is a trace, which would otherwise keep the loop over time as long as its example is."""
    layer = BidirectionalLayer(3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of tracing, which exporting to ONNX rests on
        traced = torch.jit.trace(layer, (torch.randn(2, 5, 3), reversal_index(torch.ones(2, 5, dtype=torch.bool))))
    x, index = torch.randn(2, 9, 3), reversal_index(torch.ones(2, 9, dtype=torch.bool))
    torch.testing.assert_close(traced(x, index), layer(x, index))


def test_additive_attention_is_bahdanaus_in_each_head():
    torch.manual_seed(3)
    attention = MultiHeadAdditiveAttention(width=6, num_heads=2, dropout=0.0)
    vectors, queries = torch.randn(2, 4, 6), torch.randn(2, 3, 6)
    lengths = [4, 2]
    mask = torch.arange(4)[None] < torch.tensor(lengths)[:, None]
    found = attention(queries, {**attention.remember(vectors), "mask": mask})
    for row, length in enumerate(lengths):
        for t in range(3):
            q, expected = attention.query(queries[row, t]), []
            for head in range(2):
                part = slice(3 * head, 3 * head + 3)
                energies = [
                    attention.v[head] @ torch.tanh(q[part] + attention.key(vectors[row, j])[part])
                    for j in range(length)
                ]
                alpha = torch.stack(energies).softmax(dim=0)
                expected.append(sum(alpha[j] * vectors[row, j, part] for j in range(length)))
            torch.testing.assert_close(found[row, t], torch.cat(expected))


def rnmt(**settings):
    torch.manual_seed(6)
    values = {"system": "rnmt", "width": 8, "encoder_layers": 4, "decoder_layers": 4, "num_heads": 2}
    return build_model({**values, **settings}, source_size=20, target_size=20).eval()


def run_cell(lstm, x, h, c):
    """One step of one row: the equations that `test_layer_norm_lstm_is_its_equations` checks."""
    outputs, h, c = lstm(lstm.W(x)[None, None], h[None], c[None])
    return outputs[0, 0], h[0], c[0]


def run_cells(lstm, xs):
    """All outputs for one row, from zeros."""
    h = c = torch.zeros(lstm.U.in_features)
    outputs = []
    for x in xs:
        s, h, c = run_cell(lstm, x, h, c)
        outputs.append(s)
    return outputs


def look(attention, s, vectors):
    """The context of one query: what `test_additive_attention_is_bahdanaus_in_each_head` checks."""
    return attention(s[None, None], attention.remember(torch.stack(vectors)[None]))[0, 0]


def beside(*sequences):
    return [torch.cat(parts) for parts in zip(*sequences, strict=True)]


@torch.inference_mode()
def test_rnmt_is_its_section_3_and_figure_1():
    model, src, tgt_in = rnmt(), torch.tensor([[5, 6, 7, 9]]), torch.tensor([[2, 8, 11]])
    for lstm in [*model.decoder, *(each for layer in model.encoder for each in layer.children())]:
        lstm.scale.add_(torch.randn(4, 8) * 0.3)
        lstm.bias.add_(torch.randn(4, 8) * 0.3)
    xs = list(model.source_embedding(src)[0])
    for number, layer in enumerate(model.encoder, start=1):
        hs = beside(run_cells(layer.forward_lstm, xs), run_cells(layer.backward_lstm, xs[::-1])[::-1])
        xs = [x + h for x, h in zip(xs, hs, strict=True)] if number >= 3 else hs
    vectors = [model.projection(x) for x in xs]

    h = c = context = torch.zeros(8)
    xs, contexts = [], []
    for y in model.target_embedding(tgt_in)[0]:
        s, h, c = run_cell(model.decoder[0], torch.cat([y, context]), h, c)  # the context of the step before
        context = look(model.attention, s, vectors)
        xs.append(s)
        contexts.append(context)
    for number, lstm in enumerate(model.decoder[1:], start=2):
        hs = run_cells(lstm, beside(xs, contexts))
        xs = [x + h for x, h in zip(xs, hs, strict=True)] if number >= 3 else hs
    expected = torch.stack([model.output.weight @ x for x in beside(xs, contexts)])
    torch.testing.assert_close(model(src, src > 0, tgt_in)[0], expected, atol=1e-5, rtol=0)


def silence(*lstms):
    """Cells whose output is always zero."""
    for lstm in lstms:
        torch.nn.init.zeros_(lstm.scale)
        torch.nn.init.zeros_(lstm.bias)


@pytest.mark.parametrize(("layer", "has_residual"), [(0, False), (1, False), (2, True), (3, True)])
def test_residual_connections_start_at_the_third_layer(layer, has_residual):
    """A layer that says nothing is passed by where there is a residual connection, and blocks the way elsewhere."""
    model, src = rnmt(), torch.tensor([[5, 6, 7], [8, 9, 10]])
    mask = torch.ones_like(src, dtype=torch.bool)
    encoder = model.encoder[layer]
    silence(encoder.forward_lstm, encoder.backward_lstm)
    values = model.encode(src, mask)["values"]
    assert (not torch.allclose(values[0], values[1])) == has_residual

    model = rnmt()
    silence(model.decoder[layer])
    memory = model.encode(src, mask)
    memory = {**memory, "values": torch.zeros_like(memory["values"])}  # no context, only the layers' own way up
    state = model.start(memory)
    logits, _ = model.step(torch.tensor([5, 9]), memory, state)
    assert (not torch.allclose(logits[0], logits[1])) == has_residual


def test_the_context_goes_to_the_softmax():
    """With every cell silent a change of the source still reaches the logits, through what the softmax reads."""
    model, mask = rnmt(), torch.ones(1, 3, dtype=torch.bool)
    silence(*model.decoder)
    logits = [model(torch.tensor([ids]), mask, torch.tensor([[2]])) for ids in ([5, 6, 7], [8, 9, 10])]
    assert not torch.allclose(*logits)


def test_heads_must_divide_the_width():
    for system in ("rnmt", "hybrid"):
        with pytest.raises(CapsNMTError, match="not a multiple of num_heads"):
            build_model({"system": system, "width": 10, "num_heads": 4}, source_size=20, target_size=20)


# ---------------------------------------------------------------- hybrid


def hybrid(**settings):
    torch.manual_seed(7)
    values = {"system": "hybrid", "width": 8, "encoder_layers": 1, "decoder_layers": 2, "num_capsules": 3}
    return build_model({**values, **settings}, source_size=20, target_size=20).eval()


@pytest.mark.parametrize("attend", ["states", "capsules"])
@pytest.mark.parametrize("silent", ["context", "values"])
def test_the_hybrid_reads_both_contexts(attend, silent):
    """With either of the two cut off, the other still tells of the source."""
    model, mask = hybrid(attend=attend), torch.ones(1, 3, dtype=torch.bool)
    logits = []
    for ids in ([5, 6, 7], [8, 9, 10]):
        memory = model.encode(torch.tensor([ids]), mask)
        memory = {**memory, silent: torch.zeros_like(memory[silent])}
        logits.append(model.step(torch.tensor([2]), memory, model.start(memory))[0])
    assert not torch.allclose(*logits, atol=1e-5)


@pytest.mark.parametrize("attend", ["states", "capsules"])
@torch.inference_mode()
def test_the_hybrid_is_eq_5_with_an_attention_context_for_the_layers_above(attend):
    model, src, tgt_in = hybrid(attend=attend, decoder_layers=3), torch.tensor([[5, 6, 7, 9]]), torch.tensor([[2, 8]])
    states = model.states(src, src > 0)
    capsules = model.capsules(states, src > 0).capsules[0]
    vectors = list(capsules) if attend == "capsules" else list(states[0])
    xs = [model.W_c.weight @ torch.cat(list(capsules)) + y for y in model.target_embedding(tgt_in)[0]]
    inputs = xs
    for number, (lstm, residual) in enumerate(zip(model.decoder, model.residuals, strict=True)):
        outputs, _ = lstm(torch.stack(inputs)[None])
        xs = [residual(x, s) for x, s in zip(xs, outputs[0], strict=True)]
        if number == 0:
            contexts = [look(model.attention, x, vectors) for x in xs]
        inputs = beside(xs, contexts)
    expected = torch.stack([model.output.weight @ model.readout(x) for x in inputs])
    torch.testing.assert_close(model(src, src > 0, tgt_in)[0], expected, atol=1e-5, rtol=0)


def test_the_hybrid_attends_over_m_capsules_or_all_states():
    src = torch.randint(4, 20, (2, 9))
    mask = torch.ones_like(src, dtype=torch.bool)
    assert hybrid(attend="capsules").encode(src, mask)["keys"].shape == (2, 4, 3, 2)
    assert hybrid(attend="states").encode(src, mask)["keys"].shape == (2, 4, 9, 2)


def test_defaults_of_capsnmt_are_not_the_hybrids():
    """Whatever a capsule layer may read is said by the hybrid itself; the rest belongs to CapsNMT's frame."""
    frame = {"system", "encoder_layers", "decoder_layers", "num_capsules", "start_state", "dropout", "tie_embeddings"}
    said = capsule_settings(HybridConfig()).model_fields_set
    assert said == set(CapsNMTConfig.model_fields) - frame - {"attention", "num_heads", "attending"}


def test_the_hybrids_routing_is_a_distribution_over_the_capsules():
    src = torch.randint(4, 20, (2, 9))
    alpha = hybrid().routing(src, torch.ones_like(src, dtype=torch.bool))
    assert alpha.shape == (2, 3, 9, 3)
    torch.testing.assert_close(alpha.sum(dim=-1), torch.ones(2, 3, 9))
