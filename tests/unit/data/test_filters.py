import itertools
import json
import random
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsnmt.config import FilterConfig, LanguagesConfig, RunConfig
from capsnmt.data.filters import (
    BoolArray,
    Duplicate,
    HashSet,
    LengthRatio,
    Overlap,
    OverLong,
    Pair,
    WrongLanguage,
    active_checks,
    active_reasons,
    count_words,
    first_reasons,
    hashes_of,
    is_empty,
    overlap_key,
    word_ratio,
)
from capsnmt.data.prepare import load_store, prepare
from capsnmt.errors import CapsNMTError

EN_DE = LanguagesConfig(source="en", target="de")
ENGLISH = "the children are playing in the garden behind the house"
GERMAN = "die Kinder spielen im Garten hinter dem alten Haus"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", 0),
        ("one two", 2),
        ("ein Wörtchen", 2),
        ("我喜欢苹果", 3),
        ("我 like 苹果", 3),
        ("ฉันรัก", 3),
        ("a\u2028b", 2),
    ],
)
def test_words_are_counted_in_scripts_with_and_without_spaces(text: str, words: int) -> None:
    assert count_words(text) == words


def test_ratio_is_of_words_and_only_of_long_enough_sides() -> None:
    assert word_ratio(("one", "eins zwei drei vier fünf")) == 1.0
    assert word_ratio(("one", "eins zwei drei vier fünf sechs")) == 6.0
    assert word_ratio(("a b c d e f g h", "a b c d")) == 2.0
    pairs = [("a b c d e f g h", "a b c d"), ("a b c d e f g h i", "a b c d")]
    assert LengthRatio(max_ratio=2.0).hits(pairs).tolist() == [False, True]


def test_over_long_by_words_or_by_characters() -> None:
    pairs = [("a b c", "a b"), ("a b", "a b c"), ("a b", "a b"), ("abcdefgh", "a")]
    assert OverLong(max_words=2, max_characters=None).hits(pairs).tolist() == [True, True, False, False]
    assert OverLong(max_words=None, max_characters=7).hits(pairs).tolist() == [False, False, False, True]
    assert OverLong(max_words=3, max_characters=8).hits(pairs).tolist() == [False] * 4


def test_empty_is_blank_on_either_side() -> None:
    assert [is_empty(pair) for pair in [("a", "b"), ("", "b"), ("a", " \u00a0"), ("", "")]] == [False, True, True, True]


def test_overlap_sees_neither_case_nor_punctuation() -> None:
    assert overlap_key("«Straße», he said — TWICE!") == overlap_key("strasse he said twice")
    assert overlap_key("कि") != overlap_key("क")  # a vowel sign is no punctuation
    assert overlap_key("¿?!…") == ""
    held_out = HashSet()
    held_out.add(hashes_of([overlap_key("Come here."), overlap_key("...")]))
    pairs = [("come here!", "x"), ("Come there.", "x"), ("?!", "x"), ("x", "Come here.")]
    assert Overlap(held_out=held_out).hits(pairs).tolist() == [True, False, False, False]


def test_duplicates_are_the_same_on_both_sides() -> None:
    check = Duplicate()
    assert check.hits([("a", "b"), ("a", "c"), ("a", "b"), ("ab", ""), ("a b", "")]).tolist() == [
        False,
        False,
        True,
        False,
        False,
    ]
    assert check.hits([("a", "c"), ("b", "a"), ("b", "a")]).tolist() == [True, False, True]
    assert check.hits([]).tolist() == []


@given(st.lists(st.lists(st.integers(0, 30), max_size=20), max_size=20))
def test_hash_set_answers_like_a_set(batches: list[list[int]]) -> None:
    ours, theirs = HashSet(), set[int]()
    for batch in batches:
        expected = []
        for value in batch:
            expected.append(value in theirs)
            theirs.add(value)
        assert ours.add(np.array(batch, np.uint64)).tolist() == expected
    assert len(ours) == len(theirs)
    assert ours.contains(np.arange(32, dtype=np.uint64)).tolist() == [value in theirs for value in range(32)]


