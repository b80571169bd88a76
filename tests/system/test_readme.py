"""The README's commands do what they say; BLEU of the demo on held-out sentences."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def commands() -> list[list[str]]:
    """The README's blocks of one line, as the parts that && joins."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return [block.split(" && ") for block in re.findall(r"```sh\n([^\n]*)\n```", text)]


def settings(folder: Path) -> dict[str, Any]:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return {"shell": True, "cwd": folder, "env": environment, "check": True, "capture_output": True, "text": True}


def test_first_command_translates_at_once(tmp_path: Path) -> None:
    *installing, translating = commands()[0]
    assert installing == ["python3 -m venv .venv", ". .venv/bin/activate", "pip install -c constraints.txt ."]
    assert "Tee" in subprocess.run(translating, **settings(tmp_path)).stdout


def test_second_command_runs_these_tests() -> None:
    assert commands()[1][2:] == ["pip install -c constraints.txt -e '.[dev]'", "pytest"]


@pytest.mark.system
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_third_command_trains_the_demo_and_translates(tmp_path: Path) -> None:
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    run = settings(tmp_path)
    installing, training, translating = commands()[2]
    assert installing == "pip install -c constraints.txt '.[train]'"
    subprocess.run(training, **run)
    german = subprocess.run(translating, **run).stdout
    assert german == "Heute sieht die alte Frau einen kleinen Hund.\n"

    evaluation = "capsnmt evaluate runs/demo/capsnmt -s corpus/test.en -r corpus/test.de --bootstrap 0 --json -"
    report = json.loads(subprocess.run(evaluation.replace("corpus", "runs/demo/corpus"), **run).stdout)
    assert report["scores"][0]["name"] == "BLEU"
    assert report["scores"][0]["value"] >= 90
