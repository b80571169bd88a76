"""What an untrained model says: nothing in particular. Above all not the word that it has just written."""

from __future__ import annotations

import pytest
import torch

from capsnmt.models import build_model

SIZE = 200


def probability_of_the_previous_word(system, **changes):
    torch.manual_seed(1)
    sizes = {"width": 128, "encoder_layers": 2, "decoder_layers": 2}
    model = build_model({"system": system, **sizes, **changes}, source_size=SIZE, target_size=SIZE).eval()
    words = torch.randint(4, SIZE, (8, 12))
    with torch.no_grad():
        probabilities = model(words, torch.ones_like(words, dtype=torch.bool), words).softmax(dim=-1)
    return probabilities.gather(-1, words[..., None]).mean().item()


@pytest.mark.parametrize("frame", ["capsnmt", "simple", "pooling", "hybrid"])
def test_it_does_not_repeat_its_last_word(frame):
    """docs/ROUTING.md: a word that passes by every layer to a softmax of the same table speaks loudest there."""
    assert probability_of_the_previous_word(frame, tie_embeddings="none") < 5 / SIZE


def test_tied_tables_would_repeat_it():
    assert probability_of_the_previous_word("simple", tie_embeddings="all") > 0.2
