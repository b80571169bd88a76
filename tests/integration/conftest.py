"""A tiny corpus, its recipe, one trained folder per system, and two ways to run the command."""

from __future__ import annotations

import io
import os
import random
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

WORDS = {
    "de": ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"],
    "en": ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"],
}


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: bytes
    err: str

    @property
    def lines(self) -> list[str]:
        assert self.out == b"" or self.out.endswith(b"\n")
        return self.out.decode("utf-8").split("\n")[:-1]


@pytest.fixture(scope="session")
def run_here():
    """run_here("translate", folder, stdin=b"…") → Ended: the command in this process, which costs no start-up."""

    def run(*argv: object, stdin: bytes = b"") -> Ended:
        from capsnmt.cli import main

        kept = sys.stdin, sys.stdout, sys.stderr
        out, err = io.BytesIO(), io.BytesIO()
        sys.stdin = io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
        sys.stdout, sys.stderr = (
            io.TextIOWrapper(stream, encoding="utf-8", write_through=True) for stream in (out, err)
        )
        code = 0
        try:
            main([str(arg) for arg in argv])
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        finally:
            sys.stdout.flush()
            ended = Ended(code, out.getvalue(), err.getvalue().decode("utf-8"))  # before the wrappers close them
            sys.stdin, sys.stdout, sys.stderr = kept
        return ended

    return run


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "", "COLUMNS": "200", "TERM": "dumb"}


@pytest.fixture(scope="session")
def start():
    """start("train", …) → a running `python -m capsnmt`, with pipes on all three ends."""

    def popen(*argv: object, **options: object) -> subprocess.Popen:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        # A shell starts its background jobs deaf to Ctrl-C, and their children inherit that.
        pipes["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
        return subprocess.Popen([sys.executable, "-m", "capsnmt", *map(str, argv)], env=environment(), **pipes)

    return popen


@pytest.fixture(scope="session")
def run_apart(start):
    """run_apart("translate", …, stdin=b"…") → Ended: the real command, in a process of its own."""

    def run(*argv: object, stdin: bytes = b"") -> Ended:
        process = start(*argv)
        out, err = process.communicate(stdin, timeout=60)
        return Ended(process.returncode, out, err.decode("utf-8"))

    return run


def write_corpus(folder: Path, pairs: int, seed: int) -> None:
    generator = random.Random(seed)
    folder.mkdir(parents=True)
    for name, count in (("train", pairs), ("valid", 6), ("test", 6)):
        numbers = [[generator.randrange(10) for _ in range(generator.randint(1, 6))] for _ in range(count)]
        for language, words in WORDS.items():
            lines = [" ".join(words[digit] for digit in number) for number in numbers]
            (folder / f"{name}.{language}").write_text("".join(line + "\n" for line in lines), encoding="utf-8")


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits") / "corpus"
    write_corpus(folder, 60, seed=1)
    return folder


@pytest.fixture(scope="session")
def second_corpus(tmp_path_factory):
    """Other pairs of the same kind, to fine-tune on."""
    folder = tmp_path_factory.mktemp("more-digits") / "corpus"
    write_corpus(folder, 30, seed=2)
    return folder


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("store") / "store"


@pytest.fixture(scope="session")
def write_recipe(corpus, store):
    """write_recipe(path, system_config, **changes of the training section) → path."""

    def write(path: Path, model: dict, **training: object) -> Path:
        values = {
            "languages": {"source": "de", "target": "en"},
            "data": {
                "root": str(corpus),
                "train": {"source": "train.de", "target": "train.en"},
                "valid": {"source": "valid.de", "target": "valid.en"},
                "test": {"source": "test.de", "target": "test.en"},
                "store": str(store),
            },
            "text": {
                "subwords": {"type": "bpe", "vocabulary": 56, "byte_fallback": False, "protected_symbols": 0},
            },
            "model": model,
            "training": {
                "steps": 6,
                "batch_tokens": 64,
                "learning_rate": 0.01,
                "schedule": "inverse_sqrt",
                "warmup_steps": 2,
                "device": "cpu",
                "validate_every": 3,
                "validate_sentences": 3,
                "checkpoint_every": 3,
                "keep_last": 5,
                "log_every": 1,
            }
            | training,
            "decoding": {"beam": 3, "max_length_ratio": 1.0, "max_length_extra": 5},
            "output": str(path.parent / "model"),
        }
        path.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
        return path

    return write


@pytest.fixture
def recipe(write_recipe, tiny_config, tmp_path):
    """recipe(system) → the path of a recipe whose output is a fresh folder beside it."""

    def make(system: str, **training: object) -> Path:
        return write_recipe(tmp_path / f"{system}.yaml", tiny_config(system, dropout=0.2), **training)

    return make


@pytest.fixture(scope="session")
def trained(write_recipe, run_here, tmp_path_factory):
    """trained(system) → its model folder after six updates; trained once, so: look, do not touch."""
    folders: dict[str, Path] = {}

    def get(system: str, model: dict) -> Path:
        if system not in folders:
            path = write_recipe(tmp_path_factory.mktemp(system) / "recipe.yaml", model)
            ended = run_here("train", path, "--quiet")
            assert ended.code == 0, ended.err
            folders[system] = Path(ended.lines[-1])
        return folders[system]

    return get


@pytest.fixture
def folder(trained, tiny_config):
    """A trained CapsNMT."""
    return trained("capsnmt", tiny_config("capsnmt"))
