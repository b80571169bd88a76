"""A CTranslate2 model teaches what the model that it was converted from says, whichever converter wrote its config."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import ctranslate2
import pytest
import sentencepiece

from capsnmt import Translator
from capsnmt.bench.peer_model import convert_folder
from capsnmt.config import LanguagesConfig
from capsnmt.decoding.translation import TranslateOptions
from capsnmt.distillation.distill import DistillRequest, distill
from capsnmt.distillation.teachers import CTranslate2Teacher, open_teacher
from capsnmt.errors import CapsNMTError
from capsnmt.text.subwords import BOS, PAD

RELEASED = Path(__file__).parents[2] / "released" / "format-1"
SUBWORDS = RELEASED / "transformer" / "subwords.model"
LINES = [
    line
    for line in (RELEASED / "corpus" / "train.de").read_text().split("\n")[:40]
    if not set(line) & set("0123456789")
]

# What tells the converters' models apart in config.json.
MARIAN = {"add_source_eos": True, "decoder_start_token": "<s>"}
OPENNMT = {"add_source_eos": False, "decoder_start_token": "<s>"}
HUGGING_FACE = {"add_source_eos": False, "decoder_start_token": "<pad>", "bos_token": "<pad>"}  # of T5
OPUS_MT = {"add_source_eos": False, "decoder_start_token": "</s>"}  # as Hugging Face has it
FAIRSEQ = {"add_source_eos": True, "decoder_start_token": "</s>"}


@pytest.fixture
def converted(tmp_path):
    """converted(config) → a trained Transformer of ours as a CTranslate2 model with these values in its config."""

    def convert(config):
        folder = tmp_path / "converted"
        convert_folder(RELEASED / "transformer", folder, num_positions=64, int8=False)
        pieces = sentencepiece.SentencePieceProcessor(model_file=str(SUBWORDS))
        tokens = [pieces.id_to_piece(id_) for id_ in range(pieces.get_piece_size())]
        if config["decoder_start_token"] == "<pad>":  # ours starts from BOS, whatever that is called
            tokens[BOS], tokens[PAD] = "<pad>", "<s>"
        (folder / "shared_vocabulary.json").write_text(json.dumps(tokens))
        values = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**values, **config}))
        (folder / "sentencepiece.model").write_bytes(SUBWORDS.read_bytes())
        return folder

    return convert


def firsts(folder):
    """The teacher's first candidate of every line."""
    (block,) = CTranslate2Teacher(folder, beam=1, num_best=1).translate_blocks([LINES])
    return [candidates[0] for candidates in block]


def raw_scores(folder, end):
    """What CTranslate2 itself says of its translations when `end` follows the lines."""
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(SUBWORDS))
    tokens = [[*pieces.encode(line, out_type=str), *end] for line in LINES]
    found = ctranslate2.Translator(str(folder)).translate_batch(tokens, beam_size=1, return_scores=True)
    return pytest.approx([each.scores[0] for each in found], abs=1e-5)


@pytest.mark.parametrize("config", [MARIAN, HUGGING_FACE], ids=["marian", "hugging-face"])
def test_a_converted_model_teaches_what_ours_says(converted, config):
    translator = Translator(RELEASED / "transformer", engine="torch")
    ours = [each.text for each in translator.translate_batch(LINES, TranslateOptions(beam=1, split=False))]
    assert len(set(ours)) > 10
    assert [candidate.text for candidate in firsts(converted(config))] == ours


def test_lines_end_as_the_model_was_trained(converted):
    folder = converted(OPENNMT)
    without, with_end = raw_scores(folder, []), raw_scores(folder, ["</s>"])
    assert without.expected != with_end, "so the end makes a difference"
    assert [candidate.score for candidate in firsts(folder)] == without
    for config in (MARIAN, HUGGING_FACE):  # CTranslate2 adds it, or the teacher does: once in both
        assert [candidate.score for candidate in firsts(converted(config))] == with_end


@pytest.mark.parametrize(("config", "end"), [(OPUS_MT, ["</s>"]), (FAIRSEQ, []), (OPENNMT, [])])
def test_who_adds_the_end_is_told_by_the_config(converted, config, end):
    assert CTranslate2Teacher(converted(config), beam=1, num_best=1).about()["source_end"] == end


def test_the_best_come_first(converted):
    teacher = CTranslate2Teacher(converted(MARIAN), beam=4, num_best=3)
    (block,) = teacher.translate_blocks([["eins zwei", "", "drei"]])
    assert [len(candidates) for candidates in block] == [3, 0, 3]
    scores = [candidate.score for candidate in block[0]]
    assert scores == sorted(scores, reverse=True)


def test_a_long_line_may_have_a_long_translation(converted, monkeypatch):
    """CTranslate2's own limit is 256 tokens for every line."""
    teacher = CTranslate2Teacher(converted(MARIAN), beam=1, num_best=1)
    limits = {}

    def translate_batch(batch, *, max_decoding_length, **_):
        limits.update({len(tokens): max_decoding_length for tokens in batch})
        return [SimpleNamespace(hypotheses=[["x"]], scores=[-1.0]) for _ in batch]

    monkeypatch.setattr(teacher, "_translator", SimpleNamespace(translate_batch=translate_batch))
    (block,) = teacher.translate_blocks([["eins " * words for words in (1, 300, 100, 2)]])
    assert [len(candidates) for candidates in block] == [1, 1, 1, 1]
    assert limits[min(limits)] == 256
    assert all(2 * tokens + 20 <= limit < 2 * max(256, 2 * tokens + 20) for tokens, limit in limits.items())


def test_a_line_that_is_too_long_for_the_model_costs_no_other(converted, caplog):
    teacher = CTranslate2Teacher(converted(MARIAN), beam=1, num_best=1)  # which has 64 places
    (block,) = teacher.translate_blocks([["eins zwei", "eins " * 30, "drei"]])
    assert [len(candidates) for candidates in block] == [1, 0, 1]
    assert "is not translated: No position encodings" in caplog.text


def test_a_model_that_was_moved_is_the_same(converted, tmp_path):
    source = tmp_path / "source.de"
    source.write_text("".join(line + "\n" for line in LINES))
    languages = LanguagesConfig(source="de", target="en")
    request = DistillRequest(source=source, output=tmp_path / "out", languages=languages)
    folder = converted(MARIAN)
    first = distill(open_teacher([folder], None, TranslateOptions(beam=1)), request)
    moved = folder.rename(tmp_path / "moved")
    second = distill(open_teacher([moved], None, TranslateOptions(beam=1)), request)
    assert second["files"] == first["files"]


def test_a_replaced_model_does_not_go_on_with_the_old_ones_corpus(converted, tmp_path):
    source = tmp_path / "source.de"
    source.write_text("".join(line + "\n" for line in LINES))
    languages = LanguagesConfig(source="de", target="en")
    request = DistillRequest(source=source, output=tmp_path / "out", languages=languages)
    for _ in range(2):  # converted again it is the same
        folder = converted(MARIAN)
        distill(open_teacher([folder], None, TranslateOptions(beam=1)), request)
    model = (folder / "model.bin").read_bytes()
    place = model.index(b"\x00\x00\x80?")  # a weight of 1
    (folder / "model.bin").write_bytes(model[:place] + b"\x00\x00\x81?" + model[place + 4 :])
    with pytest.raises(CapsNMTError, match=r"teacher\.sha256: "):
        distill(open_teacher([folder], None, TranslateOptions(beam=1)), request)
