"""What the tests of the server have in common besides fixtures."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from capsnmt.runtime.manifest import MANIFEST, RUNTIME


@dataclass
class Served:
    """A running server."""

    process: subprocess.Popen
    url: str
    log_path: Path
    client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.client = httpx.Client(base_url=self.url, timeout=60)

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    @property
    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8")

    def post(self, path: str, **fields: object) -> httpx.Response:
        return self.client.post(path, json=fields)

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.client.close()
        self.process.send_signal(number)
        return self.process.wait(30)


def wait_for(true, seconds: float = 60.0) -> None:
    """Until something is so; how long it takes is nobody's business."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def set_languages(folder: Path, pair: str) -> None:
    path = folder / RUNTIME / MANIFEST
    manifest = json.loads(path.read_text(encoding="utf-8"))
    source, target = pair.split("-")
    path.write_text(json.dumps({**manifest, "languages": {"source": source, "target": target}}), encoding="utf-8")
