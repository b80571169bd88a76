"""The recurrent systems of other papers, each against its equations written as a slow loop over one sentence."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from capsnmt.models import build_model

VOCABULARY = 30


def build(system: str, **values):
    torch.manual_seed(3)
    return build_model({"system": system, **values}, source_size=VOCABULARY, target_size=VOCABULARY).eval()


def ragged(*lengths: int) -> tuple[Tensor, Tensor]:
    mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    return torch.randint(4, VOCABULARY, mask.shape).masked_fill(~mask, 0), mask


def sentence(length: int) -> tuple[Tensor, Tensor]:
    return ragged(length)


def weights(module: nn.Module) -> dict[str, Tensor]:
    return {name.removesuffix("_l0"): value for name, value in module.named_parameters()}


def lstm_step(module: nn.Module, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """One step of an LSTM for one row, gate by gate."""
    w = weights(module)
    i, f, g, o = (w["weight_ih"] @ x + w["bias_ih"] + w["weight_hh"] @ h + w["bias_hh"]).chunk(4)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def lstm_over(module: nn.Module, xs: list[Tensor]) -> list[Tensor]:
    """All outputs of an LSTM for one row, from a start state of zeros."""
    h = c = torch.zeros(weights(module)["weight_hh"].size(1))
    outputs = []
    for x in xs:
        h, c = lstm_step(module, x, h, c)
        outputs.append(h)
    return outputs


def attend(attention: nn.Module, s: Tensor, hs: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Additive attention, one energy at a time."""
    e = torch.stack([attention.v.weight[0] @ torch.tanh(attention.W.weight @ s + attention.U.weight @ h) for h in hs])
    alpha = e.softmax(dim=0)
    return sum(a * h for a, h in zip(alpha, hs, strict=True)), alpha


# ---------------------------------------------------------------- Enc-Dec


@pytest.mark.parametrize("reverse", [True, False])
@torch.inference_mode()
def test_encdec_hands_over_the_states_after_the_last_word(reverse):
    """Against torch's packed LSTM with ordinary biases, which stops each row at its own length."""
    model, lengths = build("encdec", width=7, num_layers=3, reverse_source=reverse), (4, 9, 1, 9)
    src, mask = ragged(*lengths)
    memory = model.encode(src, mask)

    x = model.source_embedding(src)
    if reverse:
        x = torch.stack(
            [torch.cat([row[:length].flip(0), row[length:]]) for row, length in zip(x, lengths, strict=True)]
        )
    torch_lstm = nn.LSTM(7, 7, num_layers=3, batch_first=True)
    for layer, ours in enumerate(model.encoder):
        w = ours.weight_ih_l0
        torch_lstm.get_parameter(f"weight_ih_l{layer}").copy_(w[:, :-1])
        torch_lstm.get_parameter(f"bias_ih_l{layer}").copy_(w[:, -1])
        torch_lstm.get_parameter(f"bias_hh_l{layer}").zero_()
        torch_lstm.get_parameter(f"weight_hh_l{layer}").copy_(ours.weight_hh_l0)
    packed = pack_padded_sequence(x, torch.tensor(lengths), batch_first=True, enforce_sorted=False)
    _, (hidden, cell) = torch_lstm(packed)
    torch.testing.assert_close(memory["hidden"], hidden.transpose(0, 1), atol=1e-6, rtol=0)
    torch.testing.assert_close(memory["cell"], cell.transpose(0, 1), atol=1e-6, rtol=0)


@torch.inference_mode()
def test_encdec_padding_leaves_the_start_state_exactly_zero():
    model = build("encdec", width=6, num_layers=2)
    src, mask = ragged(2, 40)
    alone = model.encode(src[:1, :2], mask[:1, :2])
    together = model.encode(src, mask)
    x = torch.zeros(1, 38, 7)  # words and the input that stands for the bias, all off
    for lstm in model.encoder:
        assert (lstm(x)[0] == 0).all()
    for name in ("hidden", "cell"):
        torch.testing.assert_close(together[name][:1], alone[name], atol=1e-6, rtol=0)


@torch.inference_mode()
def test_encdec_reads_the_source_only_through_its_start_state():
    model = build("encdec", width=6, num_layers=2)
    (src, mask), (other, other_mask) = sentence(5), sentence(3)
    state = model.start(model.encode(src, mask))
    expected, _ = model.step(torch.tensor([2]), model.encode(src, mask), state)
    found, _ = model.step(torch.tensor([2]), model.encode(other, other_mask), state)
    assert torch.equal(found, expected)


