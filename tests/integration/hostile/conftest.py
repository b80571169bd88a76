"""Folders to forge, and what the command says to them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from forging import RELEASED


@pytest.fixture
def folder(tmp_path):
    """A model folder of our own to forge."""
    return Path(shutil.copytree(RELEASED / "capsnmt", tmp_path / "model"))


@pytest.fixture
def refused(run_here):
    """refused("translate", folder, …) → what the command says when it refuses a folder: clearly, on stderr alone."""

    def run(*argv, stdin=b"acht\n"):
        ended = run_here(*argv, stdin=stdin)
        assert ended.code == 1, ended
        assert ended.out == b""
        assert ended.err.startswith("capsnmt: ")
        assert len(ended.err) < 10_000
        assert "\x1b" not in ended.err
        return ended.err

    return run


@pytest.fixture
def run_folder(tmp_path, monkeypatch):
    """The released run with its store and its recipe, to go on with, in the folder where we are."""
    shutil.copytree(RELEASED, tmp_path / "run")
    monkeypatch.chdir(tmp_path / "run")
    return tmp_path / "run"
