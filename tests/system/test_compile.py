"""`training.compile` changes how an update is computed, not what it computes."""

from __future__ import annotations

import shutil

import pytest
from safetensors.torch import load_file

from capsnmt import verbs
from capsnmt.config import RunConfig

pytestmark = [
    pytest.mark.system,
    pytest.mark.long,
    pytest.mark.timeout(1800),  # of a C++ compiler on a busy machine
    pytest.mark.skipif(shutil.which("g++") is None, reason="compiling for a CPU needs a C++ compiler"),
]


def config(folder, *, compiled):
    small = {"width": 16, "inner_width": 32, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
    return RunConfig.model_validate(
        {
            "languages": {"source": "xx", "target": "yy"},
            "data": {
                "root": str(folder),
                "train": {"source": "text", "target": "text"},
                "valid": {"source": "text", "target": "text"},
                "store": str(folder / "store"),
            },
            "text": {"subwords": {"type": "word", "vocabulary": 40, "protected_symbols": 0}},
            "model": {"system": "transformer", **small},
            "training": {
                "steps": 3,
                "batch_tokens": 64,
                "learning_rate": 0.01,
                # Adam divides by a gradient's own size, so rounding would turn steps of tiny gradients around.
                "adam_epsilon": 1.0,
                "warmup_steps": 1,
                "validate_sentences": 0,
                "compile": compiled,
            },
            "output": str(folder / f"compiled-{compiled}"),
        }
    )


def test_a_compiled_model_learns_the_same(tmp_path):
    lines = [" ".join(str((line * 7 + i) % 10) for i in range(1 + line % 6)) for line in range(60)]
    (tmp_path / "text").write_text("\n".join(lines) + "\n")
    plain, compiled = (
        load_file(verbs.train(config(tmp_path, compiled=compiled), show=False) / "weights.safetensors")
        for compiled in (False, True)
    )
    assert plain.keys() == compiled.keys()
    assert max((plain[name] - compiled[name]).abs().max().item() for name in plain) < 1e-4
