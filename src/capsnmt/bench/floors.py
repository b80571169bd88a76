"""What a translation must read and compute at the least, stage by stage, for CapsNMT in int8.

One byte a weight. A product's weights are read once per call: the recurrent weights of the encoder once per source
token, all of the decoder's once per step. Activations, norms and the logits' own traffic are left out, so the floor is
one that no implementation of this model reaches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ENCODER, DECODER, ATTENTION, OUTPUT = "encoder", "decoder LSTMs", "attention", "output layer"


@dataclass(frozen=True)
class Work:
    """Of one stage in one translation."""

    buffer_bytes: int  # its weights: what must fit a cache to be read from there
    read_bytes: int
    operations: int  # two per multiplication and addition


@dataclass(frozen=True)
class Floor:
    """The least time of a stage, and which of the two sets it."""

    read_s: float
    compute_s: float

    @property
    def seconds(self) -> float:
        """Reading and computing can overlap, so the longer one counts."""
        return max(self.read_s, self.compute_s)

    @property
    def bound(self) -> str:
        """What a faster machine would need more of."""
        return "memory" if self.read_s >= self.compute_s else "arithmetic"


def floor_of(work: Work, *, bytes_per_s: float, operations_per_s: float) -> Floor:
    """`bytes_per_s` as measured on a buffer of the stage's own size."""
    return Floor(work.read_bytes / bytes_per_s, work.operations / operations_per_s)


def capsnmt_work(
    model: Mapping[str, Any], *, vocabulary: int, source_length: int, target_length: int, beam: int
) -> dict[str, Work]:
    """Stage → work, for one sentence. The first step has one hypothesis, all others a full beam."""
    d = model["width"]
    rows = 1 + (target_length - 1) * beam
    decoder = model["decoder_layers"] * 8 * d * d  # four gates of d, from input and state
    output = vocabulary * d
    stages = {
        ENCODER: _encoder_work(model, source_length),
        DECODER: Work(decoder, decoder * target_length, 2 * decoder * rows),
        OUTPUT: Work(output, output * target_length, 2 * output * rows),
    }
    if model.get("attention", "none") == "capsules":
        query_and_output = _attending(model) * 2 * d * d  # keys and values are made once, by the encoder
        stages[ATTENTION] = Work(query_and_output, query_and_output * target_length, 2 * query_and_output * rows)
    return stages


def _attending(model: Mapping[str, Any]) -> int:
    """How many layers of the decoder attend, if any do."""
    layers: int = model["decoder_layers"]
    return layers if model.get("attending") == "all" else 1


def _encoder_work(model: Mapping[str, Any], source_length: int) -> Work:
    d, T, M, layers = model["width"], model["num_iterations"], model["num_capsules"][-1], model["encoder_layers"]
    inputs = layers * 4 * d * d  # two directions, each with four gates of d/2 from d
    recurrent = layers * 2 * d * d  # and from d/2
    own = {"per_parent": M * d * d, "shared": d * d, "low_rank": 2 * M * d * model.get("rank", 0)}
    composed = T * own[model.get("transform", "per_parent")]  # W_j of Eq. 8, one set per iteration
    g = 2 * d * d  # Eq. 14: two layers
    joined = M * d * d  # W_c
    keys_and_values = _attending(model) * 2 * d * d if model.get("attention", "none") == "capsules" else 0
    weights = inputs + recurrent + composed + g + joined + keys_and_values
    read = inputs + recurrent * source_length + composed + g * T + joined + keys_and_values
    products = (inputs + recurrent + composed) * source_length + g * (source_length + (T - 1) * M)
    products += joined + keys_and_values * M
    sums = source_length * M * d * (2 * T - 1)  # Eq. 7 in every iteration, agreements in all but the last
    return Work(weights, read, 2 * (products + sums))
