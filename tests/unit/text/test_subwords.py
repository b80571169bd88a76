import logging
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsnmt.config import NormaliseConfig, SubwordsConfig
from capsnmt.errors import CapsNMTError
from capsnmt.text.normalise import normalise
from capsnmt.text.subwords import BOS, EOS, PAD, UNK, Subwords, protected_symbol, train_subwords

LINES = [f"the {colour} cat number {i} sat on the mat, didn't it?" for i in range(100) for colour in ("red", "blue")]
CONFIG = SubwordsConfig(vocabulary=360, protected_symbols=4)


def train(folder: Path, config: SubwordsConfig, lines: list[str] = LINES) -> Subwords:
    path = folder / "subwords.model"
    train_subwords(lines, config, path)
    assert [file.name for file in folder.iterdir()] == [path.name]  # no temporary file is left
    return Subwords(path)


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def lossless(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subwords:
    return train(
        tmp_path_factory.mktemp("subwords"), CONFIG.model_copy(update={"type": request.param, "vocabulary": 320})
    )


@pytest.fixture(scope="module")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> Subwords:
    return train(tmp_path_factory.mktemp("bpe"), CONFIG)


@given(
    st.lists(st.text(max_size=8) | st.sampled_from(["⦅0⦆", "⦅3⦆", "the cat", "2024", "👩‍👩‍👧", "<0x0A>", "<s>", "⁇"]))
)
def test_round_trip_of_normalised_text(lossless: Subwords, parts: list[str]) -> None:
    text = normalise(" ".join(parts), NormaliseConfig())
    ids = lossless.encode(text)
    assert lossless.decode(ids) == text
    assert UNK not in ids
    assert not {PAD, BOS, EOS} & set(ids)


def test_a_protected_symbol_is_one_id_and_digits_are_split(bpe: Subwords) -> None:
    assert set(bpe.encode("x⦅3⦆y")) >= set(bpe.encode("⦅3⦆")[-1:])
    ids = [bpe.encode(protected_symbol(i))[-1] for i in range(4)]
    assert len(set(ids)) == 4
    for text in ("⦅2⦆", "a⦅2⦆b", "1⦅2⦆3"):
        for dropped in bpe.encode_batch([text] * 20, dropout=0.5, seed=1):
            assert ids[2] in dropped
    assert len(bpe.encode("11")) == len(bpe.encode("1")) + 1


def test_decode_ignores_the_frame_and_never_breaks_a_line(bpe: Subwords) -> None:
    ids = bpe.encode("the cat")
    assert bpe.decode([BOS, *ids, EOS, PAD, PAD]) == "the cat"
    newline = bpe.encode("\n")  # not normalised: byte fallback spells it
    assert "\n" not in bpe.decode([*ids, *newline])


def test_dropout_is_the_same_in_another_process(bpe: Subwords) -> None:
    """Else a training that is resumed would not see what it would have seen."""
    texts = LINES[:20]
    program = "import sys; from capsnmt.text.subwords import Subwords; print(Subwords(sys.argv[1]).encode_batch("
    program += f"{texts!r}, dropout=0.3, seed=5))"
    command = [sys.executable, "-c", program, str(bpe.path)]
    there = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    assert there == str(bpe.encode_batch(texts, dropout=0.3, seed=5))


def test_dropout_varies_and_is_decided_by_the_seed(bpe: Subwords) -> None:
    texts = LINES[:20]
    plain = bpe.encode_batch(texts)
    first = bpe.encode_batch(texts, dropout=0.3, seed=5)
    bpe.encode_batch(texts, dropout=0.3, seed=8)  # what happened in between does not matter
    assert bpe.encode_batch(texts, dropout=0.3, seed=5) == first
    assert bpe.encode_batch(texts, dropout=0.3, seed=6) != first
    assert first != plain
    assert [bpe.decode(ids) for ids in first] == texts
    assert plain == [bpe.encode(text) for text in texts]
    assert bpe.encode_batch(texts, dropout=0.3, seed=2**40 + 3) == bpe.encode_batch(texts, dropout=0.3, seed=2**40 + 3)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char", "word"])
def test_a_small_corpus_gets_a_smaller_vocabulary_and_a_warning(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        subwords = train(tmp_path, SubwordsConfig(type=kind, vocabulary=9000))  # type: ignore[arg-type]
    assert 20 < len(subwords) < 9000
    assert "text.subwords.vocabulary" in caplog.text
    assert subwords.decode(subwords.encode(LINES[0])) == LINES[0]


def test_a_vocabulary_of_words_has_the_most_frequent_ones(tmp_path: Path) -> None:
    config = SubwordsConfig(type="word", vocabulary=32, protected_symbols=26)
    words = train(tmp_path, config, ["rot blau rot", "grün rot gelb", "blau gelb blau rot"])
    assert words.pieces([30, 31]) == ["▁rot", "▁blau"]
    assert words.encode("rot gelb blau") == [30, UNK, 31]


@pytest.mark.parametrize(("kind", "expected"), [("char", "the c⁇t"), ("word", "the ⁇ sat")])
def test_unknown_parts_are_shown_in_place(tmp_path: Path, kind: str, expected: str) -> None:
    text = {"char": "the cÿt", "word": "the zebra sat"}[kind]
    subwords = train(tmp_path, SubwordsConfig(type=kind, vocabulary=500))  # type: ignore[arg-type]
    assert subwords.decode(subwords.encode(text)) == expected


def test_errors_name_the_key(tmp_path: Path) -> None:
    with pytest.raises(CapsNMTError, match=r"text\.subwords\.vocabulary: 40 is too small.*need \d+"):
        train(tmp_path, SubwordsConfig(vocabulary=40))
    with pytest.raises(CapsNMTError, match=r"empty.*data\.train"):
        train(tmp_path, SubwordsConfig(), [])
    (tmp_path / "broken.model").write_bytes(b"not a model")
    with pytest.raises(CapsNMTError, match=r"broken\.model is not a SentencePiece model"):
        Subwords(tmp_path / "broken.model")


def test_fingerprint_depends_on_the_model_alone(tmp_path: Path) -> None:
    prints = []
    for number, lines in enumerate([LINES, LINES, LINES[:50]]):
        train_subwords(lines, CONFIG, tmp_path / f"{number}.model")
        prints.append(Subwords(tmp_path / f"{number}.model").fingerprint)
    assert prints[0] == prints[1] != prints[2]
    assert len(prints[0]) == 16
