"""Training speed of the systems: target tokens/s at widths 256 and 512, and the share of the machine's matrix peak.

    python benchmarks/training.py [--widths 256 512] [--vocabulary 8000] [--json FILE]

Everything in one quiet run, medians and spread: on a shared machine only ratios in one run mean anything. The peak is
measured in the same run, beside each system, as the best of several square products of float32 matrices with torch.
A system's floating-point operations are counted by torch's own counter, LSTMs by hand (it does not see oneDNN's).
The data loader runs as in training, on synthetic text of WMT-like lengths; its waiting share is printed beside.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from capsnmt.config import TrainingConfig
from capsnmt.data.batches import Batch, BatchStream
from capsnmt.data.store import Row, Store, write_store
from capsnmt.models import build_model
from capsnmt.runtime.allocator import keep_freed_memory
from capsnmt.training.distributed import ALONE
from capsnmt.training.loop import build_optimiser, update
from capsnmt.training.validation import batch_loss

SYSTEMS = {
    "capsnmt 4+3": {"system": "capsnmt", "dropout": 0.1},
    "simple 4+3": {"system": "simple", "dropout": 0.1},
    "transformer 6+6": {"system": "transformer", "dropout": 0.1},
}


def matrix_peak_flops(size: int = 2048, repeats: int = 7) -> float:
    """Best of several: float operations per second of a square product."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    a @ b
    times_s = []
    for _ in range(repeats):
        start_s = time.perf_counter()
        a @ b
        times_s.append(time.perf_counter() - start_s)
    return 2 * size**3 / min(times_s)


def synthetic_store(path: Path, vocabulary: int, pairs: int = 4000) -> Store:
    """Pairs with lengths like WMT's: mean 27, long tail."""
    rng = np.random.default_rng(1)
    rows = []
    for length in np.clip(rng.lognormal(3.15, 0.55, pairs).astype(int), 3, 100):
        target_length = max(3, round(length * rng.normal(1.0, 0.15)))
        source, target = ([*rng.integers(4, vocabulary, n).tolist(), 3] for n in (length, target_length))
        rows.append(Row("", "", source, target))
    write_store(path, rows)
    return Store(path)


def lstm_operations(model: nn.Module, batch: Batch) -> int:
    """Forward and backward of all LSTMs: 3 × 2 × parameters × padded positions."""
    total = 0
    for name, module in model.named_modules():
        if isinstance(module, nn.LSTM):
            positions = batch.source.size if name.startswith("encoder") else batch.target_in.size
            total += 6 * positions * sum(weight.numel() for weight in module.parameters() if weight.dim() == 2)
    return total


def operations(model: nn.Module, batch: Batch) -> int:
    """Float operations of one update on this batch."""
    counter = FlopCounterMode(display=False)
    with counter:
        batch_loss(model, batch, torch.device("cpu"), 0.1).smoothed.backward()
    model.zero_grad()
    counted = counter.get_total_flops()
    return counted + lstm_operations(model, batch)


def measure(values: dict[str, object], stream: BatchStream, settings: TrainingConfig, vocabulary: int, updates: int):
    """Tokens/s of each update, operations/s over all, the loader's waiting share, parameters."""
    torch.manual_seed(1)
    model = build_model(values, source_size=vocabulary, target_size=vocabulary).train()
    optimiser = build_optimiser(model, settings)
    update(model, optimiser, [next(stream)], 1e-4, settings, ALONE)  # warm-up
    batches = [next(stream) for _ in range(updates)]
    done = sum(operations(model, batch) for batch in batches)
    tokens_per_s, elapsed_s, wait_start_s = [], 0.0, stream.wait_s
    for batch in batches:
        start_s = time.perf_counter()
        next(stream)  # what the loop pays for data; the measured batches are those whose operations were counted
        update(model, optimiser, [batch], 1e-4, settings, ALONE)
        took_s = time.perf_counter() - start_s
        elapsed_s += took_s
        tokens_per_s.append(batch.target_tokens / took_s)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return tokens_per_s, done / elapsed_s, (stream.wait_s - wait_start_s) / elapsed_s, parameters


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", nargs="+", type=int, default=[256, 512])
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--updates", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    keep_freed_memory()
    settings = TrainingConfig(steps=1, learning_rate=1e-4, batch_tokens=args.batch_tokens)
    records = []
    with tempfile.TemporaryDirectory() as folder:
        store = synthetic_store(Path(folder) / "bench.arrow", args.vocabulary)
        for width in args.widths:
            for name, values in SYSTEMS.items():
                sizes = {"inner_width": 4 * width, "num_heads": width // 64} if "transformer" in name else {}
                stream = BatchStream(store, batch_tokens=args.batch_tokens, seed=1)
                tokens, flops, wait, parameters = measure(
                    {**values, "width": width, **sizes}, stream, settings, args.vocabulary, args.updates
                )
                stream.close()
                peak = matrix_peak_flops()
                records.append(
                    {
                        "system": name,
                        "width": width,
                        "parameters": parameters,
                        "target_tokens_per_s": round(statistics.median(tokens)),
                        "slowest": round(min(tokens)),
                        "fastest": round(max(tokens)),
                        "gflops": round(flops / 1e9, 1),
                        "peak_gflops": round(peak / 1e9, 1),
                        "share_of_peak": round(flops / peak, 3),
                        "loader_wait_share": round(wait, 5),
                    }
                )
    table = Table(
        title=f"training on {torch.get_num_threads()} threads, {args.batch_tokens} tokens, {args.vocabulary} words"
    )
    for key in records[0]:
        table.add_column(key.replace("_", " "), justify="right")
    for record in records:
        table.add_row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in record.values()))
    Console(width=160).print(table)
    if args.json:
        args.json.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