def test_duplicates_are_found_in_bounded_memory() -> None:
    num_pairs, together = 300_000, 4096
    generator = np.random.default_rng(random.randrange(2**32))
    hashes = np.unique(generator.integers(0, 2**63, num_pairs, np.uint64))
    generator.shuffle(hashes)
    tracemalloc.start()
    try:
        seen = HashSet()
        found = sum(int(seen.add(hashes[start : start + together]).sum()) for start in range(0, len(hashes), together))
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == 0
    assert seen.add(hashes[::7]).all()
    assert held < 8.5 * len(hashes)
    assert peak < 25 * len(hashes) + 100 * together


def test_wrong_language_is_told_from_long_enough_lines_only() -> None:
    check = WrongLanguage(languages=EN_DE)
    pairs = [(ENGLISH, GERMAN), (GERMAN, GERMAN), (ENGLISH, ENGLISH), ("Guten Tag", "Good day"), (ENGLISH, "1 2 " * 20)]
    assert check.hits(pairs).tolist() == [False, True, True, False, False]
    french = "les enfants jouent dans le jardin derrière la maison"
    assert check.hits([(ENGLISH, french)]).tolist() == [True]
    regional = WrongLanguage(languages=LanguagesConfig(source="en_GB", target="de-AT"))
    assert regional.hits(pairs).tolist() == [False, True, True, False, False]


def test_unknown_language_names_code_and_fix() -> None:
    with pytest.raises(CapsNMTError, match=r"'xq'.*data\.filters\.wrong_language"):
        WrongLanguage(languages=LanguagesConfig(source="en", target="xq"))


def test_a_pair_has_its_first_reason_and_the_next_checks_do_not_see_it() -> None:
    class Watching(LengthRatio):
        def hits(self, pairs: Sequence[Pair]) -> BoolArray:
            judged.extend(pairs)
            return super().hits(pairs)

    judged: list[Pair] = []
    pairs = [("a", "b"), ("", "x"), ("a b c d e f g", "a"), ("a b c d e f", "a"), ("x", " ")]
    checks = [OverLong(max_words=6, max_characters=None), Watching(max_ratio=2.0)]
    assert first_reasons(pairs, checks) == [None, "empty", "over_long", "length_ratio", "empty"]
    assert judged == [pairs[0], pairs[3]]
    assert first_reasons([], checks) == []


def test_checks_and_reasons_of_a_config_have_one_order() -> None:
    values = {"max_words": 9, "max_characters": 9, "max_ratio": 9.0}
    for wanted in itertools.product([False, True], repeat=len(FilterConfig.model_fields)):
        names = [name for name, is_wanted in zip(FilterConfig.model_fields, wanted, strict=True) if is_wanted]
        filters = FilterConfig(**{name: values.get(name, True) for name in names})
        checks = active_checks(filters, languages=EN_DE, held_out=HashSet())
        reasons = [check.reason for check in checks] + ["duplicate"] * filters.deduplicate
        assert active_reasons(filters) == tuple(reasons)


# ---------------------------------------------------------------- prepare

TRAIN = [(f"the cat number {number} sleeps on my bed", f"die Katze Nummer {number} schläft") for number in range(60)]
PLANTED = [
    TRAIN[3],
    (f" {TRAIN[4][0]} ", TRAIN[4][1]),  # the same once it is normalised
    ("77777 " * 15, "77777 " * 15),
    ("one two three four five six seven eight", "eins"),
    ("The valid CAT sleeps!", "die gültige Katze schläft"),
    ("the test cat sleeps", "die Katze des Tests schläft"),
    (GERMAN + "ß", GERMAN),
    ("", "leer"),
    ("", "leer"),
]


def recipe(folder: Path, filters: dict[str, Any] | None = None, **data: Any) -> RunConfig:
    for name, pairs in {
        "train": TRAIN + PLANTED,
        "valid": [("The valid cat sleeps.", "Die gültige Katze schläft.")],
        "test": [("The test cat sleeps.", "Die Katze des Tests schläft.")],
    }.items():
        for side, suffix in enumerate(("en", "de")):
            text = "".join(pair[side] + "\n" for pair in pairs)
            (folder / f"{name}.{suffix}").write_bytes(text.encode("utf-8"))
    texts = {name: {"source": f"{name}.en", "target": f"{name}.de"} for name in ("train", "valid", "test")}
    filtering = {} if filters is None else {"filters": filters}
    return RunConfig.model_validate(
        {
            "languages": {"source": "en", "target": "de"},
            "data": {"root": str(folder), **texts, "store": str(folder / "store"), **filtering, **data},
            "text": {"subwords": {"type": "char", "vocabulary": 100, "byte_fallback": False}},
            "model": {"system": "any"},
            "training": {"steps": 1, "learning_rate": 0.1},
            "output": str(folder / "model"),
        }
    )


