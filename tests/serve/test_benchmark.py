"""benchmarks/serving.py: what it finds wrong is its exit status, and a seed repeats what it sent."""

from __future__ import annotations

import argparse
import importlib.util
import random
import socket
import sys
import threading
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "serving.py"


@pytest.fixture
def serving(monkeypatch):
    spec = importlib.util.spec_from_file_location("serving_benchmark", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "pair_of", lambda model: ("en", "de"))
    return module


@pytest.fixture
def answering(serving, monkeypatch):
    """answering(bytes) → all servers that the script starts answer every request with that, and hang up."""
    running = []

    def start(answer: bytes) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        running.append(listener)

        def run() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)

        threading.Thread(target=run, daemon=True).start()

        class Server:
            port = listener.getsockname()[1]
            resident_mb = cpu_s = staticmethod(lambda: 100.0)
            stop = staticmethod(lambda: None)

        monkeypatch.setattr(serving, "Server", lambda *args, **options: Server)

    yield start
    for listener in running:
        listener.close()


def test_a_seed_repeats_the_bodies(serving):
    first, second = ([serving.random_body(random.Random(3), [b"abcdef"]) for _ in range(20)] for _ in range(2))
    assert first == second


def test_growth_of_memory(serving):
    assert serving.growth([100, 101, 99, 100, 100, 100]) == pytest.approx(1.0, abs=0.01)
    assert serving.growth([100, 110, 120, 130, 140, 150]) > serving.FLAT


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
CRASH = OK.replace(b"200 OK", b"500 Internal Server Error")


@pytest.mark.parametrize(("answer", "status"), [(OK, 0), (CRASH, 1), (b"", 1)])
@pytest.mark.parametrize("kind", ["load", "soak", "bodies"])
def test_wrong_answers_are_its_exit_status(serving, answering, monkeypatch, capsys, kind, answer, status):
    answering(answer)
    given = argparse.Namespace(kind=kind, model="x", clients=1, seconds=0.2, deadline=30, count=5, server_core=None)
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", lambda self: given)
    original = serving.drive
    monkeypatch.setattr(serving, "drive", lambda server, clients, seconds, pair: original(server, 1, 0.05, pair))
    with pytest.raises(SystemExit) as end:
        serving.main()
    assert end.value.code == status, capsys.readouterr().out
