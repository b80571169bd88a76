"""The shared parts of the models, each against a slower or an independent way to compute the same."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from capsnmt.models.layers import (
    BiLSTMEncoder,
    LSTMDecoder,
    ScaledEmbedding,
    build_embeddings,
    masked_max,
    masked_mean,
    reversal_index,
    reverse_rows,
    sinusoidal_positions,
    unidirectional_lstm,
)
from capsnmt.models.simple import aggregate

CPU = torch.device("cpu")


def mask_of(*lengths):
    return torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]


def packed_bidirectional(forward_lstm, backward_lstm):
    """Torch's own bidirectional LSTM with the weights of our two."""
    lstm = nn.LSTM(forward_lstm.input_size, forward_lstm.hidden_size, batch_first=True, bidirectional=True)
    weights = dict(forward_lstm.state_dict())
    weights |= {f"{name}_reverse": value for name, value in backward_lstm.state_dict().items()}
    lstm.load_state_dict(weights)
    return lstm


@pytest.mark.parametrize("num_layers", [1, 3])
def test_bilstm_encoder_is_torchs_packed_bidirectional_lstm(num_layers):
    torch.manual_seed(1)
    encoder = BiLSTMEncoder(width=12, num_layers=num_layers, dropout=0.3).eval()
    lengths = (4, 7, 1, 7)
    mask = mask_of(*lengths)
    x = torch.randn(4, 7, 12)
    found = encoder(x, mask)
    for forward_lstm, backward_lstm, residual in zip(
        encoder.forward_lstms, encoder.backward_lstms, encoder.residuals, strict=True
    ):
        packed = pack_padded_sequence(x, torch.tensor(lengths), batch_first=True, enforce_sorted=False)
        h, _ = pad_packed_sequence(packed_bidirectional(forward_lstm, backward_lstm)(packed)[0], batch_first=True)
        x = residual.norm(x + h)
    assert torch.allclose(found[mask], x[mask], atol=1e-5)


def test_bilstm_encoder_ignores_what_is_in_the_padding():
    encoder = BiLSTMEncoder(width=8, num_layers=2, dropout=0.0)
    mask = mask_of(2, 5)
    x = torch.randn(2, 5, 8)
    changed = torch.where(mask[..., None], x, torch.randn_like(x))
    assert torch.equal(encoder(x, mask)[mask], encoder(changed, mask)[mask])


def test_lstm_decoder_goes_on_where_it_stopped():
    decoder = LSTMDecoder(width=8, num_layers=2, dropout=0.2).eval()
    u = torch.randn(3, 6, 8)
    whole, end = decoder(u, decoder.start(u), {})
    first, middle = decoder(u[:, :2], decoder.start(u), {})
    second, end_again = decoder(u[:, 2:], middle, {})
    assert torch.allclose(torch.cat([first, second], dim=1), whole, atol=1e-6)
    for name in ("hidden", "cell"):
        assert end[name].shape == (3, 2, 8)
        assert torch.allclose(end[name], end_again[name], atol=1e-6)
        assert not torch.equal(end[name], middle[name])


@pytest.mark.parametrize("attending", ["first", "all"])
def test_every_layer_that_attends_reads_the_vectors_by_itself(attending):
    torch.manual_seed(3)
    decoder = LSTMDecoder(width=8, num_layers=3, dropout=0.0, num_heads=2, attending=attending)
    u, memory = torch.randn(2, 4, 8), decoder.remember(torch.randn(2, 5, 8))
    assert len(memory) == 2 * (1 if attending == "first" else 3)
    expected, _ = decoder(u, decoder.start(u), memory)
    for name in memory:
        changed, _ = decoder(u, decoder.start(u), {**memory, name: torch.randn_like(memory[name])})
        assert not torch.allclose(changed, expected), name


def test_forget_gates_start_open():
    lstm = unidirectional_lstm(4, 6)
    assert (lstm.bias_ih_l0[6:12] == 1.0).all()
    assert (lstm.bias_ih_l0[:6].abs() < 1.0).all()  # the others keep torch's own


def test_reversal_index():
    assert reversal_index(mask_of(3, 5, 1))[..., 0].tolist() == [[2, 1, 0, 3, 4], [4, 3, 2, 1, 0], [0, 1, 2, 3, 4]]