@pytest.mark.parametrize(
    ("filters", "counts"),
    [
        ({}, {}),
        ({"deduplicate": True}, {"duplicate": 2}),
        ({"max_words": 10}, {"over_long": 1}),
        ({"max_characters": 45}, {"over_long": 2}),
        ({"max_ratio": 7.5}, {"length_ratio": 1}),
        ({"max_ratio": 8}, {"length_ratio": 0}),
        ({"drop_overlap": True}, {"overlap": 2}),
        ({"wrong_language": True}, {"wrong_language": 1}),
        (
            {"deduplicate": True, "max_words": 10, "max_ratio": 7, "drop_overlap": True, "wrong_language": True},
            {"duplicate": 2, "over_long": 1, "length_ratio": 1, "overlap": 2, "wrong_language": 1},
        ),
    ],
)
def test_prepare_filters_and_counts(
    tmp_path: Path, filters: dict[str, Any], counts: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    corpus = load_store(prepare(recipe(tmp_path, filters), progress=False))
    kept = len(TRAIN) + len(PLANTED) - 2 - sum(counts.values())
    assert corpus.info["train"] == {"read": 69, "kept": kept, "empty": 2, "too_long": 0, **counts}
    assert len(corpus.train) == kept
    assert len(corpus.valid) == 1
    assert all(f"'{reason}': {count}" in caplog.text for reason, count in counts.items())


def test_what_is_filtered_takes_no_place_in_the_vocabulary(tmp_path: Path) -> None:
    with_all = load_store(prepare(recipe(tmp_path, store=str(tmp_path / "all")), progress=False))
    without = load_store(prepare(recipe(tmp_path, {"wrong_language": True}), progress=False))
    others = {character for pair in TRAIN + PLANTED if GERMAN not in pair for side in pair for character in side}
    missing = set(GERMAN + "ß") - others
    assert "ß" in missing
    sizes = [corpus.info["vocabulary"]["source_size"] for corpus in (with_all, without)]
    assert sizes[0] - sizes[1] == len(missing)


def test_a_store_from_before_the_filters_is_used_again(tmp_path: Path) -> None:
    store = prepare(recipe(tmp_path), progress=False)
    info = json.loads((store / "store.json").read_text("utf-8"))
    assert info["settings"]["data.filters.max_ratio"] is None
    info["settings"] = {key: value for key, value in info["settings"].items() if "filters" not in key}
    (store / "store.json").write_text(json.dumps(info), "utf-8")
    assert prepare(recipe(tmp_path), progress=False) == store
    with pytest.raises(CapsNMTError, match=r"data\.filters\.deduplicate: the store has False, the recipe True"):
        prepare(recipe(tmp_path, {"deduplicate": True}), progress=False)


def test_held_out_texts_and_languages_decide_a_store_that_looks_at_them(tmp_path: Path) -> None:
    filters = {"drop_overlap": True, "wrong_language": True}
    config = recipe(tmp_path, filters)
    prepare(config, progress=False)
    changed = config.model_copy(update={"languages": LanguagesConfig(source="en", target="nl")})
    with pytest.raises(CapsNMTError, match=r"languages\.target: the store has 'de', the recipe 'nl'"):
        prepare(changed, progress=False)
    with pytest.raises(CapsNMTError, match=r"data\.test\.source"):
        prepare(recipe(tmp_path, filters, test=None), progress=False)
    (tmp_path / "test.en").write_bytes(b"Another sentence.\n")
    with pytest.raises(CapsNMTError, match=r"test\.en: had \d+ bytes"):
        prepare(config, progress=False)


def test_filters_that_leave_nothing_are_named(tmp_path: Path) -> None:
    config = recipe(tmp_path, {"max_characters": 1})
    with pytest.raises(CapsNMTError, match=r"no training pair is left of 69 .*over_long: 67"):
        prepare(config, progress=False)
    for suffix in ("en", "de"):
        (tmp_path / f"train.{suffix}").write_bytes(b"too long\n" * 4)  # so that the subwords get nothing either
    with pytest.raises(CapsNMTError, match=r"no training pair is left of 4 .*over_long: 4"):
        prepare(config, progress=False)