@torch.inference_mode()
def test_encdec_starts_every_layer_of_the_decoder_where_that_of_the_encoder_ended():
    model = build("encdec", width=5, num_layers=3)
    src, mask = sentence(4)
    tgt_in = torch.tensor([[2, 9, 5]])
    memory = model.encode(src, mask)
    hs, cs, logits = list(memory["hidden"][0]), list(memory["cell"][0]), []
    for x in model.target_embedding(tgt_in)[0]:
        for layer, lstm in enumerate(model.decoder):
            hs[layer], cs[layer] = lstm_step(lstm, x, hs[layer], cs[layer])
            x = hs[layer]
        logits.append(model.output.weight @ x)
    torch.testing.assert_close(model(src, mask, tgt_in)[0], torch.stack(logits), atol=1e-5, rtol=0)


# ---------------------------------------------------------------- Deep-ED


def column_by_hand(layers: nn.ModuleList, xs: list[Tensor], backward: bool) -> tuple[list[Tensor], list[Tensor]]:
    """h and f of the top layer in the sentence's own order; each layer reads against the one below."""
    for layer in layers:
        W_f = layer.lstm.weight_ih_l0
        fs = [W_f @ x for x in xs]
        hs = lstm_over(layer.lstm, xs[::-1] if backward else xs)
        hs = hs[::-1] if backward else hs
        d = len(hs[0])
        halves = [torch.cat([f[2 * d : 3 * d], f[:d]]) for f in fs]  # candidate, input gate
        xs, backward = [torch.cat(pair) for pair in zip(halves, hs, strict=True)], not backward
    return hs, fs


@pytest.mark.parametrize("layers", [1, 2, 3])
@torch.inference_mode()
def test_deep_encdec_memory_is_four_parts_of_an_interleaved_encoder(layers):
    model = build("deep_encdec", width=5, embedding_width=4, encoder_layers=layers, decoder_layers=1)
    src, mask = sentence(6)
    xs = list(model.source_embedding(src)[0])
    h_1, f_1 = column_by_hand(model.column_1, xs, backward=False)
    h_2, f_2 = column_by_hand(model.column_2, xs, backward=True)
    last = h_1[-1] if layers % 2 else h_1[0]  # the last that the top layer read
    expected = torch.cat([last, *(torch.stack(each).amax(dim=0) for each in (h_2, f_1, f_2))])
    assert expected.shape == (10 * 5,)  # 5120 in the paper, with 512 cells
    torch.testing.assert_close(model.encode(src, mask)["context"][0], expected, atol=1e-5, rtol=0)


@torch.inference_mode()
def test_deep_encdec_decoder_reads_context_and_word_and_fast_forwards():
    model = build("deep_encdec", width=5, embedding_width=4, encoder_layers=1, decoder_layers=3)
    src, mask = sentence(4)
    tgt_in = torch.tensor([[2, 9, 5]])
    context = model.encode(src, mask)["context"][0]
    xs = [torch.cat([context, y]) for y in model.target_embedding(tgt_in)[0]]
    for layer in model.decoder:
        fs, hs = [layer.lstm.weight_ih_l0 @ x for x in xs], lstm_over(layer.lstm, xs)
        xs = [torch.cat([f[10:15], f[:5], h]) for f, h in zip(fs, hs, strict=True)]
    expected = torch.stack([model.output.weight @ h for h in hs])
    torch.testing.assert_close(model(src, mask, tgt_in)[0], expected, atol=1e-5, rtol=0)


# ---------------------------------------------------------------- RNNsearch


def gru_over(gru: nn.GRU, xs: list[Tensor]) -> list[Tensor]:
    w, h, outputs = weights(gru), torch.zeros(gru.hidden_size), []
    for x in xs:
        of_x, of_h = w["weight_ih"] @ x + w["bias_ih"], w["weight_hh"] @ h + w["bias_hh"]
        (r_x, z_x, n_x), (r_h, z_h, n_h) = of_x.chunk(3), of_h.chunk(3)
        r, z = (r_x + r_h).sigmoid(), (z_x + z_h).sigmoid()
        h = (1 - z) * (n_x + r * n_h).tanh() + z * h
        outputs.append(h)
    return outputs


