"""A tiny exported model, made once, and copies of it that a test may damage."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from capsnmt.config import FolderConfig, SubwordsConfig, TextConfig, parse
from capsnmt.runtime.manifest import MANIFEST, RUNTIME
from capsnmt.text.pipeline import JOINT_FILE, TextPipeline
from capsnmt.text.subwords import train_subwords

SUBWORDS = SubwordsConfig(type="char", vocabulary=32, protected_symbols=0)
MODEL = {"system": "capsnmt", "width": 16, "encoder_layers": 1, "decoder_layers": 2, "num_capsules": [3]}


@pytest.fixture(scope="session")
def exported_once(tmp_path_factory):
    """precision → a folder with nothing but `runtime/`."""
    import torch

    from capsnmt.models import build_model
    from capsnmt.runtime.export import write_runtime

    store = tmp_path_factory.mktemp("store")
    train_subwords(["one two three", "eins zwei drei"] * 5, SUBWORDS, store / JOINT_FILE)
    text = TextPipeline.load(store, TextConfig(subwords=SUBWORDS))
    values = {
        "languages": {"source": "en", "target": "de"},
        "data": {"train": {"tsv": "a.tsv"}, "valid": {"tsv": "b.tsv"}, "store": "store"},
        "text": {"subwords": SUBWORDS.model_dump()},
        "model": MODEL,
        "training": {"steps": 1, "learning_rate": 0.1},
        "output": "out",
        "format_version": 1,
        "vocabulary": {
            "source_size": len(text.source),
            "target_size": len(text.target),
            "fingerprint": text.fingerprint,
        },
    }
    config = parse(FolderConfig, values, "test")
    torch.manual_seed(3)
    model = build_model(MODEL, source_size=len(text.source), target_size=len(text.target)).eval()
    folders = {}
    for precision in ("fp32", "int8"):
        folders[precision] = tmp_path_factory.mktemp(precision) / "model"
        write_runtime(model, folders[precision], config, text, precision=precision, made_from="0" * 64)
    return folders


@pytest.fixture
def exported(exported_once, tmp_path):
    """A copy of the fp32 folder, to be changed at will."""
    return shutil.copytree(exported_once["fp32"], tmp_path / "model")


@pytest.fixture
def edit_manifest():
    """edit_manifest(folder, change): lets change(values) alter the manifest's JSON."""

    def edit(folder: Path, change) -> None:
        path = folder / RUNTIME / MANIFEST
        values = json.loads(path.read_text())
        change(values)
        path.write_text(json.dumps(values))

    return edit
