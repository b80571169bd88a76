"""Three tiny exported models, and servers over them in processes of their own."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import filelock
import pytest
import yaml
from served import Served, set_languages, wait_for
from starlette.testclient import TestClient

from capsnmt import verbs
from capsnmt.runtime.manifest import RUNTIME
from capsnmt.server.app import build_app
from capsnmt.server.models import load_models
from capsnmt.server.settings import Limits, ServeSettings
from capsnmt.server.state import Server

WORDS = {
    "de": ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"],
    "en": ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"],
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--serve-model", help="serve this model folder in the tests of the page, to look at its pictures")
    parser.addoption("--pictures", help="folder for pictures of the page")


def train(folder: Path) -> Path:
    """A model that has seen numbers for a moment: what it says is of no use, but it says something."""
    generator = random.Random(1)
    corpus = folder / "corpus"
    corpus.mkdir(parents=True)
    for name, count in (("train", 200), ("valid", 6)):
        numbers = [[generator.randrange(10) for _ in range(generator.randint(1, 6))] for _ in range(count)]
        for language, words in WORDS.items():
            lines = [" ".join(words[digit] for digit in number).capitalize() + ".\n" for number in numbers]
            (corpus / f"{name}.{language}").write_text("".join(lines), encoding="utf-8")
    recipe = {
        "languages": {"source": "de", "target": "en"},
        "data": {
            "root": str(corpus),
            "train": {"source": "train.de", "target": "train.en"},
            "valid": {"source": "valid.de", "target": "valid.en"},
            "test": {"source": "valid.de", "target": "valid.en"},
            "store": str(folder / "store"),
        },
        "text": {
            "subwords": {"type": "bpe", "vocabulary": 340, "byte_fallback": True, "protected_symbols": 6},
            "protect": ["placeholder", "tag", "url", "email", "number"],
        },
        "model": {
            "system": "capsnmt",
            "width": 16,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "num_capsules": [3],
        },
        "training": {
            "steps": 150,
            "batch_tokens": 256,
            "learning_rate": 0.02,
            "warmup_steps": 10,
            "device": "cpu",
            "validate_every": 150,
            "validate_sentences": 0,
            "checkpoint_every": 150,
            "log_every": 100,
        },
        "decoding": {"beam": 4, "max_length_ratio": 1.5, "max_length_extra": 8},
        "output": str(folder / "model"),
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False), encoding="utf-8")
    trained = verbs.train(verbs.recipe(folder / "recipe.yaml"), show=False)
    verbs.export(trained, precision="fp32")
    return trained / RUNTIME


@pytest.fixture(scope="session")
def folders(tmp_path_factory) -> dict[str, Path]:
    """Languages → model folder. One model under three names; all processes of a test run share it."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    shared /= "serve-models"
    with filelock.FileLock(f"{shared}.lock"):
        if not (shared / "done").exists():
            runtime = train(shared / "training")
            for pair in ("de-en", "en-de", "en-fr"):
                shutil.copytree(runtime, shared / pair / RUNTIME)
                set_languages(shared / pair, pair)
            (shared / "done").touch()
    return {pair: shared / pair for pair in ("de-en", "en-de", "en-fr")}


@pytest.fixture
def folder_for(folders, tmp_path):
    """folder_for("en-pb") → a model folder of these languages that a test may change."""

    def make(pair: str) -> Path:
        folder = shutil.copytree(folders["en-de"], tmp_path / pair)
        set_languages(folder, pair)
        return folder

    return make


@pytest.fixture(scope="session")
def models(folders):
    """The same models in this process: what the servers are compared with."""
    return load_models(list(folders.values()), threads=1)


@pytest.fixture(scope="session")
def translate(models):
    """translate(line, "de", "en") → what a plain translator says, with the line's own final punctuation."""

    def best(line: str, source: str = "de", target: str = "en") -> str:
        text = line
        for model in models.path(source, target):
            text = model.translator.translate(text)
        return text.rstrip(".?!,;") + (line[-1] if line[-1] in ".?!,;" else "")

    return best


@pytest.fixture
def in_process(folders):
    """in_process(Limits(…), pairs=["en-de"]) → a client of a server in this process; `client.state` is its state."""
    with contextlib.ExitStack() as stack:

        def start(limits: Limits = Limits(), *, pairs=("de-en",), **settings: object) -> TestClient:  # noqa: B008
            chosen = tuple(folders[pair] for pair in pairs)
            state = Server(ServeSettings(models=chosen, threads=1, limits=limits, **settings))
            client = stack.enter_context(TestClient(build_app(state), base_url="http://localhost"))
            client.state = state
            return client

        yield start


@pytest.fixture(scope="session")
def start_server(folders, tmp_path_factory):
    """start_server("--char-limit", 10) → Served, over all three folders unless `models` says otherwise."""
    running: list[Served] = []

    def start(*options: object, models: list[Path] | None = None, port: int = 0) -> Served:
        log_path = tmp_path_factory.mktemp("served") / "log"
        argv = ["serve", *(models or folders.values()), "--port", port, "--threads", 1, *options]
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "capsnmt", *map(str, argv)],
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
            )
        found: list[str] = []

        def listening() -> bool:
            assert process.poll() is None, log_path.read_text()
            found[:] = re.findall(r"listens on (http://\S+)", log_path.read_text())
            return bool(found) and "startup complete" in log_path.read_text()

        wait_for(listening)
        running.append(Served(process, found[0], log_path))
        return running[-1]

    yield start
    for served in running:
        if served.process.poll() is None:
            served.process.kill()
            served.process.wait()


@pytest.fixture(scope="session")
def served(start_server):
    """A server with the usual settings, for tests that leave it as it was."""
    return start_server()
