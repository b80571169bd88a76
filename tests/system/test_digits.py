"""Real learning: every system must learn to copy and to reverse digits, from a random seed.

The seed is random on purpose, so that thresholds cannot be tuned to one curve; it is printed when a test fails.
Empty lines stand in the training data and in the test set.
"""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest

from capsnmt import verbs
from capsnmt.config import RunConfig, parse
from capsnmt.evaluation.metrics import bleu
from capsnmt.models import MODELS

TINY: dict[str, dict[str, Any]] = {
    "capsnmt": {"width": 64, "encoder_layers": 1, "decoder_layers": 3, "dropout": 0.0},
    "simple": {"width": 64, "encoder_layers": 1, "decoder_layers": 3, "dropout": 0.0},
    "pooling": {"width": 64, "encoder_layers": 1, "decoder_layers": 3, "dropout": 0.0},
    "transformer": {
        "width": 64,
        "inner_width": 128,
        "num_heads": 4,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "norm": "pre",
        "dropout": 0.0,
    },
    "encdec": {"width": 64, "num_layers": 2, "dropout": 0.0},
    "deep_encdec": {"width": 64, "embedding_width": 64, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0},
    "rnnsearch": {"width": 64, "embedding_width": 64, "attention_width": 64, "maxout_width": 64},
    "gnmt": {"width": 64, "encoder_layers": 3, "decoder_layers": 3, "dropout": 0.0},
    # The largest dilation is 8, the longest way of a digit that is reversed: with 4, and as many blocks, the first
    # position is wrong in about half of the sentences.
    "bytenet": {"width": 32, "dilations": [1, 2, 4, 8], "encoder_sets": 2, "decoder_sets": 1},
    "convs2s": {
        "embedding_width": 64,
        "encoder_layers": [[3, 64, 3]],
        "decoder_layers": [[3, 64, 3]],
        "max_positions": 16,
        "dropout": 0.0,
    },
    "rnmt": {"width": 64, "encoder_layers": 3, "decoder_layers": 3, "dropout": 0.0},
    "hybrid": {"width": 64, "encoder_layers": 1, "decoder_layers": 3, "dropout": 0.0},
    "hybrid-capsules": {
        "width": 64,
        "encoder_layers": 1,
        "decoder_layers": 3,
        "attend": "capsules",
        "dropout": 0.0,
    },
}
# Over the source's states, that is: what attends over capsules has seen them in M vectors only.
WITHOUT_ATTENTION = {"capsnmt", "simple", "pooling", "encdec", "deep_encdec", "bytenet", "hybrid-capsules"}
TASKS = {"copy": lambda digits: digits, "reverse": lambda digits: digits[::-1]}
FEW = [("capsnmt", "reverse"), ("transformer", "copy")]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Trainings take minutes: a plain `pytest` learns with one system of each kind, `pytest -m system` with all."""
    few = not metafunc.config.getoption("markexpr")
    everyone = itertools.product(dict.fromkeys([*MODELS, *TINY]), TASKS)
    metafunc.parametrize(("learner", "task"), FEW if few else list(everyone))


def write_corpus(folder: Path, task: str, rng: random.Random) -> None:
    for part, lines, empty_lines in (("train", 10_000, 100), ("valid", 200, 0), ("test", 200, 10)):
        sequences = [[str(rng.randrange(10)) for _ in range(rng.randint(1, 9))] for _ in range(lines)]
        sequences += [[] for _ in range(empty_lines)]
        rng.shuffle(sequences)
        for language, change in (("xx", list), ("yy", TASKS[task])):
            text = "".join(" ".join(change(digits)) + "\n" for digits in sequences)
            (folder / f"{part}.{language}").write_text(text, encoding="utf-8")


def recipe(folder: Path, learner: str, seed: int) -> RunConfig:
    values = {
        "languages": {"source": "xx", "target": "yy"},
        "data": {
            "root": str(folder),
            "train": {"source": "train.xx", "target": "train.yy"},
            "valid": {"source": "valid.xx", "target": "valid.yy"},
            "store": str(folder / "store"),
        },
        "text": {"subwords": {"type": "word", "vocabulary": 32, "protected_symbols": 0}},
        "model": {"system": learner.split("-")[0], **TINY[learner]},
        "training": {
            "seed": seed,
            "steps": 4000,
            "batch_tokens": 512,
            "learning_rate": 3e-3,
            "schedule": "linear",
            "warmup_steps": 200,
            "label_smoothing": 0.0,
            "validate_every": 1000,
            "validate_sentences": 0,
            "checkpoint_every": 4000,
        },
        "decoding": {"beam": 4},
        "output": str(folder / "model"),
    }
    return parse(RunConfig, values, "recipe")


@pytest.mark.system
@pytest.mark.timeout(3600)
def test_system_learns_digits(learner: str, task: str, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1_000_000)
    write_corpus(tmp_path, task, random.Random(seed))
    model = verbs.train(recipe(tmp_path, learner, seed), show=False)

    records = [json.loads(line) for line in (model / "metrics.jsonl").read_text().split("\n") if line]
    perplexity = [record["perplexity"] for record in records if record["kind"] == "valid"][-1]
    sources = (tmp_path / "test.xx").read_text().split("\n")[:-1]
    references = (tmp_path / "test.yy").read_text().split("\n")[:-1]
    outputs = [translation.text for translation in verbs.translate(model, sources)]
    score = bleu(outputs, references, num_bootstrap=0).value
    print(f"{learner} {task} seed {seed}: perplexity {perplexity:.4f}, BLEU {score:.2f}")

    assert [output == "" for output in outputs] == [source == "" for source in sources]
    if learner in WITHOUT_ATTENTION:
        assert perplexity <= 1.15, seed
        assert score >= 85, seed
    else:
        assert perplexity <= 1.05, seed
        assert score >= 95, seed
