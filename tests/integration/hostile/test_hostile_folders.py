"""A folder may come from anywhere. Reading it runs no code, takes no memory that its files do not, and never hangs;
what is wrong with it is one clear error.
"""

from __future__ import annotations

import io
import os
import pickle
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import torch
from forging import (
    CONFIG,
    FOR_EVERY_VERB,
    HOSTILE_CONFIGS,
    HOSTILE_WEIGHTS,
    NO_FILES,
    RELEASED,
    SUBWORDS,
    WEIGHTS,
    replaced,
    set_value,
    write,
)

from capsnmt.errors import CapsNMTError
from capsnmt.folder import read_folder_config


class Bomb:
    """A pickle that leaves a trace when it is loaded."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


@pytest.mark.parametrize("case", HOSTILE_WEIGHTS)
def test_forged_weights(case, folder, refused):
    forge, words = HOSTILE_WEIGHTS[case]
    forge(folder)
    assert words in refused("translate", folder)


def pickled(bomb, path):
    path.write_bytes(pickle.dumps(bomb))


BOMBERS = {
    "pickle": (pickled, lambda path: pickle.loads(path.read_bytes())),
    "torch": (torch.save, lambda path: torch.load(io.BytesIO(path.read_bytes()), weights_only=False)),
}


@pytest.mark.parametrize("kind", BOMBERS)
@pytest.mark.parametrize("name", [WEIGHTS, SUBWORDS, CONFIG])
def test_a_pickle_is_never_loaded(kind, name, folder, refused, tmp_path):
    plant, load = BOMBERS[kind]
    bomb = Bomb(tmp_path / "it ran")
    plant(bomb, folder / name)
    refused("translate", folder)
    assert not bomb.trace.exists()
    load(folder / name)
    assert bomb.trace.exists()  # it was a real one


def other_special_ids(folder):
    with (folder / SUBWORDS).open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["eins zwei drei"] * 9), model_writer=file, vocab_size=12, minloglevel=2
        )


def pieces_that_are_no_text(folder):
    content = (folder / SUBWORDS).read_bytes()
    assert "⦅".encode() in content
    (folder / SUBWORDS).write_bytes(content.replace("⦅".encode(), b"\xff\xfe\xff"))


HOSTILE_SUBWORDS = {
    "empty": (write(SUBWORDS, b""), "not a SentencePiece model"),
    "random": (write(SUBWORDS, np.random.default_rng(1).bytes(5000)), "not a SentencePiece model"),
    "zeros": (write(SUBWORDS, bytes(5000)), "not a SentencePiece model"),
    "cut": (lambda folder: os.truncate(folder / SUBWORDS, 400), "not a SentencePiece model"),
    "no text": (pieces_that_are_no_text, "not a SentencePiece model"),
    "very long": (lambda folder: os.truncate(folder / SUBWORDS, 2**40), "not a SentencePiece model"),  # of holes
    "other special ids": (other_special_ids, "(-1, 0, 1, 2) instead of (0, 1, 2, 3)"),
    "those of another model": (
        lambda folder: shutil.copy(RELEASED / "transformer" / SUBWORDS, folder / SUBWORDS),
        "not the one that the weights were trained with",
    ),
}


@pytest.mark.parametrize("case", HOSTILE_SUBWORDS)
def test_forged_subwords(case, folder, refused):
    forge, words = HOSTILE_SUBWORDS[case]
    forge(folder)
    assert words in refused("translate", folder)


@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.parametrize("name", [CONFIG, WEIGHTS, SUBWORDS])
def test_what_is_no_file(name, kind, folder, refused):
    NO_FILES[kind](folder / name)
    text = refused("translate", folder)
    assert name in text
    assert len(text.splitlines()) == 1


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS, SUBWORDS])
def test_a_pipe_is_not_waited_for(name, folder, run_apart):
    replaced(os.mkfifo)(folder / name)
    ended = run_apart("translate", folder, stdin=b"acht\n")  # in a process of its own, which is ended if it hangs
    assert (ended.code, ended.out) == (1, b"")
    assert len(ended.err.splitlines()) == 1
    assert name in ended.err


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "", "/dev/null", "/dev/zero"])
def test_names_that_cannot_be_a_folder(name):
    with pytest.raises(CapsNMTError, match="is not a model folder"):
        read_folder_config(name)


@pytest.mark.parametrize("case", FOR_EVERY_VERB)
def test_the_other_verbs_that_translate(case, folder, refused, tmp_path):
    forge, words = FOR_EVERY_VERB[case]
    forge(folder)
    text = tmp_path / "text"
    text.write_text("acht\n", encoding="utf-8")
    assert words in refused("score", folder, "-s", text, "-t", text)
    assert words in refused("evaluate", folder, "-s", text, "-r", text)


WATCH = """
import sys

import capsnmt

touched = []


def watch(event, about):
    # Files and processes; not the code that is loaded meanwhile.
    if event not in ("marshal.loads", "exec", "compile", "import") and "elsewhere" in repr(about):
        touched.append((event, about))


sys.addaudithook(watch)
print(capsnmt.Translator(sys.argv[1]).translate("acht"))
capsnmt.score(sys.argv[1], ["acht"], ["eight"])
capsnmt.evaluate(["acht"], ["eight"], folder=sys.argv[1], num_bootstrap=0)
print(touched)
"""


def test_the_paths_in_a_config_are_never_touched(folder, tmp_path):
    """data.root and its kin are where somebody else's corpus was."""
    elsewhere = str(tmp_path / "elsewhere")
    for key in ("data.root", "data.store", "data.subwords_from", "training.start_from", "output"):
        set_value(key, f"{elsewhere}/{key}")(folder)
    for side in ("data.train.source", "data.valid.target"):
        set_value(side, f"{elsewhere}/{side}")(folder)
    set_value("data.generate", "demo")(folder)
    ended = subprocess.run(
        [sys.executable, "-c", WATCH, folder],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "eight\n[]\n"
    assert not Path(elsewhere).exists()


MEASURE = """
import resource, sys

import capsnmt

for folder in sys.argv[1:]:
    try:
        capsnmt.Translator(folder)
    except capsnmt.CapsNMTError:
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def test_a_hostile_folder_takes_no_memory(tmp_path):
    changes = [change for change, _ in (*HOSTILE_WEIGHTS.values(), *HOSTILE_CONFIGS.values())]
    sizes = [("model.width", 10**9), ("vocabulary.target_size", 10**12), ("model.encoder_layers", 10**9)]
    changes += [write(WEIGHTS, b""), *(set_value(*size) for size in sizes)]
    folders = []
    for number, change in enumerate(changes):
        folders.append(Path(shutil.copytree(RELEASED / "capsnmt", tmp_path / str(number))))
        change(folders[-1])
    ended = subprocess.run(
        [sys.executable, "-c", MEASURE, *folders],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (2**34, 2**34)),
    )
    assert ended.returncode == 0, ended.stderr
    megabytes = list(map(int, ended.stdout.split()))
    assert len(megabytes) == len(folders)
    assert megabytes[-1] - megabytes[0] < 200  # torch and the rest are there from the first one on


def test_an_error_ends_somewhere_and_writes_nothing_to_the_terminal():
    text = str(CapsNMTError("a\x1b[2J\x07\u202eb\ud800\nc" + "x" * 10**6))
    assert text.startswith("a\\x1b[2J\\x07\\u202eb\\ud800\ncxxx")
    assert len(text) < 9000
    assert text.endswith("(1000011 characters)")
