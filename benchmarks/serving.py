"""The server under load, on loopback: answers, refusals, latency, the gain of batching, memory over time, bad bodies.

    python benchmarks/serving.py load   runs/my --clients 64 --seconds 60     # with and without batching
    python benchmarks/serving.py soak   runs/my --clients 16 --seconds 600    # memory
    python benchmarks/serving.py bodies runs/my --count 10000                 # random bodies
    python benchmarks/serving.py cores  runs/my --seconds 20                  # requests per second by clients

Clients and server share the machine: pin the server to a core (--server-core) to say what one core carries. Each ends
with 1 if an answer was wrong, came after the deadline, or the memory grew.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

FLAT = 1.05  # resident memory of the last third of a soak, of the first third's, that is no growth

SENTENCES = [
    "A man in a blue shirt is riding a horse.",
    "Two small dogs are playing in the snow.",
    "The children are looking at something that we cannot see from here.",
    "Thank you.",
    "A woman with a red bag is waiting for the bus in front of an old house.",
    "Where is the station?",
    "He has lived in this town for ten years, and he still does not know his neighbours.",
]


@dataclass
class Found:
    """What the clients saw."""

    seconds: list[float] = field(default_factory=list)  # of answers with 200
    refused: int = 0  # 429 and 503 with Retry-After
    wrong: list[str] = field(default_factory=list)

    def line(self, elapsed_s: float) -> str:
        ordered = sorted(self.seconds) or [0.0]
        rank = [ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.5, 0.95, 0.99)]
        shown = " / ".join(f"{1000 * value:.0f}" for value in rank)
        rate = len(self.seconds) / elapsed_s
        return (
            f"{len(self.seconds)} answers ({rate:.1f}/s), {self.refused} told to come back, {len(self.wrong)} wrong, "
            f"p50/p95/p99 {shown} ms"
        )


class Server:
    """`capsnmt serve` in a process of its own."""

    def __init__(self, model: str, *options: object, core: int | None = None) -> None:
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")  # noqa: SIM115
        command = [sys.executable, "-m", "capsnmt", "serve", model, "--port", "0", "--no-access-log"]
        pinned = ["taskset", "-c", str(core)] if core is not None else []
        self.process = subprocess.Popen([*pinned, *command, *map(str, options)], stderr=self.log)
        while not (found := re.search(r"listens on http://\S+:(\d+)", Path(self.log.name).read_text())):
            if self.process.poll() is not None:
                sys.exit(Path(self.log.name).read_text())
            time.sleep(0.1)
        self.port = int(found[1])
        time.sleep(1.0)

    def resident_mb(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024

    def cpu_s(self) -> float:
        """Processor time so far: what an answer costs, whatever else the machine is doing."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        self.log.close()


