"""Joining ranks; what they do together is tested in tests/integration/test_distributed.py."""

from types import SimpleNamespace

import pytest
import torch

from capsnmt.errors import CapsNMTError
from capsnmt.training.checkpoint import Progress
from capsnmt.training.distributed import Ranks, joined_ranks
from capsnmt.training.loop import describe


def test_several_nodes_with_a_store_that_outlives_a_restart_are_refused(monkeypatch):
    for name, value in (("WORLD_SIZE", "4"), ("GROUP_WORLD_SIZE", "2"), ("TORCHELASTIC_USE_AGENT_STORE", "True")):
        monkeypatch.setenv(name, value)
    with pytest.raises(CapsNMTError, match="TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"), joined_ranks(torch.device("cpu")):
        pass


def test_more_ranks_than_batches_of_an_update_are_told():
    config = SimpleNamespace(
        model={"system": "simple"},
        languages=SimpleNamespace(source="en", target="de"),
        training=SimpleNamespace(accumulate=2),
    )
    told = [
        describe(torch.nn.Linear(2, 3), config, 7, Ranks(0, size, torch.device("cpu")), Progress()) for size in (2, 3)
    ]
    assert "warning" not in told[0]
    assert told[1].endswith("3 batches, one a device, not the 2 of training.accumulate")
