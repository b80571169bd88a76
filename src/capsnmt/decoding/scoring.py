"""Log-probabilities of given outputs, by forced decoding: the same numbers that the search adds up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from capsnmt.decoding.engine import Engine, clean_log_probs
from capsnmt.errors import CapsNMTError
from capsnmt.text.subwords import BOS, EOS


def score(
    engine: Engine, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
) -> list[npt.NDArray[np.float64]]:
    """Token log-probs of each target, its </s> included; targets come without BOS and </s>."""
    if len(sources) != len(targets):
        raise CapsNMTError(f"{len(sources)} sources with {len(targets)} targets; give one target per source")
    if not sources:
        return []
    lengths = np.array([len(target) + 1 for target in targets])
    expected = np.full((len(targets), lengths.max()), EOS, dtype=np.int64)  # (sentences, longest)
    for row, target in zip(expected, targets, strict=True):
        row[: len(target)] = target
    log_probs = np.zeros(expected.shape)

    session = engine.encode(sources)
    sentences = origins = np.arange(len(sources))  # (rows,), fewer as the shorter targets end
    tokens = np.full(len(sources), BOS)
    for position in range(expected.shape[1]):
        wanted = expected[sentences, position]
        found = session.step(tokens, origins, 1, forced=wanted)
        if found.forced is None:
            raise RuntimeError("the engine left out the log-probs of the forced tokens")
        log_probs[sentences, position] = clean_log_probs(found.forced)
        origins = np.flatnonzero(lengths[sentences] > position + 1)
        sentences, tokens = sentences[origins], wanted[origins]
    return [log_probs[sentence, :length] for sentence, length in enumerate(lengths)]
