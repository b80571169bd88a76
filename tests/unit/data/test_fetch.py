"""The real mtdata needs a network; its place is taken by a script that writes files where mtdata does."""

from pathlib import Path
from typing import Any

import pytest
import zstandard

from capsnmt.config import RunConfig
from capsnmt.data import fetch
from capsnmt.data.fetch import NAMED, NamedCorpus, fetch_missing
from capsnmt.data.prepare import prepare
from capsnmt.errors import CapsNMTError

SCRIPT = """#!/bin/sh
while [ "$1" != "-o" ]; do
  case "$1" in -tr) folder=train-parts;; -ts) folder=tests;; get|-l|eng-*|--fail) ;; *) names="$names $folder/$1";; esac
  shift
done
mkdir -p "$2/train-parts" "$2/tests"
for name in $names; do for language in eng deu fra; do echo "$language of $name" > "$2/$name.$language"; done; done
"""
OFFLINE = """#!/bin/sh
echo "urllib3.exceptions.NameResolutionError: Failed to resolve 'www.statmt.org'"
exit 1
"""


def recipe(folder: Path, **data: Any) -> RunConfig:
    texts = {
        name: {"source": f"wmt/{name}.en{suffix}", "target": f"wmt/{name}.de{suffix}"}
        for name, suffix in (("train", ".zst"), ("valid", ""), ("test", ".gz"))
    }
    return RunConfig.model_validate(
        {
            "languages": {"source": "en", "target": "de"},
            "data": {"root": str(folder), "fetch": "wmt14-en-de", **texts, "store": str(folder / "store"), **data},
            "text": {},
            "model": {"system": "any"},
            "training": {"steps": 1, "learning_rate": 0.1},
            "output": str(folder / "model"),
        }
    )


@pytest.fixture
def mtdata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")

    def write(script: str) -> None:
        (tmp_path / "bin" / "mtdata").write_text(script)
        (tmp_path / "bin" / "mtdata").chmod(0o755)

    return write


def test_parts_become_the_files_of_the_recipe(tmp_path: Path, mtdata: Any) -> None:
    mtdata(SCRIPT)
    root = tmp_path / "data"
    config = recipe(root)
    (root / "wmt").mkdir(parents=True)
    for side in ("en", "de"):
        (root / "wmt" / f"valid.{side}").write_text("own\n")
    fetch_missing(config)
    with (root / "wmt" / "train.de.zst").open("rb") as file:
        train = zstandard.ZstdDecompressor().stream_reader(file).read().decode().splitlines()
    assert train == [f"deu of train-parts/{name}" for name in NAMED["wmt14-en-de"].train]
    assert (root / "wmt" / "valid.en").read_text() == "own\n"  # what is there stays
    assert sorted(path.name for path in root.iterdir()) == ["wmt"]
    assert len(list((root / "wmt").iterdir())) == 6
    mtdata(OFFLINE)
    fetch_missing(config)  # nothing is missing, so nothing is asked for


def recipe_on_words(folder: Path) -> RunConfig:
    texts = {name: {"source": f"{name}.tok.en", "target": f"{name}.tok.de.zst"} for name in ("train", "valid", "test")}
    return recipe(folder, **texts)


def test_files_of_tokens_are_tokenised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part's lines stay lines: a line separator inside of one is a space, an empty one stays."""

    def write_parts(config: RunConfig, named: NamedCorpus, download: Path) -> None:
        for folder, parts in (("train-parts", named.train), ("tests", named.valid + named.test)):
            (download / folder).mkdir(parents=True, exist_ok=True)
            for part in parts:
                (download / folder / f"{part}.eng").write_text("Don't (yet).\n\nOne\u2028line, Mr. X\n")
                (download / folder / f"{part}.deu").write_text("Noch nicht, z.B. „hier“.\n\nEine Zeile")

    monkeypatch.setattr(fetch, "_run_mtdata", write_parts)
    fetch_missing(recipe_on_words(tmp_path))
    english = ["Don 't ( yet ) .", "", "One line , Mr. X"]
    german = ["Noch nicht , z.B. „ hier “ .", "", "Eine Zeile"]
    assert (tmp_path / "train.tok.en").read_text().split("\n") == [*english * 3, ""]
    with (tmp_path / "test.tok.de.zst").open("rb") as file:
        assert zstandard.ZstdDecompressor().stream_reader(file).read().decode().split("\n") == [*german, ""]


def test_tokens_brought_by_hand_need_a_tokeniser(tmp_path: Path, mtdata: Any) -> None:
    with pytest.raises(CapsNMTError, match=r"escape=False\) with 'en' and 'de' first"):
        fetch_missing(recipe_on_words(tmp_path))
    with pytest.raises(CapsNMTError) as error:
        fetch_missing(recipe(tmp_path))
    assert "sacremoses" not in str(error.value)


def test_without_a_network_the_files_to_bring_are_named(tmp_path: Path, mtdata: Any) -> None:
    mtdata(OFFLINE)
    with pytest.raises(CapsNMTError, match="there is no network") as error:
        prepare(recipe(tmp_path / "data"))
    said = str(error.value)
    assert str(tmp_path / "data" / "wmt" / "train.en.zst") in said
    assert "Statmt-newstest-2012-eng-deu, Statmt-newstest-2013-eng-deu" in said


def test_without_mtdata_the_command_to_install_it_is_named(tmp_path: Path, mtdata: Any) -> None:
    with pytest.raises(CapsNMTError, match="pipx install mtdata"):
        prepare(recipe(tmp_path / "data"))


def test_a_tsv_cannot_be_fetched(tmp_path: Path, mtdata: Any) -> None:
    mtdata(SCRIPT)
    with pytest.raises(CapsNMTError, match=r"needs `source` and `target` in data\.train"):
        fetch_missing(recipe(tmp_path, train={"tsv": "train.tsv"}))
