"""The least work of a translation, against the weights of the real model and against numbers worked out by hand."""

from __future__ import annotations

import pytest

from capsnmt.bench.floors import ATTENTION, DECODER, ENCODER, OUTPUT, Work, capsnmt_work, floor_of
from capsnmt.bench.systems import SYSTEMS, model_section
from capsnmt.models import build_model

SIZES = {"vocabulary": 40, "source_length": 5, "target_length": 7, "beam": 3}


@pytest.mark.parametrize("name", ["capsnmt-m4", "capsnmt", "capsnmt-attention"])
@pytest.mark.parametrize(
    "changes", [{}, {"transform": "shared", "attending": "all"}, {"transform": "low_rank", "rank": 3}]
)
def test_every_weight_of_the_model_is_in_one_stage(name, changes):
    section = {**model_section(SYSTEMS[name], 16), **changes}
    model = build_model(section, source_size=40, target_size=40)
    work = capsnmt_work(section, **SIZES)
    sizes: dict[str, int] = {}
    for parameter_name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            continue  # biases and norms
        parts = parameter_name.split(".")
        if "embedding" in parts[0]:
            stage = OUTPUT  # tied: the output layer is the table
        elif parts[0] == "decoder" and parts[1].startswith("attention"):
            stage = ATTENTION if parts[-2] in ("query", "output") else ENCODER  # keys and values are made once
        else:
            stage = DECODER if parts[0] == "decoder" else ENCODER
        sizes[stage] = sizes.get(stage, 0) + parameter.numel()
    assert {stage: each.buffer_bytes for stage, each in work.items()} == sizes


def test_decoder_weights_are_read_once_a_step_and_used_once_a_hypothesis():
    work = capsnmt_work(model_section(SYSTEMS["capsnmt"], 16), **SIZES)
    rows = 1 + 6 * 3  # one hypothesis at first, then a full beam
    assert work[OUTPUT] == Work(40 * 16, 7 * 40 * 16, 2 * 40 * 16 * rows)
    assert work[DECODER] == Work(3 * 8 * 256, 7 * 3 * 8 * 256, 2 * 3 * 8 * 256 * rows)


def test_the_encoder_grows_with_the_source_and_not_with_the_target():
    section = model_section(SYSTEMS["capsnmt"], 16)
    short, long, same = (
        capsnmt_work(section, **{**SIZES, **changes})[ENCODER]
        for changes in ({}, {"source_length": 6}, {"target_length": 99, "beam": 1})
    )
    assert short == same
    assert long.buffer_bytes == short.buffer_bytes
    assert long.read_bytes - short.read_bytes == 4 * 2 * 256  # recurrent weights, one token more
    # One token more through the LSTMs, the capsules' matrices, g, and the sums of routing.
    per_token = 4 * 6 * 256 + 3 * 6 * 256 + 2 * 256 + 6 * 16 * 5
    assert long.operations - short.operations == 2 * per_token


def test_the_longer_one_of_reading_and_computing_is_the_floor():
    work = Work(buffer_bytes=10, read_bytes=100, operations=1000)
    assert floor_of(work, bytes_per_s=10.0, operations_per_s=1000.0).seconds == 10.0
    assert floor_of(work, bytes_per_s=10.0, operations_per_s=1000.0).bound == "memory"
    assert floor_of(work, bytes_per_s=100.0, operations_per_s=10.0).seconds == 100.0
    assert floor_of(work, bytes_per_s=100.0, operations_per_s=10.0).bound == "arithmetic"
