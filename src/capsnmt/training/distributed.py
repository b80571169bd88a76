"""Data-parallel training under `torchrun`: gloo on CPUs, NCCL on GPUs. With one process every call here is a no-op.

    torchrun --nproc-per-node 2 -m capsnmt train recipe.yaml

The ranks share the batches of an update (training.accumulate); gradients are summed over ranks and divided by the
tokens of all ranks, so any number of ranks makes the same update. The position in the data is common to all of them, so
a run may go on with another number of ranks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from capsnmt.errors import CapsNMTError

# How long ranks wait for one that prepares the corpus or validates; NCCL would give up after ten minutes. A rank that
# has died is no reason to wait: torchrun sees it at once.
_PATIENCE = timedelta(hours=2)
_DEATH_S = 10.0  # what a killed rank, on another machine perhaps, may take to let go of the folder


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together."""

    rank: int
    size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """The rank that writes files and talks to the user."""
        return self.rank == 0

    def wrap(self, model: nn.Module) -> nn.Module:
        """The module to call in training: its backward pass averages gradients over ranks."""
        if self.size == 1:
            return model
        return DistributedDataParallel(model, device_ids=[self.device.index] if self.device.type == "cuda" else None)

    @contextmanager
    def one_after_another(self) -> Iterator[None]:
        """Rank 0 does it first, so that the others find what it made."""
        if self.size > 1 and not self.is_first:
            dist.barrier()
        yield
        if self.size > 1 and self.is_first:
            dist.barrier()

    def total(self, value: float) -> float:
        """Sum over ranks."""
        return self._reduced(value, dist.ReduceOp.SUM) if self.size > 1 else value

    def highest(self, value: float) -> float:
        """Maximum over ranks: what all of them agree on when one of them has seen a signal."""
        return self._reduced(value, dist.ReduceOp.MAX) if self.size > 1 else value

    def from_first(self, values: Sequence[float]) -> list[float]:
        """Rank 0's values, on every rank; what the others pass is only as long."""
        if self.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.broadcast(tensor, src=0)
        return [float(value) for value in tensor.tolist()]

    def gathered(self, tensor: Tensor) -> list[Tensor]:
        """Every rank's tensor, in the order of the ranks."""
        if self.size == 1:
            return [tensor]
        parts = [torch.empty_like(tensor, device=self.device) for _ in range(self.size)]
        dist.all_gather(parts, tensor.to(self.device))
        return [part.cpu() for part in parts]

    def _reduced(self, value: float, operation: dist.ReduceOp.RedOpType) -> float:
        tensor = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, op=operation)
        return float(tensor.item())


def restart_wait_s() -> float:
    """How long to wait for a folder that is locked: under torchrun its holder may be a rank that is just dying."""
    return _DEATH_S if "TORCHELASTIC_RUN_ID" in os.environ else 0.0


def _num_nodes() -> int:
    return int(os.environ.get("GROUP_WORLD_SIZE", "1"))


def _check_store_of_nodes() -> None:
    """torchrun (2.13) keeps its store over restarts, and ranks would wait there for the addresses of the dead.

    On one node the ranks of each start have names of their own in it. Several nodes count their restarts differently,
    so they need a new store each time, which torchrun makes if it is told to.
    """
    if _num_nodes() > 1 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        raise CapsNMTError(
            "several nodes need a new store after each restart: set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for torchrun "
            "on every node"
        )


ALONE = Ranks(0, 1, torch.device("cpu"))  # one process on the CPU: what tests and benchmarks take


@contextmanager
def joined_ranks(device: torch.device) -> Iterator[Ranks]:
    """Joins the processes that torchrun started, and leaves them at the end."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Ranks(0, 1, device)
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    _check_store_of_nodes()
    store, rank, size = next(iter(rendezvous("env://")))
    if _num_nodes() == 1:
        store = PrefixStore(f"restart-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    store.set_timeout(_PATIENCE)  # NCCL's ranks first meet in the store, when the first of them has prepared the corpus
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_PATIENCE)
    try:
        yield Ranks(dist.get_rank(), size, device)
    finally:
        dist.destroy_process_group()
