"""What is measured of the machine, and of one translation from inside; runs in a worker, without torch."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from capsnmt.bench.floors import ATTENTION, DECODER, OUTPUT
from capsnmt.bench.runners import OurRunner
from capsnmt.runtime.engine import OnnxEngine
from capsnmt.runtime.manifest import ENCODE, RUNTIME, Manifest, read_manifest

REST = "calls into the runtime"
ROUNDS = 7
ROUND_S = 0.03


def read_bandwidth(num_bytes: int, threads: int) -> float:
    """Bytes per second of reading a buffer over and over, the best of some rounds.

    Each thread has its share of the buffer and multiplies it with itself (`np.dot` of float32, which reads every byte
    once and does next to nothing with it). A small buffer stays in a cache, and then its figure is the cache's.
    """
    # Ones, because memory that was never written is one page of zeros for all.
    shares = [np.ones(max(1, num_bytes // 4 // threads), np.float32) for _ in range(threads)]

    def read(share: np.ndarray[Any, Any], times: int) -> None:
        for _ in range(times):
            np.dot(share, share)

    times, best = 1, 0.0
    with ThreadPoolExecutor(threads) as pool:
        done = 0
        while done < ROUNDS:
            start_s = time.perf_counter()
            list(pool.map(read, shares, [times] * threads))
            elapsed_s = time.perf_counter() - start_s
            if elapsed_s < ROUND_S:
                times *= 2
                continue
            best = max(best, times * sum(share.nbytes for share in shares) / elapsed_s)
            done += 1
    return best


def peak_operations(graph: Path, threads: int) -> float:
    """Operations per second of the one square product in a graph, the best of some rounds."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    feeds = {given.name: np.ones(given.shape, np.uint8 if "uint8" in given.type else np.float32)}
    session.run(None, feeds)
    best_s = float("inf")
    for _ in range(ROUNDS):
        start_s = time.perf_counter()
        session.run(None, feeds)
        best_s = min(best_s, time.perf_counter() - start_s)
    return float(2 * given.shape[0] ** 3 / best_s)


class ProfiledEngine(OnnxEngine):
    """Our engine whose decoding graphs write down how long each node takes."""

    def __init__(self, folder: Path, manifest: Manifest, *, threads: int, selection: bool, notes: Path) -> None:
        self._notes = notes
        self._profiled: dict[str, ort.InferenceSession] = {}
        super().__init__(folder, manifest, threads=threads, selection=selection)

    def graph(self, name: str) -> ort.InferenceSession:
        """The engine's own session, or for a decoding step one with the same options that takes notes."""
        session = super().graph(name)
        if name == ENCODE:
            return session
        if name not in self._profiled:
            options = session.get_session_options()
            options.enable_profiling = True
            options.profile_file_prefix = str(self._notes / name)
            path = Path(self.folder) / RUNTIME / self.manifest.graphs[name].file
            self._profiled[name] = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return self._profiled[name]

    def taken_notes(self) -> list[dict[str, Any]]:
        """The events of all decoding graphs, in the order of time."""
        events: list[dict[str, Any]] = []
        for session in self._profiled.values():
            events += json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        return sorted(events, key=lambda event: float(event["ts"]))


class ProfiledRunner(OurRunner):
    """Runs as ours do, and takes notes."""

    def __init__(self, folder: Path, *, threads: int, selection: bool, notes: Path) -> None:
        self._notes = notes
        super().__init__(folder, threads=threads, selection=selection)

    def _load(self, folder: Path, threads: int, selection: bool) -> OnnxEngine:
        manifest = read_manifest(folder)
        self.profiled = ProfiledEngine(folder, manifest, threads=threads, selection=selection, notes=self._notes)
        return self.profiled


def profiled_steps(
    *, folder: str, threads: int, selection: bool, source: Sequence[int], target_length: int, beam: int, calls: int
) -> dict[str, float]:
    """Stage → its share of the time of all decoding steps of a translation; {} if ONNX Runtime took no notes.

    What no node takes, REST, is the way into the runtime and out of it.
    """
    with tempfile.TemporaryDirectory(prefix="capsnmt-profile-") as notes:
        runner = ProfiledRunner(Path(folder), threads=threads, selection=selection, notes=Path(notes))
        steps_s = []
        for _ in range(calls):
            before_s = runner.clock.step_s or 0.0
            runner.run([source], target_length=target_length, beam=beam)
            steps_s.append((runner.clock.step_s or 0.0) - before_s)
        events = runner.profiled.taken_notes()
        sizes = runner.profiled.manifest
    found = stage_seconds(events, calls, vocabulary=sizes.vocabulary.target_size)
    if not found:
        return {}
    all_s = max(statistics.median(steps_s), sum(found.values()))
    shares = {stage: seconds / all_s for stage, seconds in found.items()}
    return shares | {REST: 1.0 - sum(shares.values())}


def stage_seconds(events: Sequence[dict[str, Any]], calls: int, *, vocabulary: int) -> dict[str, float]:
    """ONNX Runtime's notes → seconds by stage. All calls do the same, so each has an equal share of the events."""
    kernels = [event for event in events if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")]
    each = len(kernels) // calls
    if not each:
        return {}
    found: dict[str, list[float]] = {}
    for call in range(calls):
        sums = dict.fromkeys((DECODER, ATTENTION, OUTPUT), 0.0)
        for event in kernels[call * each : (call + 1) * each]:
            sums[stage_of(event["args"], vocabulary)] += float(event["dur"]) / 1e6
        for stage, seconds in sums.items():
            found.setdefault(stage, []).append(seconds)
    return {stage: statistics.median(seconds) for stage, seconds in found.items()}


def stage_of(node: dict[str, Any], vocabulary: int) -> str:
    """By the shapes that a node reads and makes.

    Whatever has the size of the vocabulary is the output layer, but for the look-up of an embedding. Attention has
    tensors with heads (four axes), and products that keep the width, where an LSTM's make four gates of it.
    """
    operation = str(node.get("op_name"))
    reads, makes = _shapes(node.get("input_type_shape")), _shapes(node.get("output_type_shape"))
    if any(vocabulary in shape for shape in makes):
        return OUTPUT
    if operation != "Gather" and any(vocabulary in shape for shape in reads):
        return OUTPUT
    if operation not in ("Squeeze", "Unsqueeze") and any(len(shape) == 4 for shape in (*reads, *makes)):
        return ATTENTION
    if "MatMul" in operation and reads[0][-1:] == makes[0][-1:]:
        return ATTENTION
    return DECODER


def _shapes(tensors: Sequence[dict[str, list[int]]] | None) -> list[list[int]]:
    return [shape for tensor in tensors or () for shape in tensor.values()]
