"""Distillation: every line once and in order however often it is killed, the right candidate, and counted filters."""

from __future__ import annotations

import errno
import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import given, settings
from hypothesis import strategies as st

from capsnmt import verbs
from capsnmt.config import LanguagesConfig, parse_language_pair
from capsnmt.decoding.translation import TranslateOptions
from capsnmt.distillation.choosing import CHOICES, KEPT, Filters, best_by_bleu, best_by_score
from capsnmt.distillation.distill import DistillRequest, distill, shards_in, write_corpus
from capsnmt.distillation.identity import is_distilled_by
from capsnmt.distillation.journal import Shard, TranslationJournal
from capsnmt.distillation.teachers import Candidate, CommandTeacher, ModelTeacher, open_teacher
from capsnmt.errors import CapsNMTError
from capsnmt.runtime.manifest import read_manifest, sha256_of_file, write_manifest
from capsnmt.runtime.verify import Margins

RELEASED = Path(__file__).parents[2] / "released" / "format-1"
LANGUAGES = LanguagesConfig(source="en", target="de")


class Reverser:
    """Teaches to write words backwards; dies after so many blocks, as a killed process does."""

    languages = LANGUAGES

    def __init__(self, blocks=10**9):
        self.blocks = blocks
        self.asked = []

    def translate_blocks(self, blocks):
        return map(self.translate, blocks)

    def translate(self, lines):
        self.asked += lines
        if self.blocks == 0:
            raise KeyboardInterrupt
        self.blocks -= 1
        return [[Candidate(line[::-1], -1.0)] if line else [] for line in lines]

    def about(self):
        return {"reverser": 1}


def corpus(folder, lines=23):
    source, reference = folder / "a.en", folder / "a.de"
    words = [f"line {number} of these" for number in range(lines - 1)] + [""]
    source.write_text("".join(word + "\n" for word in words))
    reference.write_text("".join(f"Zeile {number} hier\n" for number in range(lines)))
    return source, reference


def request(folder, **changes):
    source, reference = corpus(folder)
    return DistillRequest(source=source, reference=reference, output=folder / "out", batch_lines=4, **changes)


def written(folder):
    return [(folder / "out" / f"train.{side}").read_text().split("\n")[:-1] for side in ("en", "de")]


def verdicts(folder):
    heading, *rows = (folder / "out" / "verdicts.tsv").read_text().split("\n")[:-1]
    assert heading == "line\tverdict\tcandidate"
    return [row.split("\t") for row in rows]


def test_lines_come_out_in_order_with_a_manifest(tmp_path):
    manifest = distill(Reverser(), request(tmp_path))
    sources, targets = written(tmp_path)
    assert len(sources) == manifest["pairs"] == 22
    assert targets == [source[::-1] for source in sources]
    assert manifest["verdicts"] == {"empty": 1, "kept": 22}
    assert json.loads((tmp_path / "out" / "manifest.json").read_text()) == manifest
    assert verdicts(tmp_path) == [[str(line), "kept", "1"] for line in range(1, 23)] + [["23", "empty", ""]]


def test_every_line_has_its_verdict_and_the_candidate_that_was_chosen(tmp_path):
    answers = {
        "line 0 of these": [Candidate("Zeile", -1.0), Candidate("Zeile 0 hier", -2.0)],
        "line 1 of these": [Candidate("line 1 of these", -1.0)],
        "line 2 of these": [Candidate("x", -1.0), Candidate("y", -1.5), Candidate("Zeile 2 da", -9.0)],
        "line 3 of these": [],
    }
    teacher = Reverser()
    teacher.translate = lambda lines: [answers.get(line, [Candidate("Zeile hier", -1.0)]) for line in lines]
    distill(teacher, request(tmp_path, choose="bleu", filters=Filters(min_score=-5.0), with_original=True))
    rows = verdicts(tmp_path)
    assert [row[1:] for row in rows[:5]] == [
        ["kept", "2"],
        ["copy", "1"],
        ["score", "3"],
        ["not_translated", ""],
        ["kept", "1"],
    ]
    assert [row[0] for row in rows] == [str(line) for line in range(1, 24)], "the original pairs have none"