class Connection:
    """HTTP/1.1 by hand: a client must not be what is measured."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.reader: asyncio.StreamReader | None = None

    async def post(self, path: str, body: bytes, kind: str = "application/json") -> tuple[int, str]:
        if self.reader is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        self.writer.write(head.encode() + body)
        answer = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        length = re.search(r"content-length: (\d+)", answer, re.I)
        if length:
            await self.reader.readexactly(int(length[1]))
        if re.search(r"connection: close", answer, re.I):
            self.close()
        return int(answer.split(" ", 2)[1]), answer

    def close(self) -> None:
        if self.reader is not None:
            self.writer.close()
        self.reader = None


async def client(port: int, number: int, end: float, pair: tuple[str, str], found: Found) -> None:
    generator = random.Random(number)
    connection = Connection(port)
    while time.monotonic() < end:
        body = json.dumps({"q": generator.choice(SENTENCES), "source": pair[0], "target": pair[1]}).encode()
        started = time.monotonic()
        try:
            status, head = await connection.post("/translate", body)
        except (OSError, asyncio.IncompleteReadError) as error:
            found.wrong.append(type(error).__name__)
            connection.close()
            continue
        if status == 200:
            found.seconds.append(time.monotonic() - started)
        elif status in (429, 503) and "retry-after" in head.lower():
            found.refused += 1
            await asyncio.sleep(0.5)
        else:
            found.wrong.append(str(status))
    connection.close()


async def drive(server: Server, clients: int, seconds: float, pair: tuple[str, str]) -> tuple[Found, float]:
    found = Found()
    started = time.monotonic()
    end = started + seconds
    await asyncio.gather(*(client(server.port, number, end, pair, found) for number in range(clients)))
    return found, time.monotonic() - started


def pair_of(model: str) -> tuple[str, str]:
    languages = json.loads((Path(model) / "runtime" / "manifest.json").read_text())["languages"]
    return languages["source"], languages["target"]


def random_body(generator: random.Random, seeds: Sequence[bytes]) -> bytes:
    """One of the seeds with some of its bytes replaced."""
    body = bytearray(generator.choice(seeds))
    for _ in range(generator.randrange(8)):
        place = generator.randrange(len(body) + 1)
        body[place : place + generator.randrange(6)] = generator.randbytes(generator.randrange(12))
    return bytes(body)


def growth(resident_mb: Sequence[float]) -> float:
    """The last third's mean, of the first third's."""
    third = max(1, len(resident_mb) // 3)
    return sum(resident_mb[-third:]) / sum(resident_mb[:third])


def load(options: argparse.Namespace) -> bool:
    well = True
    rates = {}
    for name, extra in (("batching", ()), ("no batching", ("--batch-lines", 1))):
        server = Server(options.model, "--deadline", options.deadline, *extra, core=options.server_core)
        asyncio.run(drive(server, 4, 2, pair_of(options.model)))  # warm
        before_s = server.cpu_s()
        found, elapsed_s = asyncio.run(drive(server, options.clients, options.seconds, pair_of(options.model)))
        cost_ms = 1000 * (server.cpu_s() - before_s) / max(1, len(found.seconds))
        print(f"{name}, {options.clients} clients, {elapsed_s:.0f} s: {found.line(elapsed_s)}")
        late = sum(seconds > options.deadline for seconds in found.seconds)
        print(f"  later than the deadline of {options.deadline} s: {late}; wrong: {found.wrong[:5]}")
        print(f"  processor time per answer {cost_ms:.1f} ms, resident {server.resident_mb():.0f} MB", flush=True)
        rates[name] = len(found.seconds) / elapsed_s
        well = well and not found.wrong and not late
        server.stop()
    print(f"batching answers {rates['batching'] / max(1e-9, rates['no batching']):.2f} times as many requests")
    return well


def cores(options: argparse.Namespace) -> bool:
    well = True
    server = Server(options.model, "--threads", 1, core=options.server_core)
    for clients in (1, 2, 4, 8, 16, 32, 64):
        found, elapsed_s = asyncio.run(drive(server, clients, options.seconds, pair_of(options.model)))
        print(f"{clients:3d} clients: {found.line(elapsed_s)}", flush=True)
        well = well and not found.wrong
    server.stop()
    return well


def soak(options: argparse.Namespace) -> bool:
    server = Server(options.model, core=options.server_core)
    parts = 12
    resident_mb: list[float] = []
    wrong: list[str] = []
    for part in range(parts):
        found, elapsed_s = asyncio.run(drive(server, options.clients, options.seconds / parts, pair_of(options.model)))
        resident_mb.append(server.resident_mb())
        wrong += found.wrong
        shown = f"{resident_mb[-1]:.1f} MB resident after part {part + 1} of {parts}"
        print(f"{shown}: {found.line(elapsed_s)}", flush=True)
    server.stop()
    grown = growth(resident_mb)
    verdict = "flat" if grown <= FLAT else "it grows"
    print(f"resident memory of the last third is {grown:.3f} of the first third's: {verdict}; {len(wrong)} wrong")
    return grown <= FLAT and not wrong


def bodies(options: argparse.Namespace) -> bool:
    server = Server(options.model, core=options.server_core)
    source, target = pair_of(options.model)
    generator = random.Random(1)
    kinds = ["application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain"]
    paths = ["/translate", "/detect", "/v1/translate", "/translate_file", "/suggest", "/languages", "/metrics"]
    fields = {"q": "A dog.", "source": source, "target": target}
    multipart = "".join(
        f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields.items()
    )
    seeds = [json.dumps(fields).encode(), f"q=dog&source={source}&target={target}".encode(), multipart.encode(), b""]
    statuses: dict[str, int] = {}
    wrong: list[str] = []

    async def run() -> None:
        connection = Connection(server.port)
        for _ in range(options.count):
            body = random_body(generator, seeds)
            try:
                code, head = await connection.post(generator.choice(paths), body, generator.choice(kinds))
            except (OSError, asyncio.IncompleteReadError) as error:
                status, is_wrong = type(error).__name__, True
                connection.close()
            else:
                told_to_come_back = code == 503 and "retry-after" in head.lower()
                status, is_wrong = str(code), code >= 500 and not told_to_come_back
            statuses[status] = statuses.get(status, 0) + 1
            wrong.extend([status] * is_wrong)

    asyncio.run(run())
    print(f"{options.count} random bodies: {dict(sorted(statuses.items()))}, {len(wrong)} wrong")
    found, elapsed_s = asyncio.run(drive(server, 4, 3, (source, target)))
    print(f"afterwards: {found.line(elapsed_s)}")
    server.stop()
    return not wrong and not found.wrong


KINDS = {"load": load, "soak": soak, "bodies": bodies, "cores": cores}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("model", help="exported model folder")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--deadline", type=float, default=30)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--server-core", type=int, help="pin the server to this core")
    options = parser.parse_args()
    sys.exit(0 if KINDS[options.kind](options) else 1)


if __name__ == "__main__":
    main()
