"""A converted Transformer says what ours says; a map of words is obeyed."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from capsnmt.bench.build import made_lexicon, write_vocabulary_map
from capsnmt.bench.peer_model import random_transformer, sinusoids, transformer_arrays, write_peer
from capsnmt.bench.peer_tokens import ids_of, token_of
from capsnmt.bench.requests import LatencyRequest
from capsnmt.bench.runners import PeerRunner, load_peer
from capsnmt.decoding.scoring import score
from capsnmt.decoding.search import beam_search
from capsnmt.models.layers import sinusoidal_positions
from capsnmt.runtime.torch_engine import TorchEngine
from capsnmt.text.subwords import BOS, EOS, PAD, UNK

VOCABULARY = 40
LENGTH = 12


def random_sources(count):
    generator = random.Random(4)
    return [[generator.randrange(4, VOCABULARY) for _ in range(generator.randint(1, 9))] + [EOS] for _ in range(count)]


@pytest.fixture(params=["post", "pre"])
def both(request, tiny_model, tmp_path):
    """A random Transformer in torch and in CTranslate2. Tied embeddings would make it repeat its last word for ever."""
    model = tiny_model("transformer", request.param, tie_embeddings="none")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2 and ("attention" in name or "feed_forward" in name):
                parameter.mul_(3.0)
            elif parameter.dim() == 1:  # biases and norms count as well
                parameter.add_(0.1 * torch.randn_like(parameter))
    write_peer(transformer_arrays(model, num_positions=64), tmp_path / "peer", int8=False)
    engine = TorchEngine(model, vocabulary_size=VOCABULARY, device=torch.device("cpu"))
    return engine, load_peer(tmp_path / "peer", 1, "float32")


def as_tokens(sentences):
    return [[token_of(id_) for id_ in sentence] for sentence in sentences]


def test_a_converted_model_gives_every_token_the_probability_that_ours_gives(both):
    engine, peer = both
    sources, targets = random_sources(20), [ids[:-1] for ids in random_sources(20)[::-1]]
    found = peer.score_batch(as_tokens(sources), as_tokens(targets))
    for expected, result in zip(score(engine, sources, targets), found, strict=True):
        assert result.log_probs == pytest.approx(expected.tolist(), abs=1e-4)


def test_greedy_translations_of_a_converted_model_are_ours(both):
    engine, peer = both
    sources = random_sources(30)
    settings = {"length_penalty": 0.0, "length_penalty_type": "wu", "max_lengths": [LENGTH + 1] * len(sources)}
    ours = [found[0].ids for found in beam_search(engine, sources, beam=1, **settings)]
    assert len({tuple(ids) for ids in ours}) > 5  # so the comparison means something
    found = peer.translate_batch(
        as_tokens(sources),
        beam_size=1,
        max_decoding_length=LENGTH,
        suppress_sequences=as_tokens([[PAD], [BOS]]),  # which our engines never propose
    )
    assert [ids_of(result.hypotheses[0]) for result in found] == ours


def test_the_table_of_positions_is_our_function():
    expected = sinusoidal_positions(50, 16, device=torch.device("cpu")).numpy()
    np.testing.assert_allclose(sinusoids(50, 16), expected, atol=1e-5)


def test_tokens_and_back():
    ids = [PAD, UNK, BOS, EOS, 4, 39]
    assert [token_of(id_) for id_ in ids] == ["<pad>", "<unk>", "<s>", "</s>", "4", "39"]
    assert ids_of([token_of(id_) for id_ in ids]) == [PAD, UNK, BOS, 4, 39]


def test_a_vocabulary_map_leaves_a_sentence_its_own_words_alone(tmp_path):
    request = LatencyRequest(width=16, vocabulary=400, words=60)
    arrays = random_transformer(layers=(1, 1), width=16, num_heads=1, vocabulary=400, num_positions=64, seed=3)
    lexicon = made_lexicon(request)
    write_vocabulary_map(lexicon, tmp_path / "map.txt")
    write_peer(arrays, tmp_path / "peer", vocabulary_map=tmp_path / "map.txt")
    source = [5, 90, 200, EOS]
    allowed = set(lexicon.select(source).tolist())
    written = {}
    for selection in (False, True):
        runner = PeerRunner(tmp_path / "peer", threads=1, selection=selection)
        (ids,) = runner.run(runner.prepare([source]), target_length=30, beam=4)
        assert len(ids) == 30
        written[selection] = set(ids)
    assert written[True] <= allowed
    assert not written[False] <= allowed  # so the map made the difference


def test_a_sentence_has_about_as_many_words_as_were_asked_for():
    request = LatencyRequest()
    lexicon = made_lexicon(request)
    source = [*range(100, 126), EOS]
    assert 0.9 * request.words < len(lexicon.select(source)) < 1.1 * request.words
    assert EOS in lexicon.always