@given(seed=st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_killed_anywhere_it_ends_the_same_and_asks_each_line_again_at_most_once_a_kill(tmp_path_factory, seed):
    folder, generator = tmp_path_factory.mktemp("killed"), random.Random(seed)
    kills, asked, torn = 0, 0, 0
    while True:
        teacher = Reverser(blocks=generator.randrange(1, 4))
        try:
            distill(teacher, request(folder))
            break
        except KeyboardInterrupt:
            kills += 1
        finally:
            asked += len(teacher.asked)
        journal = folder / "out" / "translations-1-of-1.jsonl"
        whole = journal.read_bytes()
        left = whole[: len(whole) - generator.randrange(0, 30)]
        journal.write_bytes(left)  # the last write was torn
        torn += whole.count(b"\n") - left.count(b"\n")
        assert not (folder / "out" / "manifest.json").exists()
    assert kills >= 1
    assert 23 + torn < asked <= 23 + torn + kills * 4, "the block under way, and what was torn"
    calm = folder / "calm"
    calm.mkdir()
    distill(Reverser(), request(calm))
    assert written(folder) == written(calm)
    assert verdicts(folder) == verdicts(calm)


def test_killed_while_it_writes_the_corpus_it_writes_all_of_it_again(tmp_path, monkeypatch):
    left = iter(range(12))

    def dies(candidates, reference):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return best_by_score(candidates, reference)

    with monkeypatch.context() as killed:
        killed.setitem(CHOICES, "score", dies)
        with pytest.raises(KeyboardInterrupt):
            distill(Reverser(), request(tmp_path))
    assert not (tmp_path / "out" / "verdicts.tsv").exists()
    distill(Reverser(), request(tmp_path))
    assert [row[0] for row in verdicts(tmp_path)] == [str(line) for line in range(1, 24)]


def test_shards_join_to_the_whole(tmp_path):
    for number in (2, 3, 1):
        teacher = Reverser()
        assert distill(teacher, request(tmp_path, shard=Shard(number, 3))) is None
        assert len(teacher.asked) in (7, 8)
    teacher = Reverser()
    manifest = distill(teacher, request(tmp_path))
    assert teacher.asked == []
    assert manifest["shards"] == 3
    assert [row[0] for row in verdicts(tmp_path)] == [str(line) for line in range(1, 24)]
    assert written(tmp_path)[1] == [source[::-1] for source in written(tmp_path)[0]]


def test_a_missing_shard_is_made_by_the_joining(tmp_path):
    distill(Reverser(), request(tmp_path, shard=Shard(2, 2)))
    teacher = Reverser()
    assert distill(teacher, request(tmp_path))["pairs"] == 22
    assert len(teacher.asked) == 12
    Shard(1, 5).file(tmp_path / "out").write_text("{}\n")
    with pytest.raises(CapsNMTError, match="parts of 2 and 5 shards"):
        shards_in(tmp_path / "out")


def test_shards_of_another_number_are_refused_before_they_translate(tmp_path):
    distill(Reverser(), request(tmp_path, shard=Shard(2, 2)))
    teacher = Reverser()
    with pytest.raises(CapsNMTError, match="translations in 2 shards"):
        distill(teacher, request(tmp_path, shard=Shard(1, 3)))
    assert teacher.asked == []


def test_of_the_processes_of_torchrun_each_has_its_own_shard(monkeypatch):
    assert Shard.of_this_process() is None
    for name, value in {"WORLD_SIZE": "8", "RANK": "2", "TORCHELASTIC_RUN_ID": "x"}.items():
        monkeypatch.setenv(name, value)
    assert Shard.of_this_process() == Shard.parse("3/8")
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")  # a cluster's scheduler may set the others
    assert Shard.of_this_process() is None


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "a/b", "1/0", "-1/2"])
def test_a_shard_that_is_none(text):
    with pytest.raises(CapsNMTError, match="such as 1/8"):
        Shard.parse(text)


