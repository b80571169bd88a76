import json
import logging
import multiprocessing
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capsnmt.config import LanguagesConfig, RunConfig
from capsnmt.data import stages
from capsnmt.data.corpus import read_pairs
from capsnmt.data.ledger import ShardRecord
from capsnmt.data.prepare import load_store, prepare
from capsnmt.data.store import text_batch, write_texts
from capsnmt.errors import CapsNMTError
from capsnmt.text.pipeline import TextPipeline
from capsnmt.text.subwords import EOS

TRAIN = [(f"the cat number {i} sleeps", f"die Katze Nummer {i} schläft") for i in range(60)]
VALID = [("the „cat“ sleeps", "die Katze schläft"), ("", "leer"), ("cat " * 60, "Katze " * 60)]


def write_text(folder: Path, name: str, pairs: list[tuple[str, str]]) -> None:
    folder.mkdir(exist_ok=True)
    for side, suffix in enumerate(("en", "de")):
        (folder / f"{name}.{suffix}").write_text("".join(pair[side] + "\n" for pair in pairs), encoding="utf-8")


def recipe(
    folder: Path, *, subwords: dict[str, Any] | None = None, protect: Sequence[str] = (), **data: Any
) -> RunConfig:
    return RunConfig.model_validate(
        {
            "languages": {"source": "en", "target": "de"},
            "data": {
                "root": str(folder / "text"),
                "train": {"source": "train.en", "target": "train.de"},
                "valid": {"source": "valid.en", "target": "valid.de"},
                "store": str(folder / "store"),
                "max_tokens": 40,
                **data,
            },
            "text": {"subwords": {"vocabulary": 340, **(subwords or {})}, "protect": list(protect)},
            "model": {"system": "any"},
            "training": {"steps": 1, "learning_rate": 0.1},
            "output": str(folder / "model"),
        }
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    unusable = [("", "leer"), ("blank", " \u00a0 "), ("long " * 50, "kurz"), ("short", "lang " * 50)]
    write_text(tmp_path / "text", "train", [*TRAIN, *unusable])
    write_text(tmp_path / "text", "valid", VALID)
    return tmp_path


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("kind", ["bpe", "unigram", "char", "word"])
def test_end_to_end(folder: Path, kind: str, joint: bool) -> None:
    config = recipe(folder, subwords={"type": kind, "joint": joint}, max_tokens=45)
    corpus = load_store(prepare(config))
    pipeline = TextPipeline.load(corpus.folder, config.text)
    assert corpus.info["train"] == {"read": 64, "kept": 60, "empty": 2, "too_long": 2}
    assert (len(corpus.train), len(corpus.valid)) == (60, 3)
    for row, (source, target) in enumerate(TRAIN):
        assert corpus.train.source_text(row) == source
        assert corpus.train.source_ids(row).tolist() == pipeline.source_ids(source)
        assert corpus.train.target_ids(row).tolist() == pipeline.target_ids(target)
    assert corpus.valid.source_text(0) == 'the "cat" sleeps'
    assert corpus.valid.source_ids(1).tolist() == [EOS]
    assert len(corpus.valid.source_ids(2)) > 45
    assert corpus.info["vocabulary"] == {
        "source_size": pipeline.source_size,
        "target_size": pipeline.target_size,
        "fingerprint": pipeline.fingerprint,
    }
    models = {"subwords.model"} if joint else {"subwords.source.model", "subwords.target.model"}
    assert {file.name for file in corpus.folder.iterdir()} == {
        "train-00000.arrow",
        "valid.arrow",
        "store.json",
        *models,
    }
    assert {path.name for path in folder.iterdir()} == {"text", "store"}  # no temporary folder is left


def test_any_number_of_workers_makes_the_same_store(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "_BLOCK_PAIRS", 7)
    planted = [
        TRAIN[5],
        ("the cat", "zu viele Wörter " * 4),
        VALID[0],
        ("Sieben Katzen schlafen im Haus", "die Katze"),
    ]
    write_text(
        folder / "text",
        "train",
        [*TRAIN[:50], *planted, TRAIN[3], *TRAIN, ("", "leer"), ("long " * 50, "x"), ("x77" * 15, "x")],
    )
    filters = {"max_words": 40, "max_ratio": 5, "deduplicate": True, "drop_overlap": True, "wrong_language": True}
    found = []
    for workers in (1, 3):
        config = recipe(folder, store=str(folder / str(workers)), filters=filters, protect=["number"])
        files = sorted(prepare(config, progress=False, workers=workers).iterdir())
        found.append({file.name: file.read_bytes() for file in files})
    assert found[0] == found[1]
    counts = json.loads(found[0]["store.json"])["train"]
    left_out = {"empty": 1, "too_long": 1, "over_long": 1, "length_ratio": 1, "overlap": 1, "wrong_language": 1}
    assert counts == {"read": 118, "kept": 60, "duplicate": 52, **left_out}


def test_errors_of_workers_are_those_of_one_process(folder: Path) -> None:
    config = recipe(folder, filters={"wrong_language": True})
    unknown = config.model_copy(update={"languages": LanguagesConfig(source="en", target="xq")})
    for workers in (1, 2):
        with pytest.raises(CapsNMTError, match="'xq'"):
            prepare(unknown, progress=False, workers=workers)
    (folder / "text" / "train.en").write_bytes(b"the cat\n" * 10_000 + b"\xff\n")
    for workers in (1, 2):
        with pytest.raises(CapsNMTError, match=r"train\.en, line 10001: not valid UTF-8"):
            prepare(recipe(folder), progress=False, workers=workers)
    assert {path.name for path in folder.iterdir()} == {"text"}


def test_speed_is_told_by_stage(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        prepare(recipe(folder), progress=False)
    told = re.findall(r"^(.*): (\d+) pairs in \d+\.\d s, \d+ pairs/s$", "\n".join(caplog.messages), re.MULTILINE)
    stages = {"reading": "64", "training subwords": "62", "encoding valid": "3", "encoding train": "62", "all": "64"}
    assert dict(told) == stages


def test_subwords_are_trained_on_a_sample_from_all_over_the_text(tmp_path: Path) -> None:
    pairs = [(f"source {number}", f"target {number}") for number in range(30_000)]
    write_texts(tmp_path / "text.arrow", (text_batch(pairs[start : start + 1000]) for start in range(0, 30_000, 1000)))
    sample = list(stages.sampled_lines([tmp_path / "text.arrow"], (0, 1), 0.1))
    assert sample == list(stages.sampled_lines([tmp_path / "text.arrow"], (0, 1), 0.1))
    sources = [int(line.split()[1]) for line in sample if line.startswith("source")]
    assert sources == [int(line.split()[1]) for line in sample if line.startswith("target")]
    assert len(set(sources)) == len(sources)
    tenths = np.bincount(np.array(sources) // 3000, minlength=10)
    assert (abs(tenths - 300) < 100).all()  # six standard deviations
    whole = list(stages.sampled_lines([tmp_path / "text.arrow"], (1,), 1.0))
    assert whole == [target for _, target in pairs]


def test_a_block_of_huge_lines_is_no_huge_block() -> None:
    pairs = [("x" * 1_000_000, "y")] * 20 + [("x", "y")] * 5000
    blocks = list(stages.blocks_of(pairs))
    assert [pair for block in blocks for pair in block] == pairs
    assert max(sum(len(side) for pair in block for side in pair) for block in blocks) < 6_000_000
    assert len(blocks) == 6


def test_each_side_has_a_vocabulary_of_its_own_size(folder: Path) -> None:
    config = recipe(folder, subwords={"joint": False, "vocabulary": [330, 310]})
    corpus = load_store(prepare(config))
    assert (corpus.info["vocabulary"]["source_size"], corpus.info["vocabulary"]["target_size"]) == (330, 310)
    assert prepare(config) == corpus.folder  # recognised as the same settings


def test_vocabulary_comes_from_train_alone(folder: Path) -> None:
    config = recipe(folder, subwords={"type": "char"})
    write_text(folder / "text", "valid", [("Ω", "ß")])
    corpus = load_store(prepare(config))
    assert 1 in corpus.valid.source_ids(0).tolist()  # unknown


def test_the_same_settings_use_the_store_again(folder: Path) -> None:
    prepare(recipe(folder))
    before = (folder / "store" / "store.json").stat().st_mtime_ns
    moved = folder / "moved"
    shutil.move(folder / "text", moved)
    elsewhere = recipe(folder, root=str(moved), test={"tsv": "test.tsv"}, subwords={"dropout": 0.1})
    assert prepare(elsewhere) == folder / "store"
    shutil.rmtree(moved)  # the text is not needed any more
    assert prepare(elsewhere) == folder / "store"
    assert (folder / "store" / "store.json").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("subwords", "data", "key"),
    [
        ({"vocabulary": 350}, {}, r"text\.subwords\.vocabulary: the store has 340, the recipe 350"),
        ({"joint": False}, {}, r"text\.subwords\.joint"),
        ({}, {"max_tokens": 41}, r"data\.max_tokens: the store has 40, the recipe 41"),
        ({}, {"train": {"source": "valid.en", "target": "valid.de"}}, r"data\.train\.source"),
    ],
)
def test_changed_settings_are_named_with_the_fix(
    folder: Path, subwords: dict[str, Any], data: dict[str, Any], key: str
) -> None:
    prepare(recipe(folder))
    with pytest.raises(CapsNMTError, match=key) as error:
        prepare(recipe(folder, subwords=subwords, **data))
    assert "`data.store`" in str(error.value)
    assert str(error.value).count("the store has") == (2 if "train" in data else 1)


def test_an_edited_text_is_noticed(folder: Path) -> None:
    prepare(recipe(folder))
    write_text(folder / "text", "train", TRAIN[:-1])
    with pytest.raises(CapsNMTError, match=r"train\.en: had \d+ bytes, now has \d+"):
        prepare(recipe(folder))


def test_an_edited_text_of_the_same_size_is_noticed(folder: Path) -> None:
    store = prepare(recipe(folder))
    text = folder / "text" / "train.de"
    text.write_bytes(text.read_bytes().replace(b"Katze", b"Tatze", 1))
    with pytest.raises(CapsNMTError, match=r"train\.de: was edited since"):
        prepare(recipe(folder))
    info = json.loads((store / "store.json").read_text())
    del info["file_ends"]
    (store / "store.json").write_text(json.dumps(info))
    assert prepare(recipe(folder)) == store  # one from before knows sizes only


def test_folders_that_are_no_store(folder: Path) -> None:
    store = folder / "store"
    with pytest.raises(CapsNMTError, match="no complete store"):
        load_store(store)
    store.mkdir()
    (store / "precious.txt").write_text("not ours")
    with pytest.raises(CapsNMTError, match="no complete store"):
        prepare(recipe(folder))
    assert (store / "precious.txt").exists()
    (store / "precious.txt").unlink()
    prepare(recipe(folder))  # an empty folder may be used
    info = json.loads((store / "store.json").read_text())
    (store / "store.json").write_text(json.dumps(info | {"format_version": 99}))
    with pytest.raises(CapsNMTError, match="format 99"):
        load_store(store)


def test_a_failure_leaves_nothing_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "text" / "valid.de").write_bytes(b"one line\n")
    with monkeypatch.context() as patched:
        patched.setattr("capsnmt.data.prepare.read_train", _interrupt)  # it is told before
        with pytest.raises(CapsNMTError, match=r"valid\.en has 3 lines"):
            prepare(recipe(folder))
    assert {path.name for path in folder.iterdir()} == {"text"}
    write_text(folder / "text", "valid", VALID)
    with pytest.raises(CapsNMTError, match="no training pair is left of 64"):
        prepare(recipe(folder, max_tokens=2))


def _prepare_in_process(config: RunConfig, ready: Any, results: Any) -> None:
    ready.wait()
    results.put(str(prepare(config, progress=False)))


def test_two_processes_share_one_store(folder: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready, results = context.Barrier(2), context.Queue()
    config = recipe(folder)
    workers = [context.Process(target=_prepare_in_process, args=(config, ready, results)) for _ in range(2)]
    for worker in workers:
        worker.start()
    assert {results.get(timeout=60) for _ in workers} == {str(folder / "store")}
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert len(load_store(folder / "store").train) == 60
    assert {path.name for path in folder.iterdir()} == {"text", "store"}


def test_demo_is_generated_when_missing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        corpus = load_store(prepare(recipe(tmp_path, generate="demo", subwords={"vocabulary": 500}, max_tokens=256)))
    assert (len(corpus.train), len(corpus.valid)) == (20_000, 500)
    assert "'kept': 20000" in caplog.text


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def rows_of(store: Path) -> list[tuple[str, str]]:
    train = load_store(store).train
    return [(train.source_text(row), train.target_text(row)) for row in range(len(train))]


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """What happens to millions of pairs happens to sixty."""
    monkeypatch.setattr(stages, "_BLOCK_PAIRS", 5)
    monkeypatch.setattr(stages, "SHARD_ROWS", 12)


@pytest.mark.parametrize("small_rows", [20, 1000])
@pytest.mark.usefixtures("small_shards")
def test_an_interrupted_prepare_goes_on_to_the_same_store(
    folder: Path, monkeypatch: pytest.MonkeyPatch, small_rows: int
) -> None:
    monkeypatch.setattr(stages, "SMALL_ROWS", small_rows)
    write_text(folder / "text", "train", [*TRAIN[:20], TRAIN[3], *TRAIN, ("", "leer"), ("long " * 50, "kurz")])
    settings = {"filters": {"deduplicate": True}}
    whole = contents(prepare(recipe(folder, store=str(folder / "whole"), **settings), progress=False))
    assert len(json.loads(whole["store.json"])["shards"]) > 3
    config = recipe(folder, **settings)
    record = ShardRecord.of
    written = 0
    for limit in range(1, 100):

        def interrupted(path: Path, *details: Any, limit: int = limit) -> ShardRecord:
            nonlocal written
            written += 1
            if written == limit:
                raise KeyboardInterrupt  # after the file was written, before it was noted
            return record(path, *details)

        monkeypatch.setattr(ShardRecord, "of", interrupted)
        written, before = 0, written
        try:
            prepare(config, progress=False)
            break
        except KeyboardInterrupt:
            assert len(list(folder.glob(".store.*"))) == 1
    assert limit > 3
    assert before < 8  # every try has one file more than the last, and begins with what is there
    assert contents(folder / "store") == whole
    assert not list(folder.glob(".store.*"))


@pytest.mark.usefixtures("small_shards")
def test_a_shard_that_was_damaged_meanwhile_is_made_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = contents(prepare(recipe(folder, store=str(folder / "whole")), progress=False))
    with monkeypatch.context() as patched:
        patched.setattr("capsnmt.data.prepare.encode_train", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            prepare(recipe(folder), progress=False)
    (unfinished,) = folder.glob(".store.*")
    damaged = unfinished / "text-00002.arrow"
    content = damaged.read_bytes()
    damaged.write_bytes(content.replace(b"Katze", b"Tatze", 1))
    (unfinished / "text-00003.arrow").unlink()
    prepare(recipe(folder), progress=False)
    assert contents(folder / "store") == whole


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.usefixtures("small_shards")
def test_an_unfinished_store_of_other_settings_is_not_gone_on_with(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("capsnmt.data.prepare.encode_train", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            prepare(recipe(folder), progress=False)
    write_text(folder / "text", "train", TRAIN[:50])
    assert rows_of(prepare(recipe(folder), progress=False)) == TRAIN[:50]
    assert {path.name for path in folder.iterdir()} == {"text", "store"}


@pytest.mark.usefixtures("small_shards")
def test_small_corpora_keep_their_order_and_large_ones_are_shuffled(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rows_of(prepare(recipe(folder), progress=False)) == TRAIN
    monkeypatch.setattr(stages, "SMALL_ROWS", 50)
    corpus = load_store(prepare(recipe(folder, store=str(folder / "large")), progress=False))
    found = rows_of(corpus.folder)
    assert sorted(found) == sorted(TRAIN)
    places = [TRAIN.index(pair) for pair in found]
    start = 0
    assert len(corpus.train.shard_rows) == 6
    for rows in corpus.train.shard_rows:
        part = places[start : start + rows]
        assert min(part) < 20  # from all over the text
        assert max(part) >= 40
        assert part != sorted(part)
        start += rows
    again = prepare(recipe(folder, store=str(folder / "again")), progress=False, workers=2)  # in fresh processes
    assert rows_of(again) == found


@pytest.mark.usefixtures("small_shards")
def test_a_large_corpus_may_end_with_a_full_file_of_text(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "SHARD_ROWS", 20)
    monkeypatch.setattr(stages, "SMALL_ROWS", 50)
    write_text(folder / "text", "train", TRAIN)
    store = prepare(recipe(folder), progress=False)
    assert sorted(rows_of(store)) == sorted(TRAIN)
    assert len(load_store(store).train.shard_rows) == 3


@pytest.mark.usefixtures("small_shards")
def test_checksums_tell_of_a_damaged_shard(folder: Path) -> None:
    store = prepare(recipe(folder), progress=False)
    assert prepare(recipe(folder), progress=False, verify=True) == store
    shard = store / "train-00001.arrow"
    content = shard.read_bytes()
    shard.write_bytes(content.replace(b"Katze", b"Tatze", 1))
    prepare(recipe(folder), progress=False)
    with pytest.raises(CapsNMTError, match=r"train-00001\.arrow does not match its checksum"):
        prepare(recipe(folder), progress=False, verify=True)
    shard.write_bytes(content[:-8])
    with pytest.raises(CapsNMTError, match=r"train-00001\.arrow is missing or incomplete"):
        load_store(store)


@pytest.mark.parametrize("name", ["valid.arrow", "subwords.model"])
def test_checksums_tell_of_other_damaged_files(folder: Path, name: str) -> None:
    store = prepare(recipe(folder), progress=False)
    info = json.loads((store / "store.json").read_text())
    (store / name).write_bytes((store / name).read_bytes()[:-1] + b"?")
    with pytest.raises(CapsNMTError, match=rf"{name} does not match its checksum"):
        prepare(recipe(folder), progress=False, verify=True)
    del info["files"]
    (store / "store.json").write_text(json.dumps(info))
    prepare(recipe(folder), progress=False, verify=True)  # stores from before have no such checksums


@pytest.mark.usefixtures("small_shards")
def test_what_was_read_before_an_error_is_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*text: Any) -> Iterator[tuple[str, str]]:
        for number, pair in enumerate(read_pairs(*text)):
            if number == 50:
                raise CapsNMTError("the disk does not answer")
            yield pair

    whole = contents(prepare(recipe(folder, store=str(folder / "whole")), progress=False))
    with monkeypatch.context() as patched:
        patched.setattr(stages, "read_pairs", broken)
        with pytest.raises(CapsNMTError, match="the disk does not answer"):
            prepare(recipe(folder), progress=False)
    with caplog.at_level(logging.INFO):
        assert contents(prepare(recipe(folder), progress=False)) == whole
    assert "going on after 45 pairs" in caplog.text


def test_unfinished_stores_of_longer_names_are_left_alone(folder: Path) -> None:
    other, own = folder / ".store.big.abcdefgh.unfinished", folder / ".store.abcdefgh.unfinished"
    other.mkdir()
    own.mkdir()
    prepare(recipe(folder), progress=False)
    assert other.exists()
    assert not own.exists()


@pytest.mark.parametrize("rows", [-1, "many", 11])
@pytest.mark.usefixtures("small_shards")
def test_a_forged_number_of_rows_is_found(folder: Path, rows: Any) -> None:
    store = prepare(recipe(folder), progress=False)
    info = json.loads((store / "store.json").read_text())
    info["shards"][1]["rows"] = rows
    (store / "store.json").write_text(json.dumps(info))
    with pytest.raises(CapsNMTError, match="prepare the corpus again"):
        load_store(store).train.lengths(1)


def test_corpora_are_read_one_after_the_other_and_told_apart(folder: Path) -> None:
    write_text(folder / "text", "more", [("a dog", "ein Hund"), TRAIN[5], ("", "")])
    mix = [{"source": "train.en", "target": "train.de", "weight": 2}, {"source": "more.en", "target": "more.de"}]
    config = recipe(folder, train={"mix": mix, "temperature": 3}, filters={"deduplicate": True})
    corpus = load_store(prepare(config, progress=False))
    assert rows_of(corpus.folder) == [*TRAIN, ("a dog", "ein Hund")]
    assert corpus.info["corpora"] == [60, 1]
    assert corpus.train.lengths(0).corpus.tolist() == [0] * 60 + [1]
    assert corpus.info["train"]["read"] == 67
    other = recipe(folder, train={"mix": [mix[0] | {"weight": 1}, mix[1]]}, filters={"deduplicate": True})
    assert prepare(other) == corpus.folder  # weights are applied while training
    with pytest.raises(CapsNMTError, match=r"data\.train\.mix"):
        prepare(recipe(folder, train={"mix": mix[::-1]}, filters={"deduplicate": True}))
