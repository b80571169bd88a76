"""The torch engine's session, against the model run on each hypothesis alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from capsnmt.errors import CapsNMTError
from capsnmt.runtime.allocator import keep_freed_memory
from capsnmt.runtime.torch_engine import TorchEngine, pick_device
from capsnmt.text.subwords import BOS, EOS, PAD

CPU = torch.device("cpu")
VOCABULARY = 40
SOURCES = [[5, 6, 7, EOS], [8, EOS], [9, 10, 11, 12, 13, 14, EOS]]


@pytest.fixture
def engine(model):
    return TorchEngine(model, vocabulary_size=VOCABULARY, device=CPU)


def ints(*values):
    return np.array(values, dtype=np.int64)


@torch.inference_mode()
def alone(model, source, prefix):
    """log p(· | source, prefix) by teacher forcing, without any batch."""
    src, tgt_in = torch.tensor([source]), torch.tensor([[BOS, *prefix]])
    return torch.log_softmax(model(src, torch.ones_like(src, dtype=torch.bool), tgt_in)[0, -1], dim=-1).numpy()


def test_origins_carry_states_and_memory_along(engine, model):
    """Beams that grow, change places, lose rows and die out: every row must stay its own hypothesis."""
    session = engine.encode(SOURCES)
    assert session.num_sentences == 3
    rows = [(0, ()), (1, ()), (2, ())]
    steps = [
        ([0, 1, 2], [BOS, BOS, BOS]),
        ([0, 0, 1, 2, 2, 2], [20, 21, 20, 22, 23, 24]),  # grow
        ([1, 0, 2, 5, 5, 3], [25, 26, 27, 28, 29, 30]),  # change places and forget row 4
        ([1, 0, 2, 3, 4, 5], [31, 31, 31, 31, 31, 31]),  # the same sentences, but rows 0 and 1 are exchanged
        ([0, 3, 4], [32, 33, 34]),  # sentence 1 is finished
        ([2, 1], [35, 36]),  # only sentence 2 is left
    ]
    for number, (origins, tokens) in enumerate(steps):
        rows = [rows[origin] for origin in origins]
        if number:
            rows = [(sentence, (*prefix, token)) for (sentence, prefix), token in zip(rows, tokens, strict=True)]
        found = session.step_all(ints(*tokens), ints(*origins))
        expected = np.stack([alone(model, SOURCES[sentence], prefix) for sentence, prefix in rows])
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_first_step_may_start_several_rows_of_a_sentence(engine, model):
    found = engine.encode(SOURCES).step_all(ints(BOS, BOS, BOS), ints(2, 0, 2))
    expected = np.stack([alone(model, SOURCES[sentence], ()) for sentence in (2, 0, 2)])
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_memory_is_kept_once_per_sentence(engine):
    session = engine.encode(SOURCES)
    assert {tensor.size(0) for tensor in session._memory.values()} == {3}
    session.step(ints(*[BOS] * 6), ints(0, 0, 1, 1, 2, 2), 3)
    session.step(ints(*[20] * 12), ints(*range(6), *range(6)), 3)
    assert {tensor.size(0) for tensor in session._memory.values()} == {3}
    assert {tensor.size(0) for tensor in session._state.values()} == {12}


def test_the_best_k_are_the_best_of_the_whole_distribution(engine):
    tokens, origins = ints(BOS, BOS, BOS), ints(0, 1, 2)
    whole = engine.encode(SOURCES).step_all(tokens, origins)
    whole[:, [PAD, BOS]] = -np.inf
    found = engine.encode(SOURCES).step(tokens, origins, 4)
    assert found.forced is None
    assert found.log_probs.shape == found.ids.shape == (3, 4)
    np.testing.assert_allclose(found.log_probs, -np.sort(-whole, axis=1)[:, :4], atol=1e-6)
    np.testing.assert_allclose(np.take_along_axis(whole, found.ids, axis=1), found.log_probs, atol=1e-6)


@pytest.mark.parametrize("k", [VOCABULARY, 10 * VOCABULARY])
def test_pad_and_bos_are_never_proposed(engine, k):
    found = engine.encode(SOURCES).step(ints(BOS, BOS, BOS), ints(0, 1, 2), k)
    assert found.ids.shape == (3, VOCABULARY)
    special = np.isin(found.ids, [PAD, BOS])
    assert np.isneginf(found.log_probs[special]).all()  # impossible, where they must stand in the row at all
    assert np.isfinite(found.log_probs[~special]).all()


def test_pad_and_bos_are_not_proposed_by_a_model_that_wants_them(tiny_model, system):
    model = tiny_model(system)
    forward = model.output.forward
    push = torch.zeros(VOCABULARY)
    push[[PAD, BOS]] = 1000.0
    model.output.forward = lambda x: forward(x) + push
    found = TorchEngine(model, vocabulary_size=VOCABULARY, device=CPU).encode(SOURCES).step(ints(BOS), ints(0), 5)
    assert not np.isin(found.ids, [PAD, BOS]).any()


def test_forced_log_probs_are_those_of_the_whole_distribution(engine):
    tokens, origins, forced = ints(BOS, BOS, BOS, BOS), ints(0, 1, 2, 2), ints(EOS, 17, 30, PAD)
    whole = engine.encode(SOURCES).step_all(tokens, origins)
    found = engine.encode(SOURCES).step(tokens, origins, 1, forced=forced)
    np.testing.assert_allclose(found.forced, whole[np.arange(4), forced], atol=1e-6)


def test_distributions_sum_to_one(engine):
    whole = engine.encode(SOURCES).step_all(ints(BOS, BOS, BOS), ints(0, 1, 2))
    assert whole.shape == (3, VOCABULARY)
    np.testing.assert_allclose(np.exp(whole).sum(axis=1), 1.0, atol=1e-5)


def test_sessions_do_not_disturb_each_other(engine, model):
    first, second = engine.encode(SOURCES[:1]), engine.encode(SOURCES[1:2])
    first.step_all(ints(BOS), ints(0))
    second.step_all(ints(BOS), ints(0))
    np.testing.assert_allclose(first.step_all(ints(21), ints(0))[0], alone(model, SOURCES[0], (21,)), atol=1e-5)


def test_decoding_leaves_no_trace_on_the_model(engine, model):
    session = engine.encode(SOURCES)
    session.step(ints(BOS, BOS, BOS), ints(0, 1, 2), 2)
    src = torch.tensor([SOURCES[0]])
    model(src, torch.ones_like(src, dtype=torch.bool), torch.tensor([[BOS, 20]])).sum().backward()  # still trainable
    assert any(parameter.grad is not None for parameter in model.parameters())


def test_devices():
    assert pick_device("cpu") == CPU
    assert pick_device("auto").type in ("cpu", "cuda")


@pytest.mark.parametrize("name", ["gpu", "cpuu", ""])
def test_an_unknown_device_is_a_users_error(name):
    with pytest.raises(CapsNMTError, match="auto, cpu"):
        pick_device(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_a_users_error():
    with pytest.raises(CapsNMTError, match="cuda"):
        pick_device("cuda")


def test_of_the_processes_of_torchrun_each_has_its_own_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert pick_device("auto") == torch.device("cuda", 3)
    assert pick_device("cpu") == CPU
    monkeypatch.setenv("LOCAL_RANK", "4")
    with pytest.raises(CapsNMTError, match="more processes than the 4 GPUs"):
        pick_device("auto")


def test_keeping_freed_memory_is_harmless():
    assert keep_freed_memory() in (True, False)
    assert torch.ones(1000, 1000).sum().item() == 1e6
