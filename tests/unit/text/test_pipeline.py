from pathlib import Path

import pytest

from capsnmt.config import SubwordsConfig, TextConfig, parse
from capsnmt.errors import CapsNMTError
from capsnmt.text.pipeline import TextPipeline
from capsnmt.text.subwords import EOS, train_subwords

ENGLISH = ["the cat sleeps in the old house", "a dog sees the cat"] * 20
GERMAN = ["die Katze schläft im alten Haus", "ein Hund sieht die Katze und die Maus"] * 20


def pipeline_in(folder: Path, *, joint: bool) -> TextPipeline:
    config = TextConfig(subwords=SubwordsConfig(vocabulary=330, joint=joint, protected_symbols=2))
    if joint:
        train_subwords(ENGLISH + GERMAN, config.subwords, folder / "subwords.model")
    else:
        train_subwords(ENGLISH, config.subwords, folder / "subwords.source.model")
        train_subwords(GERMAN, config.subwords, folder / "subwords.target.model")
    return TextPipeline.load(folder, config)


@pytest.mark.parametrize("joint", [True, False])
def test_text_to_ids_and_back(tmp_path: Path, joint: bool) -> None:
    pipeline = pipeline_in(tmp_path, joint=joint)
    ids = pipeline.target_ids(" „die  Katze“ ")
    assert ids == [*pipeline.target_prefix_ids('"die Katze"'), EOS]
    assert pipeline.target_text(ids) == '"die Katze"'
    assert pipeline.source_ids("") == [EOS]
    assert pipeline.source_ids("the\u00a0cat") == pipeline.encode_normalised(["the cat"], "source")[0]
    assert pipeline.target_ids("die Katze") == pipeline.encode_normalised(["die Katze"], "target")[0]
    assert (pipeline.source_ids("die Katze") == pipeline.target_ids("die Katze")) is joint
    assert pipeline.source_size == len(pipeline.source)
    assert pipeline.target_size == len(pipeline.target)


@pytest.mark.parametrize("joint", [True, False])
def test_copy_is_the_same_pipeline(tmp_path: Path, joint: bool) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    pipeline = pipeline_in(tmp_path / "a", joint=joint)
    pipeline.copy_to(tmp_path / "b")
    pipeline.copy_to(tmp_path / "a")  # onto itself: nothing happens
    copy = TextPipeline.load(tmp_path / "b", pipeline.config)
    assert copy.fingerprint == pipeline.fingerprint
    assert copy.source_ids("the cat") == pipeline.source_ids("the cat")


def test_separate_fingerprint_sees_both_sides(tmp_path: Path) -> None:
    pipeline = pipeline_in(tmp_path, joint=False)
    swapped = TextPipeline(pipeline.config, pipeline.target, pipeline.source)
    assert len({pipeline.fingerprint, swapped.fingerprint, pipeline.source.fingerprint}) == 3


def test_missing_file_and_impossible_dropout_are_explained(tmp_path: Path) -> None:
    with pytest.raises(CapsNMTError, match=r"subwords\.source\.model is missing.*joint is false"):
        TextPipeline.load(tmp_path, TextConfig(subwords=SubwordsConfig(joint=False)))
    with pytest.raises(CapsNMTError, match=r"subwords: dropout: 0\.1 needs type: bpe"):
        parse(TextConfig, {"subwords": {"type": "unigram", "dropout": 0.1}}, "recipe")
