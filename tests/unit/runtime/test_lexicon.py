"""Vocabulary selection: what the lexicon learns, and that selecting changes only what may be chosen."""

from __future__ import annotations

import numpy as np
import pytest

from capsnmt.errors import CapsNMTError
from capsnmt.runtime.lexicon import Lexicon, learn_lexicon
from capsnmt.text.subwords import EOS, UNK

SIZE = 60


def pairs(count=300):
    """Source id n is translated by n + 20, in another order, beside the word 10, which is everywhere."""
    generator = np.random.default_rng(1)
    made = []
    for _ in range(count):
        source = generator.choice(np.arange(20, 40), size=5, replace=False)
        made.append(([*source.tolist(), EOS], [10, *(generator.permutation(source) + 20).tolist(), EOS]))
    return made


def test_it_learns_which_word_translates_which():
    lexicon = learn_lexicon(pairs(), source_size=SIZE, target_size=SIZE, num_always=2, num_translations=2)
    for source in range(20, 40):
        assert source + 20 in lexicon.select([source])


def test_frequent_words_and_the_end_are_always_there():
    lexicon = learn_lexicon(pairs(), source_size=SIZE, target_size=SIZE, num_always=1, num_translations=1)
    assert lexicon.select([5]).tolist() == [UNK, EOS]  # 5 never occurred, and no word is more frequent than the end
    lexicon = learn_lexicon(pairs(), source_size=SIZE, target_size=SIZE, num_always=2, num_translations=1)
    assert lexicon.select([5]).tolist() == [UNK, EOS, 10]


def test_selections_are_sorted_and_without_doubles():
    words = learn_lexicon(pairs(), source_size=SIZE, target_size=SIZE).select([20, 20, 21, EOS])
    assert (np.diff(words) > 0).all()
    assert words.dtype == np.int64


def test_more_text_than_fits_is_cut_and_chunks_change_nothing(monkeypatch):
    whole = learn_lexicon(pairs(), source_size=SIZE, target_size=SIZE, num_translations=3)
    monkeypatch.setattr("capsnmt.runtime.lexicon._CHUNK_CELLS", 100)
    chunked = learn_lexicon(pairs(), source_size=SIZE, target_size=SIZE, num_translations=3)
    assert (whole.translations[:, 0] == chunked.translations[:, 0]).all()
    monkeypatch.setattr("capsnmt.runtime.lexicon._MAX_CELLS", 100)  # two pairs
    cut = learn_lexicon(pairs(), source_size=SIZE, target_size=SIZE, num_translations=3)
    assert (cut.translations != -1).sum() < (whole.translations != -1).sum()


def test_no_text_is_an_error():
    with pytest.raises(CapsNMTError, match="training corpus"):
        learn_lexicon([], source_size=SIZE, target_size=SIZE)


def test_it_comes_back_from_its_file(tmp_path):
    made = learn_lexicon(pairs(), source_size=SIZE, target_size=SIZE)
    made.save(tmp_path / "lexicon.npz")
    content = (tmp_path / "lexicon.npz").read_bytes()
    read = Lexicon.parse(content, source_size=SIZE, target_size=SIZE)
    assert (read.select([22, 25]) == made.select([22, 25])).all()


@pytest.mark.parametrize("fault", ["garbage", "pickle", "size", "range", "type", "no end"])
def test_a_strangers_file_is_refused(tmp_path, fault):
    arrays = {"always": np.array([EOS], dtype=np.int32), "translations": np.zeros((SIZE, 2), dtype=np.int32)}
    if fault == "pickle":
        arrays["always"] = np.array([object()])
    elif fault == "size":
        arrays["translations"] = arrays["translations"][:-1]
    elif fault == "range":
        arrays["translations"] = arrays["translations"] + np.int32(SIZE)
    elif fault == "type":
        arrays["always"] = np.array([float(EOS)])
    elif fault == "no end":
        arrays["always"] = np.array([5], dtype=np.int32)
    np.savez(tmp_path / "lexicon.npz", **arrays)
    content = b"garbage" if fault == "garbage" else (tmp_path / "lexicon.npz").read_bytes()
    with pytest.raises(CapsNMTError, match=r"lexicon\.npz"):
        Lexicon.parse(content, source_size=SIZE, target_size=SIZE)
