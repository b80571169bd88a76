"""The figures of which a plan is made: what devices can do, what was measured, what is assumed; each with its source.

A name in capitals is a number. What is "measured" names its command and where its figures stand; what is "published"
comes from the maker's data sheet or a paper; all else is "assumed", by us.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass

from capsnmt.errors import CapsNMTError

GB = 1e9

# Measured (`python benchmarks/scaling.py plan --width 128` and `train --width 512`; docs/SCALING.md, "Measured here"):
# the share of a core's matrix peak that training on one thread reaches grows with the width of the model; 0.59 at 128
# and 0.88 at 512; width / (width + 90) is 0.59 and 0.85. Assumed: decoding in large batches reaches the same.
CPU_HALF_PEAK_WIDTH = 90.0
# Measured (the same): what the search takes besides the model, per hypothesis and token, in batches of 64 lines.
CPU_SEARCH_S = 2.5e-5
# Measured: resident bytes of trainings 32 to 512 wide with batches of 256 to 4,096 tokens are 0.42 GB (interpreter,
# torch, loader), 30 bytes a parameter (16 of them weights, gradients and moments) and 1.8 times what the backward pass
# needs after 25 updates, 3.0 times after 2,700: freed buffers are kept, and no two updates are alike.
CPU_PROCESS_BYTES = 0.42 * GB
CPU_STATE_BYTES = 30
CPU_ALLOCATOR_FACTOR = 2.1
# Assumed.
CPU_LINK_BYTES_PER_S = 1.0 * GB  # gloo between two processes of one machine
# Published: Vaswani et al. 2017 trained the base Transformer in 0.4 s an update on 8 P100. An update has 25,000 tokens
# a side, and 6 x 63 M operations for each: 9.5e12 / 0.4 s / 8 = 3.0e12 a second, 0.28 of the peak.
GPU_TRAINING_SHARE = 0.28
# Assumed: LSTMs wait for their own last step.
GPU_RECURRENT_TRAINING_SHARE = 0.20
GPU_BF16_SHARE = 0.5  # assumed: of the share in fp32; models of this size do not fill matrix units
GPU_DECODING_SHARE = 0.05  # assumed
GPU_PROCESS_BYTES = 1.5 * GB  # assumed: CUDA context and library workspaces
# Measured: CPU time of preparing a pair, from 170 and 227 us for one of Europarl (299 bytes of text; 5 and 20 million
# pairs by `python benchmarks/prepare.py`; docs/RESULTS.md, "Preparing a corpus") and 86 us for one of the demo corpus
# (72 bytes).
PREPARE_PAIR_S = 60e-6
PREPARE_BYTE_S = 0.42e-6
PADDING_FILL = 0.96  # of a batch is text; assumed (tests/unit/data/test_batches.py demands 0.95)
SERVING_LOAD = 0.5  # assumed: servers that are busier than this let people wait
# Measured (`capsnmt export`; docs/RESULTS.md, "Exported models"): int8 takes 5.4 MB where fp32, 4 bytes a parameter,
# takes 20.5.
INT8_BYTES = 1.05
INT8_LOADED_FACTOR = 2.0  # assumed: of the file, in memory; LSTMs over the source are scaled back to fp32
SERVING_PROCESS_BYTES = 0.3 * GB  # assumed: the interpreter, onnxruntime, the web server
JOURNAL_BYTES = 28.0  # of JSON around a translation, its score included: [["...", -12.345678901234567]]


@dataclass(frozen=True)
class Device:
    """What one device can do at most."""

    name: str
    fp32_flops: float
    bf16_flops: float
    memory_bytes: float
    link_bytes_per_s: float  # to its neighbours, for the exchange of gradients
    source: str

    @property
    def is_cpu(self) -> bool:
        """A core of this machine."""
        return self.name == "cpu"


# Dense products; a device without bf16 has the figure of fp32. Links, one way: NVLink as published; of PCIe (16 lanes)
# we assume 10 of the 16 GB/s of version 3 (M40, T4), and 16 of the 32 of version 4 (L4).
DEVICES = {
    "m40": Device("M40", 7.0e12, 7.0e12, 24 * GB, 10e9, "NVIDIA Tesla M40 data sheet"),
    "p100": Device("P100", 10.6e12, 10.6e12, 16 * GB, 80e9, "NVIDIA Tesla P100 (SXM2) data sheet"),
    "v100": Device("V100", 15.7e12, 15.7e12, 32 * GB, 150e9, "NVIDIA V100 (SXM2) data sheet"),
    "t4": Device("T4", 8.1e12, 8.1e12, 16 * GB, 10e9, "NVIDIA T4 data sheet"),
    "l4": Device("L4", 30.3e12, 121e12, 24 * GB, 16e9, "NVIDIA L4 data sheet"),
    "a100": Device("A100", 19.5e12, 312e12, 80 * GB, 300e9, "NVIDIA A100 (SXM) data sheet"),
    "h100": Device("H100", 67e12, 989e12, 80 * GB, 450e9, "NVIDIA H100 (SXM) data sheet"),
}


def parse_devices(text: str) -> tuple[int, Device]:
    """`8xM40` → 8 and its figures. `2xcpu` are two cores of this machine, whose peak is measured now."""
    match = re.fullmatch(r"(?:(\d+)x)?([A-Za-z0-9]+)", text.strip())
    known = [*(device.name for device in DEVICES.values()), "cpu"]
    if match is None or match[2].lower() not in {name.lower() for name in known} or int(match[1] or 1) < 1:
        raise CapsNMTError(f"--devices {text}: write it as in 8xM40; known devices: {', '.join(known)}")
    name = match[2].lower()
    return int(match[1] or 1), this_core() if name == "cpu" else DEVICES[name]


def this_core() -> Device:
    """One core of this machine: the best of several products of float32 matrices, by CPU time, so that what else runs
    here hardly matters.
    """
    import torch

    size, times_s = 1024, []
    a, b = torch.randn(size, size), torch.randn(size, size)
    for _ in range(9):
        start_s = time.process_time()  # of all threads
        a @ b
        times_s.append(time.process_time() - start_s)
    peak = 2 * size**3 / min(times_s)
    cores = os.cpu_count() or 1
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / cores
    return Device("cpu", peak, peak, memory_bytes, CPU_LINK_BYTES_PER_S, "measured now on this machine")


@dataclass(frozen=True)
class CorpusFigures:
    """The size of a training corpus."""

    pairs: int
    source_tokens: float  # subwords a pair, with the end of the sentence
    target_tokens: float
    text_bytes: float  # a pair, both sides
    source: str


UNKNOWN_CORPUS = CorpusFigures(0, 27.0, 27.0, 280.0, "lengths assumed")

# Named corpora whose store is not there yet. Lengths of Europarl en-de with a joint BPE, scaled to 50,000 pieces.
CORPORA = {
    "wmt14-en-de": CorpusFigures(4_500_000, 27.0, 27.0, 280.0, "Wang et al. 2019; lengths assumed"),
    "wmt14-en-fr": CorpusFigures(36_000_000, 28.0, 32.0, 310.0, "Wang et al. 2019; lengths assumed"),
}
