"""Makes a model folder of each system in the present format, as small as can be: `python make.py FOLDER`.

`format-1` was made by `python make.py format-1`. Folders of released formats are never made again: what they prove is
that later versions still read what an earlier one wrote. A new format gets a folder of its own beside the old ones.

FOLDER/<system> is a model folder, FOLDER/expected.json what the models said when they were made. One of them keeps its
checkpoint, and FOLDER its recipe.yaml, corpus and store, so that its run can go on.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

import yaml

from capsnmt import verbs
from capsnmt.decoding.translation import TranslateOptions
from capsnmt.translator import Translator

GERMAN = ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]
ENGLISH = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
SENTENCES = ["zwei drei", "acht", "neun 17 eins", "Sieben vier null.", "fünf Ω sechs"]
RESUMABLE = "capsnmt"

# Between them: joint and separate subwords, all three ways to tie embeddings, bytes, protected spans, both norms.
RUNS = {
    "capsnmt": (
        {"type": "bpe", "vocabulary": 64, "byte_fallback": False, "protected_symbols": 2},
        {"width": 16, "encoder_layers": 1, "decoder_layers": 1, "num_capsules": [2], "num_iterations": 2},
    ),
    "simple": (
        {"type": "unigram", "vocabulary": 310, "joint": False, "protected_symbols": 2},
        {"width": 16, "encoder_layers": 1, "decoder_layers": 1, "tie_embeddings": "target"},
    ),
    "transformer": (
        {"type": "char", "vocabulary": 64, "protected_symbols": 2},
        {
            "width": 16,
            "inner_width": 32,
            "num_heads": 2,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "norm": "pre",
            "tie_embeddings": "none",
        },
    ),
}


def main(folder: Path) -> None:
    folder.mkdir(parents=True)
    folder = folder.resolve()
    expected = {}
    with tempfile.TemporaryDirectory() as workshop:
        os.chdir(workshop)  # so that the names in the recipes, which the folders keep, are relative
        write_corpus(Path("corpus"))
        for system in RUNS:
            recipe = write_recipe(system)
            verbs.train(verbs.recipe(recipe), show=False)
            keep(system, folder)
            expected[system] = said_by(Path(system))
    text = json.dumps(expected, indent=1, ensure_ascii=False)
    (folder / "expected.json").write_text(text + "\n", encoding="utf-8")


def write_corpus(folder: Path) -> None:
    """Digits as words, sometimes with a number among them, and full stops."""
    generator = random.Random(1)
    folder.mkdir()
    for name, count in (("train", 150), ("valid", 6)):
        sides: tuple[list[str], list[str]] = ([], [])
        for _ in range(count):
            digits = [generator.randrange(10) for _ in range(generator.randint(1, 3))]
            number = str(generator.randint(10, 99)) if generator.random() < 0.3 else None
            full_stop = generator.choice(["", "."])
            for lines, words in zip(sides, (GERMAN, ENGLISH), strict=True):
                said = [words[digit] for digit in digits]
                lines.append(" ".join([said[0], number, *said[1:]] if number else said) + full_stop)
        for lines, language in zip(sides, ("de", "en"), strict=True):
            (folder / f"{name}.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def write_recipe(system: str) -> Path:
    subwords, model = RUNS[system]
    values = {
        "languages": {"source": "de", "target": "en"},
        "data": {
            "root": "corpus",
            "train": {"source": "train.de", "target": "train.en"},
            "valid": {"source": "valid.de", "target": "valid.en"},
            "store": "store" if system == RESUMABLE else f"store-{system}",
        },
        "text": {"protect": ["number"], "subwords": subwords},
        "model": {"system": system, "dropout": 0.0, **model},
        "training": {
            "seed": 2,
            "steps": 1200,
            "batch_tokens": 256,
            "learning_rate": 0.01,
            "schedule": "linear",
            "warmup_steps": 50,
            "device": "cpu",
            "validate_every": 1200,
            "validate_sentences": 6,
            "checkpoint_every": 1200,
            "keep_last": 1,
            "log_every": 600,
        },
        "decoding": {"beam": 3, "max_length_ratio": 2.0, "max_length_extra": 8, "fit_shape": True},
        "output": system,
    }
    path = Path(f"{system}.yaml")
    path.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    return path


def keep(system: str, folder: Path) -> None:
    """Copies what later versions must read. TensorBoard's files carry the machine's name; the lock is nobody's."""
    left_out = ["tensorboard", ".lock", "best-*"] + ([] if system == RESUMABLE else ["checkpoints"])
    shutil.copytree(system, folder / system, ignore=shutil.ignore_patterns(*left_out))
    if system == RESUMABLE:
        for needed in ("corpus", "store"):
            shutil.copytree(needed, folder / needed)
        shutil.copy(f"{system}.yaml", folder / "recipe.yaml")


def said_by(folder: Path) -> list[dict[str, object]]:
    """Translations by beam search with their scores, greedy ones, and the log-probabilities of the former."""
    translator = Translator(folder, device="cpu")
    found = translator.translate_batch(SENTENCES)
    greedy = translator.translate_batch(SENTENCES, TranslateOptions(beam=1))
    log_probs = verbs.score(folder, SENTENCES, [one.text for one in found])
    return [
        {"source": one.source, "translation": one.text, "score": one.score, "greedy": alone.text, "log_prob": log_prob}
        for one, alone, log_prob in zip(found, greedy, log_probs, strict=True)
    ]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
