"""Runs are not resumed from forged checkpoints or stores, and nothing is written outside of them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil

import numpy as np
import pyarrow as pa
import pytest
import torch
from forging import CONFIG, FOR_EVERY_VERB, HOSTILE_WEIGHTS, NO_FILES, SUBWORDS, WEIGHTS, replaced

from capsnmt.data.store import Row, Store, write_store
from capsnmt.errors import CapsNMTError
from capsnmt.models.weights import save_weights


def checkpoint_of(run_folder):
    (found,) = (run_folder / "capsnmt" / "checkpoints").iterdir()
    return found


def seal(checkpoint):
    """Gives a forged checkpoint the checksums of its files, as an attacker would."""
    names = [WEIGHTS, "optimiser.safetensors", "state.json"]
    sums = {name: hashlib.sha256((checkpoint / name).read_bytes()).hexdigest() for name in names}
    (checkpoint / "checksums.json").write_text(json.dumps(sums), encoding="utf-8")


AGAIN = ("train", "recipe.yaml", "--set", "training.steps=1201", "--quiet")


@pytest.mark.parametrize("case", ["config", "subwords"])
def test_a_hostile_folder_is_not_trained_in(case, run_folder, refused):
    forge, words = FOR_EVERY_VERB[case]
    forge(run_folder / ("store" if case == "subwords" else "capsnmt"))
    assert words in refused(*AGAIN)


@pytest.mark.parametrize("case", ["text", "a name twice", "NaN", "whole numbers", "no tensors", "another shape"])
def test_a_run_is_not_resumed_from_forged_weights(case, run_folder, refused):
    forge, words = HOSTILE_WEIGHTS[case]
    checkpoint = checkpoint_of(run_folder)
    forge(checkpoint)
    assert "every checkpoint" in refused(*AGAIN)  # wrong checksums
    seal(checkpoint)
    assert words in refused(*AGAIN)


@pytest.mark.parametrize(
    "checksums",
    [
        b"",
        b"[]",
        b"{}",
        b"null",
        b'{"weights.safetensors": 1}',
        b"\xff",
        b'{"weights.safetensors": {"../../../x": ""}}',
    ],
)
def test_checksums_that_are_none(checksums, run_folder, refused):
    (checkpoint_of(run_folder) / "checksums.json").write_bytes(checksums)
    assert "every checkpoint" in refused(*AGAIN)


@pytest.mark.parametrize("case", ["config", "weights"])
def test_fine_tuning_from_a_hostile_folder(case, run_folder, refused):
    forge, words = FOR_EVERY_VERB[case]
    forge(run_folder / "capsnmt")
    assert words in refused("train", "recipe.yaml", "--set", "training.start_from=capsnmt", "--quiet", "-o", "new")


@pytest.mark.parametrize("case", ["text", "a name twice", "NaN", "offsets outside", "header of 2^63 bytes"])
def test_forged_checkpoints_are_not_averaged(case, run_folder, refused):
    forge, words = HOSTILE_WEIGHTS[case]
    before = (run_folder / "capsnmt" / WEIGHTS).read_bytes()
    forge(checkpoint_of(run_folder))
    assert words in refused("average", "capsnmt", "--last", 1)
    assert (run_folder / "capsnmt" / WEIGHTS).read_bytes() == before


@pytest.mark.parametrize("name", [f".writing-{WEIGHTS}", WEIGHTS])
def test_averaging_writes_through_no_link(name, run_folder, run_here):
    precious = run_folder / "precious"
    precious.write_text("keep me", encoding="utf-8")
    (run_folder / "capsnmt" / name).unlink(missing_ok=True)
    (run_folder / "capsnmt" / name).symlink_to(precious)
    ended = run_here("average", "capsnmt", "--last", 1)
    assert ended.code == 0, ended.err
    assert precious.read_text(encoding="utf-8") == "keep me"
    assert not (run_folder / "capsnmt" / WEIGHTS).is_symlink()


@pytest.mark.parametrize("name", [f".{CONFIG}.tmp", CONFIG, SUBWORDS])
def test_training_writes_through_no_link(name, run_folder, run_here):
    precious = run_folder / "precious"
    shutil.copy(run_folder / "capsnmt" / CONFIG, precious)  # so that it may be read as one
    before = precious.read_bytes()
    (run_folder / "capsnmt" / name).unlink(missing_ok=True)
    (run_folder / "capsnmt" / name).symlink_to(precious)
    ended = run_here(*AGAIN)
    assert ended.code == 0, ended.err
    assert precious.read_bytes() == before


# Each column has offsets of its own, so that they can be found in the file.
ROWS = [Row("s" * 11, "t" * 12, [3] * 21, [3] * 31), Row("s" * 12, "t" * 13, [3] * 22, [3] * 32)]
SOURCE, TARGET, SOURCE_IDS, TARGET_IDS = [0, 11, 23], [0, 12, 25], [0, 21, 43], [0, 31, 63]


def forged_store(path, old, new):
    """A store in which some bytes, or some offsets, are others."""
    write_store(path, ROWS)
    old, new = (part if isinstance(part, bytes) else np.array(part, "<i4").tobytes() for part in (old, new))
    content = path.read_bytes()
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))
    return path


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (SOURCE, [0, 11, 10**9]),
        (TARGET, [0, 10**9, 25]),
        (SOURCE, [0, 23, 11]),
        (TARGET, [-(10**9), 12, 25]),
        (SOURCE_IDS, [0, 21, 10**9]),
        (TARGET_IDS, [0, 10**9, 63]),
        (SOURCE_IDS, [0, 43, 21]),
        (TARGET_IDS, [-(10**9), 31, 63]),
    ],
)
def test_offsets_that_point_outside(old, new, tmp_path):
    path = forged_store(tmp_path / "bad.arrow", old, new)
    with pytest.raises(CapsNMTError, match=r"bad\.arrow.*prepare the corpus again"):
        Store(path)


def test_text_of_a_store_that_is_no_text(tmp_path):
    store = Store(forged_store(tmp_path / "bad.arrow", b"s" * 12 + b"\0", b"s" * 11 + b"\xff\0"))
    assert store.source_text(0) == "s" * 11
    with pytest.raises(CapsNMTError, match="row 1: the text is damaged"):
        store.source_text(1)


def rewritten(path, edit):
    """The store with other record batches."""
    write_store(path, ROWS)
    with pa.OSFile(str(path)) as file:
        batch = pa.ipc.open_file(file).get_batch(0)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        for new in edit(batch):
            writer.write_batch(new)
    return path


@pytest.mark.parametrize("column", [0, 3])
def test_missing_values(column, tmp_path):
    def edit(batch):
        columns = list(batch.columns)
        columns[column] = pa.array([columns[column][0].as_py(), None], columns[column].type)
        return [pa.record_batch(columns, schema=batch.schema)]

    with pytest.raises(CapsNMTError, match="missing values"):
        Store(rewritten(tmp_path / "bad.arrow", edit))


def test_record_batches_of_other_sizes(tmp_path):
    """Rows are found by their number, so a short batch before the last would shift all after it."""
    with pytest.raises(CapsNMTError, match="2 rows in record batch 0"):
        Store(rewritten(tmp_path / "bad.arrow", lambda batch: [batch, batch]))
    assert len(Store(rewritten(tmp_path / "good.arrow", lambda batch: [batch]))) == 2


@pytest.mark.parametrize("kind", NO_FILES)
def test_a_store_that_is_no_file(kind, run_folder, refused):
    NO_FILES[kind](run_folder / "store" / "train.arrow")
    assert "train.arrow" in refused(*AGAIN)


def test_a_store_that_is_a_pipe(run_folder, run_apart):
    replaced(os.mkfifo)(run_folder / "store" / "train.arrow")
    ended = run_apart(*AGAIN)
    assert (ended.code, ended.out) == (1, b"")
    assert "train.arrow" in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("content", [b"", b"ARROW1", bytes(1000)])
def test_stores_that_are_no_arrow_files(content, run_folder, refused):
    (run_folder / "store" / "train.arrow").write_bytes(content)
    assert "prepare the corpus again" in refused(*AGAIN)


def test_weights_are_readable_by_colleagues(tmp_path):
    save_weights({"x": torch.zeros(2)}, tmp_path / "w.safetensors")
    assert (tmp_path / "w.safetensors").stat().st_mode & 0o777 == 0o644
