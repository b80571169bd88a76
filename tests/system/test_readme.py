"""The README's first command does what it says: trains the demo and translates with it; BLEU on held-out sentences."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def first_command() -> list[str]:
    """The parts of the README's first command after its installation."""
    block = re.search(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    parts = block.group(1).strip().split(" && ")
    assert parts[:2] == ["python3 -m venv .venv", ". .venv/bin/activate"]
    assert parts[2].startswith("pip install -c constraints.txt")
    return parts[3:]


@pytest.mark.system
@pytest.mark.timeout(3600)
def test_first_command_trains_the_demo_and_translates(tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    run = {"shell": True, "cwd": tmp_path, "env": environment, "check": True, "capture_output": True, "text": True}
    *training, translating = first_command()
    for command in training:
        subprocess.run(command, **run)
    german = subprocess.run(translating, **run).stdout
    assert german == "Heute sieht die alte Frau einen kleinen Hund.\n"

    evaluation = "capsnmt evaluate runs/demo/capsnmt -s corpus/test.en -r corpus/test.de --bootstrap 0 --json -"
    report = json.loads(subprocess.run(evaluation.replace("corpus", "runs/demo/corpus"), **run).stdout)
    assert report["scores"][0]["name"] == "BLEU"
    assert report["scores"][0]["value"] >= 90
