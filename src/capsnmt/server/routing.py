"""Which capsule takes which word of a line, as the model that translates it sees that line."""

from __future__ import annotations

from typing import Any

import numpy as np

from capsnmt.decoding.segments import Segment, innermost
from capsnmt.decoding.translation import TranslateOptions
from capsnmt.server.models import Model
from capsnmt.text.spans import restore


def routing_of(model: Model, line: str) -> list[dict[str, Any]]:
    """For each piece of a line that the model reads at once: its words, and the share of each that a capsule takes.

    `shares` is (iterations, words, capsules). A word's share is the mean of its subwords'; over the capsules the
    shares of a word sum to 1.
    """
    parts = model.line_batch(TranslateOptions()).plan(0, line, "")
    segments = innermost([part for part in parts if isinstance(part, Segment)])
    return [_chunk(model, segment, chunk) for segment in segments for chunk in segment.chunks]


def _chunk(model: Model, segment: Segment, ids: list[int]) -> dict[str, Any]:
    coefficients = model.engine.routing([ids])[0]  # (iterations, src_len, M)
    groups = _words(model, ids[:-1])
    words = [restore(_readable(model, ids, group), segment.masked.spans).text or "·" for group in groups]
    groups.append([len(ids) - 1])  # EOS is routed like a word
    shares = np.stack([coefficients[:, group].mean(axis=1) for group in groups], axis=1)
    return {"words": [*words, "</s>"], "shares": np.round(shares.astype(np.float64), 4).tolist()}


def _words(model: Model, ids: list[int]) -> list[list[int]]:
    """Places of the subwords of each word."""
    groups: list[list[int]] = []
    for place, token in enumerate(ids):
        if not groups or model.text.starts_word(token):
            groups.append([])
        groups[-1].append(place)
    return groups


def _readable(model: Model, ids: list[int], group: list[int]) -> str:
    return model.text.source_text([ids[place] for place in group]).strip()