def test_reverse_rows_reverses_and_is_its_own_inverse():
    x, index = torch.randn(2, 4, 3), reversal_index(mask_of(2, 4))
    found = reverse_rows(x, index)
    assert torch.equal(found[0], x[0, [1, 0, 2, 3]])
    assert torch.equal(found[1], x[1, [3, 2, 1, 0]])
    assert torch.equal(reverse_rows(found, index), x)


def test_reverse_rows_gradient():
    x = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)
    index = reversal_index(mask_of(2, 4, 3))
    assert torch.autograd.gradcheck(lambda x: reverse_rows(x, index) ** 2, (x,))


@pytest.mark.parametrize(("length", "width", "start"), [(6, 8, 0), (3, 4, 7), (1, 2, 0), (1, 16, 5000)])
def test_sinusoidal_positions(length, width, start):
    found = sinusoidal_positions(length, width, device=CPU, start=start)
    expected = torch.zeros(length, width, dtype=torch.float64)
    for row in range(length):
        for i in range(width // 2):
            angle = (start + row) / 10_000 ** (2 * i / width)
            expected[row, 2 * i], expected[row, 2 * i + 1] = math.sin(angle), math.cos(angle)
    assert found.shape == (length, width)
    assert torch.allclose(found.double(), expected, atol=1e-3 if start > 1000 else 1e-5)


def test_a_later_start_is_a_window_of_the_same_positions():
    whole = sinusoidal_positions(9, 6, device=CPU)
    assert torch.allclose(sinusoidal_positions(4, 6, device=CPU, start=5), whole[5:], atol=1e-6)


def test_aggregate_is_eq_2_to_4():
    lengths = (4, 6, 1)
    h = torch.randn(3, 6, 5) - 2.0  # mostly negative: a padding that counts as 0 would win the maximum
    C = aggregate(h, mask_of(*lengths))
    assert C.shape == (3, 4, 5)
    for row, length in enumerate(lengths):
        states = h[row].tolist()[:length]
        for k in range(5):
            column = [state[k] for state in states]
            expected = [max(column), sum(column) / length, column[0], column[-1]]
            assert C[row, :, k].tolist() == pytest.approx(expected, abs=1e-6)


def test_masked_pools_ignore_the_padding():
    mask = mask_of(2, 4)
    x = torch.randn(2, 4, 3)
    changed = torch.where(mask[..., None], x, torch.full_like(x, 1e6))
    assert torch.equal(masked_max(x, mask), masked_max(changed, mask))
    assert torch.allclose(masked_mean(x, mask), masked_mean(changed, mask))


def test_embeddings_are_scaled():
    embedding = ScaledEmbedding(30, 9)
    ids = torch.tensor([[1, 5], [7, 0]])
    assert torch.allclose(embedding(ids), embedding.weight[ids] * 3.0)


def test_tie_all_is_one_table():
    source, target, output = build_embeddings(source_size=30, target_size=30, width=8, tie="all")
    assert source.weight is target.weight
    assert output.weight is target.weight
    assert output.bias is None


def test_tie_target_shares_target_and_output():
    source, target, output = build_embeddings(source_size=20, target_size=30, width=8, tie="target")
    assert output.weight is target.weight
    assert source.weight.shape == (20, 8)
    assert target.weight.shape == (30, 8)


def test_tie_none_shares_nothing():
    parts = build_embeddings(source_size=20, target_size=30, width=8, tie="none")
    assert len({id(part.weight) for part in parts}) == 3
    assert [tuple(part.weight.shape) for part in parts] == [(20, 8), (30, 8), (30, 8)]


def test_what_the_output_layer_reads_may_have_a_width_of_its_own():
    source, target, output = build_embeddings(source_size=20, target_size=30, width=8, output_width=5, tie="none")
    assert [tuple(part.weight.shape) for part in (source, target, output)] == [(20, 8), (30, 8), (30, 5)]
    with pytest.raises(ValueError, match="they are 8 and 5 wide; set tie_embeddings: none"):
        build_embeddings(source_size=20, target_size=30, width=8, output_width=5, tie="target")


def test_tie_all_needs_one_vocabulary():
    with pytest.raises(ValueError, match=r"20 and 30; set text\.subwords\.joint: true or tie_embeddings: target"):
        build_embeddings(source_size=20, target_size=30, width=8, tie="all")
