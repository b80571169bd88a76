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

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel


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


ALONE = Ranks(0, 1, torch.device("cpu"))  # one process on the CPU: what tests and benchmarks take


@contextmanager
def joined_ranks(device: torch.device) -> Iterator[Ranks]:
    """Joins the processes that torchrun started, and leaves them at the end."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Ranks(0, 1, device)
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    store, rank, size = next(iter(rendezvous("env://")))
    if os.environ.get("GROUP_WORLD_SIZE", "1") == "1":
        # On one node torchrun (2.13) keeps its store over restarts: ranks would find the addresses of the dead there,
        # and wait for them for half an hour. Several nodes get a new store, and count their restarts differently.
        store = PrefixStore(f"restart-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", store=store, rank=rank, world_size=size)
    try:
        yield Ranks(dist.get_rank(), size, device)
    finally:
        dist.destroy_process_group()
