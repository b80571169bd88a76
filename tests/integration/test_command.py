"""The command itself: help, exit codes, and what it does without."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer

import capsnmt
from capsnmt.cli import app

COMMAND = typer.main.get_command(app)
VERBS = list(COMMAND.commands)

# Hides what only the extras bring, as if it were not installed.
WITHOUT_EXTRAS = """
import sys
from importlib.machinery import PathFinder
class Plain(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        hidden = {"torch", "pyarrow", "sacrebleu", "sacremoses", "safetensors", "tensorboard", "zstandard"}
        return None if name.split(".")[0] in hidden else super().find_spec(name, path, target)
sys.meta_path = [Plain if finder is PathFinder else finder for finder in sys.meta_path]
"""


def python(code, *arguments):
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60)


def test_every_verb_is_there():
    assert {"prepare", "train", "translate", "evaluate", "average"} <= set(VERBS)


def test_every_function_of_the_package_is_a_verb():
    functions = {name for name in capsnmt.__all__ if name[0].islower()}
    assert functions <= set(VERBS)
    assert all(callable(getattr(capsnmt, name)) for name in capsnmt.__all__)


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help(run_here, flag):
    ended = run_here(flag)
    assert ended.code == 0
    assert all(verb in ended.out.decode() for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb_mentions_every_option(run_here, verb, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")
    ended = run_here(verb, "--help")
    assert ended.code == 0
    text = ended.out.decode()
    for parameter in COMMAND.commands[verb].params:
        names = [name for name in parameter.opts if name.startswith("-")] or [parameter.name]
        assert all(name in text or name.upper() in text for name in names), f"{verb} --help does not mention {names}"
        assert parameter.name == "help" or parameter.help, f"{verb}: {names} is not explained"


def test_version(run_here):
    ended = run_here("--version")
    assert ended.code == 0
    assert ended.lines == [f"capsnmt {capsnmt.__version__}"]


@pytest.mark.parametrize("arguments", [["fly"], ["score"], ["train", "--wings"], ["translate", "x", "--beam", "many"]])
def test_wrong_usage_is_2(run_here, arguments):
    ended = run_here(*arguments)
    assert ended.code == 2
    assert ended.out == b""
    assert "Traceback" not in ended.err


def test_errors_are_1_and_have_no_traceback(run_here, tmp_path):
    for arguments in (["train", tmp_path / "no.yaml"], ["translate", tmp_path], ["average", tmp_path]):
        ended = run_here(*arguments)
        assert ended.code == 1
        assert ended.err.startswith("capsnmt: ")
        assert "Traceback" not in ended.err


def test_long_error_messages_are_not_broken_into_lines(run_here, tmp_path):
    folder = tmp_path / ("long" * 30) / "name"
    assert str(folder) in run_here("translate", folder).err


def test_square_brackets_in_errors_stay(run_here, tmp_path):
    """Rich would read them as markup."""
    assert "[red]" in run_here("translate", tmp_path / "[red]").err


def test_importing_the_package_brings_no_torch():
    ended = python("import capsnmt, sys; assert 'torch' not in sys.modules")
    assert ended.returncode == 0, ended.stderr


def test_the_command_starts_without_torch():
    code = (
        "import sys, capsnmt.cli\n"
        "try:\n    capsnmt.cli.main(sys.argv[1:])\n"
        "except SystemExit as end:\n    assert end.code == 0\n"
        "heavy = {'torch', 'pyarrow', 'sacrebleu', 'tensorboard'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    for arguments in (["--help"], ["translate", "--help"], ["--version"]):
        ended = python(code, *arguments)
        assert ended.returncode == 0, ended.stderr


def test_the_plain_install_can_help():
    """`pip install capsnmt` brings none of the extras, and its command must start."""
    ended = python(WITHOUT_EXTRAS + "from capsnmt.cli import main; main(['--help'])")
    assert ended.returncode == 0, ended.stderr[-2000:]


@pytest.mark.parametrize("arguments", [["translate", "x"], ["average", "x"], ["evaluate", "x", "-s", "a", "-r", "b"]])
def test_the_plain_install_names_the_extra_that_is_missing(arguments, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_text("x\n", encoding="utf-8")
    ended = subprocess.run(
        [
            sys.executable,
            "-c",
            WITHOUT_EXTRAS + "import sys; from capsnmt.cli import main; main(sys.argv[1:])",
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        input="",
    )
    assert ended.returncode == 1, ended.stderr[-2000:]
    assert "Traceback" not in ended.stderr
    assert "pip install" in ended.stderr


def test_translator_can_be_imported():
    from capsnmt import Translator

    assert callable(Translator.translate)


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="no attribute 'fly'"):
        _ = capsnmt.fly