@torch.inference_mode()
def test_rnnsearch_is_its_appendix():
    n, l = 5, 3  # noqa: E741
    model = build("rnnsearch", width=n, embedding_width=4, attention_width=6, maxout_width=l)
    src, mask = sentence(6)
    tgt_in = torch.tensor([[2, 8, 7, 11]])
    xs = list(model.source_embedding(src)[0])
    backward = gru_over(model.backward_gru, xs[::-1])[::-1]
    hs = [torch.cat(pair) for pair in zip(gru_over(model.forward_gru, xs), backward, strict=True)]

    W, C, U = model.W.weight, model.C.weight, model.U.weight
    s, logits = torch.tanh(model.W_s.weight @ backward[0] + model.W_s.bias), []
    for y in model.target_embedding(tgt_in)[0]:
        c, _ = attend(model.attention, s, hs)
        t = model.U_o.weight @ s + model.V_o.weight @ y + model.C_o.weight @ c
        t = torch.stack([torch.max(t[2 * j], t[2 * j + 1]) for j in range(l)])
        logits.append(model.output.weight @ t)
        z, r, candidate = (slice(k * n, (k + 1) * n) for k in range(3))
        z_i = torch.sigmoid(W[z] @ y + model.W.bias[z] + model.U_gates.weight[z] @ s + C[z] @ c)
        r_i = torch.sigmoid(W[r] @ y + model.W.bias[r] + model.U_gates.weight[r] @ s + C[r] @ c)
        s_new = torch.tanh(W[candidate] @ y + model.W.bias[candidate] + U @ (r_i * s) + C[candidate] @ c)
        s = (1 - z_i) * s + z_i * s_new
    torch.testing.assert_close(model(src, mask, tgt_in)[0], torch.stack(logits), atol=1e-5, rtol=0)


# ---------------------------------------------------------------- GNMT


@torch.inference_mode()
def test_gnmt_is_its_section_3():
    d = 5
    model = build("gnmt", width=d, encoder_layers=4, decoder_layers=4)
    src, mask = sentence(6)
    tgt_in = torch.tensor([[2, 8, 7, 11]])
    xs = list(model.source_embedding(src)[0])
    backward = lstm_over(model.backward_lstm, xs[::-1])[::-1]
    xs = [torch.cat(pair) for pair in zip(lstm_over(model.forward_lstm, xs), backward, strict=True)]
    xs = lstm_over(model.encoder[0], xs)  # layer 2: no residual connection
    for lstm in model.encoder[1:]:
        xs = [x + m for x, m in zip(xs, lstm_over(lstm, xs), strict=True)]

    h = c = torch.zeros(d)
    outputs, contexts, attention = [], [], torch.zeros(len(xs))
    for y in model.target_embedding(tgt_in)[0]:
        a, p = attend(model.attention, h, xs)
        h, c = lstm_step(model.bottom, torch.cat([y, a]), h, c)
        outputs.append(h)
        contexts.append(a)
        attention = attention + p
    for number, lstm in enumerate(model.decoder, start=2):
        ms = lstm_over(lstm, [torch.cat(pair) for pair in zip(outputs, contexts, strict=True)])
        outputs = [x + m for x, m in zip(outputs, ms, strict=True)] if number >= 3 else ms
    expected = torch.stack([model.output.weight @ x for x in outputs])
    torch.testing.assert_close(model(src, mask, tgt_in)[0], expected, atol=1e-5, rtol=0)

    memory = model.encode(src, mask)
    state = model.start(memory)
    for token in tgt_in[0]:
        _, state = model.step(token[None], memory, state)
    torch.testing.assert_close(state["coverage"][0], attention, atol=1e-5, rtol=0)


@torch.inference_mode()
def test_gnmt_coverage_counts_every_step_once_and_padding_as_covered():
    model = build("gnmt", width=6, encoder_layers=2, decoder_layers=2)
    src, mask = ragged(3, 7, 1)
    memory = model.encode(src, mask)
    state = model.start(memory)
    for step in range(1, 5):
        _, state = model.step(torch.tensor([2, 5, 9]), memory, state)
        covered = state["coverage"]
        torch.testing.assert_close((covered * mask).sum(dim=1), torch.full((3,), float(step)))
        assert (covered[~mask] == 1.0).all()  # log(min(1, 1)) = 0: no penalty for what is not there
    penalty = covered.clamp(max=1.0).log().sum(dim=1)
    assert (penalty <= 0).all()
    assert penalty[2] == 0  # one word, which all four steps looked at
