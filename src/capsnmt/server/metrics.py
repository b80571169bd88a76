"""What /metrics shows to Prometheus: counts and times, nothing of what users sent."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """The instruments of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Histogram(
            "capsnmt_http_request_duration_seconds",
            "Time from a request's arrival to the end of its answer",
            ("method", "endpoint", "status"),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.in_flight = Gauge("capsnmt_http_requests_in_flight", "Requests under way", registry=self.registry)
        self.refused = Counter(
            "capsnmt_refused_total", "Requests that were told to come back", ("reason",), registry=self.registry
        )
        self.abandoned = Counter(
            "capsnmt_abandoned_total", "Requests whose client went away before the answer", registry=self.registry
        )
        self.waiting_requests = Gauge("capsnmt_queue_requests", "Requests with waiting lines", registry=self.registry)
        self.waiting_characters = Gauge("capsnmt_queue_characters", "Characters that wait", registry=self.registry)
        self.batch_lines = Histogram(
            "capsnmt_batch_lines",
            "Lines that were translated together",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
            registry=self.registry,
        )
        self.batch_seconds = Histogram(
            "capsnmt_batch_duration_seconds", "Time of a batch in the model", buckets=_SECONDS, registry=self.registry
        )
        self.characters = Counter("capsnmt_translated_characters_total", "Source characters", registry=self.registry)
        self.reloads = Counter("capsnmt_reloads_total", "Reloads of the models", ("outcome",), registry=self.registry)

    def measure_batch(self, *, lines: int, characters: int, elapsed_s: float) -> None:
        """One batch went through a model."""
        self.batch_lines.observe(lines)
        self.batch_seconds.observe(elapsed_s)
        self.characters.inc(characters)

    def text(self) -> bytes:
        """Prometheus' text format."""
        return generate_latest(self.registry)
