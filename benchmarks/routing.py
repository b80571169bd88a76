"""What routing costs in training: its share of an update's time, and memory as sources grow.

    python benchmarks/routing.py [RECIPE] [--set model.width=512 …] [--json FILE] [--plot FILE.png]

The model and its precision (`training.bf16_modules`) are the recipe's, by default those of Multi30k's CapsNMT.
Share: the capsule layers alone, forward and backward, over the whole update of the same batch, in turn, medians. With
torch's profile of where the time of the capsule layers goes. Memory: what autograd keeps for the backward pass, counted
exactly, of one sentence of growing length; the straight line through it, and its R².
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.profiler import ProfilerActivity, profile

from capsnmt.analysis.figures import Curve, curves
from capsnmt.config import TrainingConfig, load_recipe
from capsnmt.models import build_model
from capsnmt.models.capsnmt import CapsNMT
from capsnmt.runtime.allocator import keep_freed_memory
from capsnmt.training.loop import build_optimiser
from capsnmt.training.loss import label_smoothed_loss
from capsnmt.training.precision import use_bf16

VOCABULARY = 8000
LENGTH = 27  # of the sentences of the timed batch, as in WMT14
LENGTHS = (16, 32, 64, 128, 256, 512, 1024)
MB = 1e6


def seconds(work: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    work()
    return time.perf_counter() - start_s


def ids(sentences: int, length: int) -> tuple[Tensor, Tensor]:
    return torch.randint(4, VOCABULARY, (sentences, length)), torch.ones(sentences, length, dtype=torch.bool)


def share_of_update(model: CapsNMT, batch_tokens: int, repeats: int) -> dict[str, object]:
    source, mask = ids(batch_tokens // LENGTH, LENGTH)
    optimiser = build_optimiser(model, TrainingConfig(steps=1, learning_rate=1e-4))
    states = model.states(source, mask).detach().requires_grad_()

    def update() -> None:
        label_smoothed_loss(model(source, mask, source), source, mask, 0.1).smoothed.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()

    def routing() -> None:
        model.routed(states, mask)[-1].capsules.sum().backward()
        states.grad = None
        optimiser.zero_grad()

    update(), routing()  # warm-up
    times = [(seconds(update), seconds(routing)) for _ in range(repeats)]
    update_s, routing_s = (statistics.median(column) for column in zip(*times, strict=True))
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        routing()
    spent = sorted(profiled.key_averages(), key=lambda one: -one.self_cpu_time_total)
    total = sum(one.self_cpu_time_total for one in spent)
    return {
        "update_ms": round(update_s * 1e3, 1),
        "routing_ms": round(routing_s * 1e3, 1),
        "share": round(routing_s / update_s, 3),
        "profile_of_routing": {one.key: round(one.self_cpu_time_total / total, 3) for one in spent[:8]},
    }


def kept_bytes(model: CapsNMT, forward: Callable[[], object]) -> int:
    """What autograd keeps besides the parameters."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        result = forward()  # held until all is counted: a freed storage's place would be taken by another
    del result
    return sum(kept.values())


def memory_by_length(model: CapsNMT) -> dict[str, list[float]]:
    whole, routing = [], []
    for length in LENGTHS:
        source, mask = ids(1, length)
        states = model.states(source, mask).detach().requires_grad_()

        def update(source: Tensor = source, mask: Tensor = mask) -> object:
            return label_smoothed_loss(model(source, mask, source), source, mask, 0.1)

        def route(states: Tensor = states, mask: Tensor = mask) -> object:
            return model.routed(states, mask)

        whole.append(kept_bytes(model, update) / MB)
        routing.append(kept_bytes(model, route) / MB)
    return {"the whole update": whole, "routing": routing}


def r_squared(values: list[float]) -> float:
    """Of the straight line through lengths and values."""
    return float(np.corrcoef(LENGTHS, values)[0, 1] ** 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", nargs="?", default="recipes/multi30k-en-de/capsnmt.yaml")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting")
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    keep_freed_memory()
    torch.manual_seed(1)
    recipe = load_recipe(args.recipe, args.set)
    model = build_model(recipe.model, source_size=VOCABULARY, target_size=VOCABULARY).train()
    assert isinstance(model, CapsNMT)
    use_bf16(model, recipe.training.bf16_modules)
    memory = memory_by_length(model)
    record = {
        "recipe": args.recipe,
        "set": args.set,
        "threads": torch.get_num_threads(),
        **share_of_update(model, args.batch_tokens, args.repeats),
        "lengths": LENGTHS,
        "kept_mb": memory,
        "r_squared": {name: r_squared(values) for name, values in memory.items()},
    }
    print(json.dumps(record, indent=1))
    if args.json:
        args.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if args.plot:
        lines: dict[str, Curve] = {name: (LENGTHS, values, None) for name, values in memory.items()}
        args.plot.write_bytes(curves(lines, x="source and target tokens", y="MB kept for the backward pass"))


if __name__ == "__main__":
    main()