def test_another_teacher_or_text_is_refused(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        distill(Reverser(blocks=1), request(tmp_path))
    other = Reverser()
    other.about = lambda: {"reverser": 2}
    with pytest.raises(CapsNMTError, match=r"teacher.reverser: 1 -> 2"):
        distill(other, request(tmp_path))
    asked = request(tmp_path)
    asked.source.write_text(asked.source.read_text().replace("line 3", "line three"))
    with pytest.raises(CapsNMTError, match=r"source.sha256: "):
        distill(Reverser(), asked)


@pytest.mark.parametrize("name", ["train.en", "train.de", "verdicts.tsv", "manifest.json"])
@pytest.mark.parametrize("link", [None, Path.symlink_to, Path.hardlink_to])
def test_what_is_read_is_not_overwritten(tmp_path, name, link):
    asked = request(tmp_path)
    asked.output.mkdir()
    if link is None:
        asked.reference.rename(asked.output / name)
        asked = replace(asked, reference=asked.output / name)
    else:
        link(asked.output / name, asked.reference)
    teacher, before = Reverser(), asked.reference.read_bytes()
    with pytest.raises(CapsNMTError, match=f"{name} would overwrite"):
        distill(teacher, asked)
    assert teacher.asked == []
    assert asked.reference.read_bytes() == before


@pytest.mark.parametrize("name", ["train.en", "train.de", "verdicts.tsv", "manifest.json"])
def test_what_others_wrote_is_not_overwritten(tmp_path, name):
    asked = request(tmp_path)
    asked.output.mkdir()
    (asked.output / name).write_text('{"files": {}}\n')
    with pytest.raises(CapsNMTError, match=f"has {name} already"):
        distill(Reverser(), asked)
    assert (asked.output / name).read_text() == '{"files": {}}\n'


def test_what_it_wrote_itself_is_written_again(tmp_path):
    asked = request(tmp_path)
    first = distill(Reverser(), asked)
    assert distill(Reverser(), asked) == first
    for journal in asked.output.glob("*.jsonl"):  # thrown away to save room
        journal.unlink()
    assert distill(Reverser(), asked) == first


@pytest.mark.parametrize("place", ["a.en", "a.en/below", "/proc/none", "x" * 300])
def test_a_folder_that_cannot_be_is_told(tmp_path, place):
    with pytest.raises(CapsNMTError, match=r"--output .*; choose another"):
        distill(Reverser(), replace(request(tmp_path), output=tmp_path / place))


def test_a_folder_that_cannot_be_written_is_told(tmp_path, monkeypatch):
    def acquire(self):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(FileLock, "acquire", acquire)
    with pytest.raises(CapsNMTError, match=r"no file can be written there \(Permission denied\); choose another"):
        distill(Reverser(), request(tmp_path))


@pytest.mark.parametrize(
    ("asked", "known", "told"),
    [
        ("fr-ru", "en-de", "--languages fr-ru: the teacher translates en-de"),
        ("de-en", "en-de", "--languages de-en: the teacher translates en-de"),
        ("en-en", None, "en-en: both sides"),
        (None, "en-en", "en-en: both sides"),
    ],
)
def test_languages_that_cannot_be_are_refused_at_the_start(tmp_path, asked, known, told):
    teacher = Reverser()
    teacher.languages = known and parse_language_pair(known)
    with pytest.raises(CapsNMTError, match=told):
        distill(teacher, request(tmp_path, languages=asked and parse_language_pair(asked)))
    assert teacher.asked == []
    assert not (tmp_path / "out").exists()


def test_the_manifest_names_the_reference_where_it_is_used(tmp_path):
    assert distill(Reverser(), request(tmp_path))["reference"] is None
    asked = request(tmp_path, with_original=True)
    expected = {"file": str(asked.reference), "sha256": sha256_of_file(asked.reference)}
    assert distill(Reverser(), asked)["reference"] == expected


@pytest.fixture
def model(tmp_path):
    """A trained model of this project, to be changed at will."""
    return shutil.copytree(RELEASED / "capsnmt", tmp_path / "model")


def about(folder, **options):
    return ModelTeacher([folder], TranslateOptions(**options)).about()


def test_a_teacher_that_was_trained_again_is_another(model):
    before = about(model)
    assert about(model) == before
    weights = model / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    assert about(model) != before


def test_a_teacher_that_was_moved_is_the_same(model, tmp_path):
    source = tmp_path / "a.de"
    source.write_text("eins zwei\n")
    output = tmp_path / "out"
    asked = DistillRequest(source=source, output=output, filters=Filters(max_ratio=None, repetition=False))
    for number in range(2):
        manifest = verbs.distill(model, asked, engine="torch")
        assert manifest["teacher"]["models"] == [str(model)], "for the reader"
        model = model.rename(tmp_path / f"moved-{number}")
    assert is_distilled_by(model, source, source, output, best_of=1, with_original=False)
    weights = model / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    assert not is_distilled_by(model, source, source, output, best_of=1, with_original=False)


def test_lines_of_nothing_but_protected_spans_are_told_apart(model, tmp_path):
    source = tmp_path / "a.de"
    source.write_text("eins zwei\n1234\n\n7, 1234.\ndrei\n")
    asked = DistillRequest(source=source, output=tmp_path / "out", filters=Filters(max_ratio=None, repetition=False))
    verbs.distill(model, asked)
    found = [row[1:] for row in verdicts(tmp_path)]
    assert found == [["kept", "1"], ["protected", "1"], ["empty", ""], ["protected", "1"], ["kept", "1"]]


def test_a_journal_without_the_mark_of_protected_lines_is_read(tmp_path):
    journal = TranslationJournal(tmp_path / "translations-1-of-1.jsonl")
    journal.path.write_text('{}\n[["eins", -0.5]]\n[["1", null, true]]\n[]\n')
    assert list(journal.records()) == [[Candidate("eins", -0.5)], [Candidate("1", None, True)], []]


def test_a_model_without_weights_does_not_teach_through_torch(model):
    (model / "weights.safetensors").unlink()
    with pytest.raises(CapsNMTError, match=r"weights\.safetensors does not exist"):
        about(model)
    with pytest.raises(CapsNMTError, match=r"has only its exported runtime.*leave out engine torch"):
        ModelTeacher(["en-de"], TranslateOptions(), engine="torch").about()


def test_a_teacher_that_other_versions_export_is_the_same(model):
    weights = about(model, beam=5)
    verbs.export(model, precision="fp32")
    assert about(model, beam=5) == weights
    manifest = read_manifest(model)
    versions = {name: f"{version}.1" for name, version in manifest.made_with.items()}
    figures = {"max_log_prob_difference": manifest.verified["max_log_prob_difference"] + 1e-9}
    write_manifest(manifest.model_copy(update={"made_with": versions, "verified": figures}), model / "runtime")
    assert about(model, beam=5) == weights


def test_precision_and_decoding_make_another_teacher(model):
    before = about(model, beam=5)
    assert about(model, beam=4) != before
    assert about(model, beam=5, split=False) != before
    config = (model / "config.yaml").read_text()
    (model / "config.yaml").write_text(config.replace("length_penalty: 0.8", "length_penalty: 0.1"))
    assert about(model, beam=5) != before
    (model / "config.yaml").write_text(config)
    pairs = [("eins zwei", "one two")] * 2
    verbs.export(model, precision="int8", pairs=pairs, margins=Margins(bleu_loss=100.0, chrf_loss=100.0, speed_up=0.0))
    assert about(model, beam=5) != before


def test_subwords_are_for_ctranslate2_only(model):
    for models, command in (([], "cat"), ([model], None)):
        with pytest.raises(CapsNMTError, match=r"--subwords x\.spm: .* leave --subwords out"):
            open_teacher(models, command, TranslateOptions(), subwords=["x.spm"])


@pytest.mark.parametrize("where", [{"engine": "ray"}, {"device": "cuda"}, {"workers": 2}])
def test_only_our_models_can_be_placed(tmp_path, where):
    (tmp_path / "model.bin").touch()
    for models, command in (([], "cat"), ([tmp_path], None)):
        with pytest.raises(CapsNMTError, match="share the work by --shard"):
            open_teacher(models, command, TranslateOptions(), **where)


def test_a_journal_with_too_few_lines_makes_no_corpus(tmp_path):
    asked = request(tmp_path)
    manifest = distill(Reverser(), asked)
    journal = tmp_path / "out" / "translations-1-of-1.jsonl"
    journal.write_text("".join(journal.read_text().splitlines(keepends=True)[:-2]))
    with pytest.raises(CapsNMTError, match=r"translations of 21 lines, but .* has 23"):
        write_corpus(asked, LANGUAGES, {"source": manifest["source"]})


def test_two_processes_do_not_write_one_journal(tmp_path):
    asked = request(tmp_path)

    class Meddler(Reverser):
        def translate(self, lines):
            with pytest.raises(CapsNMTError, match="another process is writing"):
                distill(Reverser(), asked)
            return super().translate(lines)

    assert distill(Meddler(), asked)["pairs"] == 22


def test_counts_must_agree_and_references_be_there(tmp_path):
    asked = request(tmp_path)
    asked.reference.write_text("one\n")
    with pytest.raises(CapsNMTError, match=r"has 23 lines, .* has 1;"):
        distill(Reverser(), asked)
    without = DistillRequest(source=asked.source, output=tmp_path / "out", choose="bleu")
    with pytest.raises(CapsNMTError, match="--reference"):
        distill(Reverser(), without)


def test_the_original_pairs_follow(tmp_path):
    manifest = distill(Reverser(), request(tmp_path, with_original=True))
    assert (manifest["pairs"], manifest["original_pairs"]) == (45, 23)
    sources, targets = written(tmp_path)
    assert (sources[22], targets[22]) == ("line 0 of these", "Zeile 0 hier")


def test_choosing():
    candidates = [Candidate("the cat sat down", -1.0), Candidate("the cat sat on the mat", -2.0)]
    assert best_by_score(candidates, None) == 0
    assert best_by_bleu(candidates, "the cat sat on the mat") == 1
    assert best_by_bleu(candidates, "nothing of this") == 0  # of equals the first
    assert best_by_bleu([], "x") is best_by_score([], "x") is None


@pytest.mark.parametrize(
    ("source", "target", "score", "verdict"),
    [
        ("a b c", "x y z", -9.0, KEPT),
        ("a b c", " ", 0.0, "not_translated"),
        (" ", "x", 0.0, "empty"),
        ("a", "x y z w v", 0.0, KEPT),  # short sides have any ratio
        ("a", "x y z w v u", 0.0, "length_ratio"),
        (
            "I would like a cup of tea with milk and sugar",
            "我想要一杯加牛奶和糖的茶",
            0.0,
            KEPT,
        ),  # no spaces, many words
        ("茶", "I would like a cup of tea", 0.0, "length_ratio"),
        ("我想要一杯加牛奶和糖的茶", "我想要一杯加牛奶和糖的茶", 0.0, "copy"),
        ("a b c d e", "x x x x x x", 0.0, "repetition"),
        ("no no no no no no", "nein nein nein nein nein nein", 0.0, KEPT),
        ("New York City", "New York City", 0.0, KEPT),
        ("this is a copy", "this is a copy", 0.0, "copy"),
        ("a b c", "x y z", -11.0, "score"),
    ],
)
def test_filters(source, target, score, verdict):
    assert Filters(min_score=-10.0).verdict(source, Candidate(target, score)) == verdict


def test_filters_can_be_switched_off():
    off = Filters(max_ratio=None, repetition=False, copy=False)
    for source, target in (("a", "x " * 50), ("this is a copy", "this is a copy")):
        assert off.verdict(source, Candidate(target, None)) == KEPT


def test_a_command_teaches(tmp_path):
    manifest = distill(CommandTeacher("tr a-z A-Z"), request(tmp_path, languages=LANGUAGES))
    assert manifest["pairs"] == 22
    assert written(tmp_path)[1][3] == "LINE 3 OF THESE"


@pytest.mark.parametrize(
    ("command", "told"),
    [("false", "ended with 1"), ("head -n 2", "4 lines with 2"), ("true", "4 lines with 0"), ("cat", "--languages")],
)
def test_a_command_that_does_not_teach(tmp_path, command, told):
    known = None if command == "cat" else LANGUAGES
    with pytest.raises(CapsNMTError, match=told):
        distill(CommandTeacher(command), request(tmp_path, languages=known))


@pytest.mark.parametrize(
    ("answer", "told"),
    [("true", "1 lines with 0"), ("echo; echo", "1 lines with 2"), ("printf x", None), ("echo", None)],
)
def test_the_lines_of_a_command_are_counted_one_by_one_too(answer, told):
    blocks = CommandTeacher(answer).translate_blocks([["one line"]])
    if told is None:
        assert len(next(blocks)) == 1
    else:
        with pytest.raises(CapsNMTError, match=told):
            next(blocks)


def test_a_corpus_without_a_line_is_an_error_that_says_why(tmp_path):
    with pytest.raises(CapsNMTError, match=r"no line of .*a\.en was kept \(copy 22, empty 1\).*verdicts\.tsv"):
        distill(CommandTeacher("cat"), request(tmp_path, languages=LANGUAGES, with_original=True))
    assert len(verdicts(tmp_path)) == 23
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert distill(CommandTeacher("cat"), request(tmp_path, languages=LANGUAGES, filters=Filters(copy=False)))["pairs"]


def test_line_breaks_of_a_teacher_do_not_misalign(tmp_path):
    teacher = Reverser()
    teacher.translate = lambda lines: [[Candidate("eins\nzwei\r drei", None)] for _ in lines]
    distill(teacher, request(tmp_path))
    assert set(written(tmp_path)[1]) == {"eins zwei  drei"}
    assert len(list(TranslationJournal(tmp_path / "out" / "translations-1-of-1.jsonl").records())) == 23
