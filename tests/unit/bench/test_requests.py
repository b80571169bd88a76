"""What cannot be measured is refused with the value in the message, before anything is built."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from capsnmt.bench.command import numbers
from capsnmt.bench.requests import GrowthRequest, LatencyRequest, ParetoRequest, StartRequest, ThroughputRequest
from capsnmt.errors import CapsNMTError


@pytest.mark.parametrize(
    ("make", "shown"),
    [
        (lambda: LatencyRequest(width=500 + 1), "501"),
        (lambda: LatencyRequest(vocabulary=10), "10"),
        (lambda: LatencyRequest(vocabulary=100, words=90), "90"),
        (lambda: LatencyRequest(beams=(0, 8)), "0, 8"),
        (lambda: LatencyRequest(threads=()), "none"),
        (lambda: LatencyRequest(repeats=0), "repeats 0"),
        (lambda: LatencyRequest(pause_s=-1.0), "-1.0"),
        (lambda: LatencyRequest(length=5000), "4096"),
        (lambda: GrowthRequest(lengths=(8, 16)), "3 or more"),
        (lambda: GrowthRequest(lengths=(8, 32, 16)), "ascend"),
        (lambda: ThroughputRequest(source=Path("x"), batches=(0,)), "batches 0"),
        (lambda: StartRequest(models=()), "--model"),
        (lambda: ParetoRequest(models=(), source=Path("a"), reference=Path("b")), "--model"),
    ],
)
def test_impossible_settings_are_refused(make, shown):
    with pytest.raises(CapsNMTError, match="bench") as refused:
        make()
    assert shown in str(refused.value)


def test_settings_are_plain_and_name_no_folder_of_the_machine():
    request = ThroughputRequest(source=Path("/somewhere/news.en"), work=Path("/elsewhere"), beams=(1, 8))
    settings = json.loads(json.dumps(request.settings()))
    assert settings["source"] == "news.en"
    assert settings["beams"] == [1, 8]
    assert "elsewhere" not in json.dumps(settings)


def test_numbers_with_commas():
    assert numbers("--beams", "1, 8") == (1, 8)
    for wrong in ("", "1,x", "-1", "1.5"):
        with pytest.raises(CapsNMTError, match="--beams"):
            numbers("--beams", wrong)
