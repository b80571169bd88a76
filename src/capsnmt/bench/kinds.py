"""The benchmarks, by what is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from capsnmt.bench import growth, latency, limit, pareto, start, throughput
from capsnmt.bench.report import BenchReport
from capsnmt.bench.requests import (
    GrowthRequest,
    LatencyRequest,
    LimitRequest,
    ParetoRequest,
    Request,
    StartRequest,
    ThroughputRequest,
)


class Kind(NamedTuple):
    """A benchmark, and the packages that it cannot do without."""

    run: Callable[[Any], BenchReport]
    needs: tuple[str, ...]


KINDS: dict[type[Request], Kind] = {
    LatencyRequest: Kind(latency.run, ("torch", "onnx")),
    ThroughputRequest: Kind(throughput.run, ("torch", "onnx")),
    GrowthRequest: Kind(growth.run, ("torch", "onnx")),
    LimitRequest: Kind(limit.run, ("torch", "onnx")),
    StartRequest: Kind(start.run, ()),
    ParetoRequest: Kind(pareto.run, ("torch", "sacrebleu")),
}
