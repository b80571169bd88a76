"""translate and evaluate, through the command."""

from __future__ import annotations

import json
import select
import shutil
import subprocess

import numpy as np
import pytest

import capsnmt
from capsnmt.decoding.scoring import score
from capsnmt.decoding.search import beam_search
from capsnmt.decoding.translation import TranslateOptions

LINES = ["eins zwei", "", "drei", "   ", "vier fünf sechs", "völlig unbekannt: Ω"]
INPUT = "".join(line + "\n" for line in LINES).encode()


def test_one_line_in_one_line_out(system, trained, tiny_config, run_here):
    ended = run_here("translate", trained(system, tiny_config(system)), stdin=INPUT)
    assert ended.code == 0, ended.err
    assert len(ended.lines) == len(LINES)
    assert ended.lines[1] == ""
    assert ended.lines[3] == "   "
    assert ended.err == ""


def test_the_real_command_says_the_same(folder, run_here, run_apart):
    apart = run_apart("translate", folder, stdin=INPUT)
    assert apart.code == 0, apart.err
    assert apart.err == ""
    assert apart.out == run_here("translate", folder, stdin=INPUT).out


def test_files_instead_of_pipes(folder, run_here, tmp_path):
    (tmp_path / "in.txt").write_bytes(INPUT)
    ended = run_here("translate", folder, "-i", tmp_path / "in.txt", "-o", tmp_path / "out.txt")
    assert (ended.code, ended.out) == (0, b"")
    assert (tmp_path / "out.txt").read_bytes() == run_here("translate", folder, stdin=INPUT).out


def test_no_input_no_output(folder, run_here):
    ended = run_here("translate", folder, stdin=b"")
    assert (ended.code, ended.out, ended.err) == (0, b"", "")


def test_a_last_line_without_an_end(folder, run_here):
    assert (
        run_here("translate", folder, stdin=b"eins\nzwei").out
        == run_here("translate", folder, stdin=b"eins\nzwei\n").out
    )


def test_bad_bytes_do_not_shift_the_lines(folder, run_here):
    ended = run_here("translate", folder, stdin=b"eins\n\xff\xfe zwei\r\n\n\xe2\x80\xa8\ndrei\n")
    assert ended.code == 0, ended.err
    assert len(ended.lines) == 5
    assert ended.lines[0] == run_here("translate", folder, stdin=b"eins\n").lines[0]
    assert ended.lines[4] == run_here("translate", folder, stdin=b"drei\n").lines[0]


@pytest.mark.parametrize("batch_lines", [1, 2, 64])
def test_batches_change_nothing(folder, run_here, batch_lines):
    found = run_here("translate", folder, "--batch-lines", batch_lines, stdin=INPUT)
    assert found.out == run_here("translate", folder, stdin=INPUT).out


def test_json(folder, run_here):
    plain = run_here("translate", folder, stdin=INPUT).lines
    records = [json.loads(line) for line in run_here("translate", folder, "--format", "json", stdin=INPUT).lines]
    assert [record["line"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert [record["source"] for record in records] == LINES
    assert [record["translation"] for record in records] == plain
    empty = [False, True, False, True, False, False]
    assert [record["status"] == "empty" for record in records] == empty
    assert {record["status"] for record in records} <= {"ok", "empty", "low_confidence", "repaired"}
    assert [record["score"] is None for record in records] == empty
    assert all((record["score"] is None) == (record["status"] == "empty") for record in records)


def test_nbest(folder, run_here):
    options = ["--format", "nbest", "--n-best", "3"]
    rows = [line.split(" ||| ") for line in run_here("translate", folder, *options, stdin=b"eins\nzwei drei\n").lines]
    assert [row[0] for row in rows] == ["0", "0", "0", "1", "1", "1"]
    for number in ("0", "1"):
        scores = [float(score) for line, _, score in rows if line == number]
        assert scores == sorted(scores, reverse=True)
    assert rows[0][1] == run_here("translate", folder, stdin=b"eins\n").lines[0]


def test_nbest_in_json(folder, run_here):
    ended = run_here("translate", folder, "--format", "json", "--n-best", 2, stdin=b"eins\n")
    (record,) = (json.loads(line) for line in ended.lines)
    assert len(record["hypotheses"]) == 2
    assert record["hypotheses"][0] == {"text": record["translation"], "score": record["score"]}


def test_more_than_one_translation_needs_a_format(folder, run_here):
    ended = run_here("translate", folder, "--n-best", 2, stdin=b"eins\n")
    assert ended.code == 1
    assert "--format json or nbest" in ended.err
    assert ended.out == b""


def test_more_translations_than_the_beam(folder, run_here):
    ended = run_here("translate", folder, "--n-best", 4, "--beam", 2, "--format", "json", stdin=b"eins\n")
    assert ended.code == 1
    assert "beam" in ended.err


def test_an_unknown_format(folder, run_here):
    ended = run_here("translate", folder, "--format", "xml", stdin=b"eins\n")
    assert ended.code != 0
    assert "nbest" in ended.err


@pytest.mark.parametrize("option", ["--beam", "--batch-lines", "--n-best"])
def test_zero_is_wrong_usage(folder, run_here, option):
    assert run_here("translate", folder, option, 0, stdin=b"eins\n").code == 2


def test_an_unknown_device_is_a_clean_error(folder, run_here):
    ended = run_here("translate", folder, "--device", "abacus", stdin=b"eins\n")
    assert ended.code in (1, 2)
    assert "abacus" in ended.err


def test_the_options_reach_the_search(folder, run_here):
    lines = b"eins zwei drei vier\nneun\n"
    translator = capsnmt.Translator(folder)
    for beam, penalty in ((1, 0.0), (2, 3.0)):
        ended = run_here(
            "translate", folder, "--beam", beam, "--length-penalty", penalty, "--format", "json", stdin=lines
        )
        options = TranslateOptions(beam=beam, length_penalty=penalty)
        for line, expected in zip(
            ended.lines, translator.translate_batch(lines.decode().splitlines(), options), strict=True
        ):
            assert json.loads(line)["translation"] == expected.text
            assert json.loads(line)["score"] == pytest.approx(expected.score, abs=1e-4)


def test_sampling(folder, run_here):
    def sample(*options):
        return run_here("translate", folder, "--sample", *options, stdin=b"eins zwei drei vier\n" * 6)

    first = sample("--seed", 3)
    assert first.code == 0, first.err
    assert len(first.lines) == 6
    assert len(set(first.lines)) > 1  # a line of its own each, though the sources are the same
    assert sample("--seed", 3).out == first.out
    assert sample("--seed", 4).out != first.out
    assert sample("--seed", 3, "--batch-lines", 1).out == first.out
    greedy = run_here("translate", folder, "--beam", 1, stdin=b"eins zwei drei vier\n").lines
    assert sample("--top-k", 1).lines == greedy * 6


@pytest.mark.parametrize("wrong", [("--temperature", 0), ("--top-p", 0)])
def test_sampling_without_sense(folder, run_here, wrong):
    assert run_here("translate", folder, "--sample", *wrong, stdin=b"eins\n").code in (1, 2)


def test_a_prefix(folder, run_here):
    ended = run_here("translate", folder, "--prefix", "seven one", stdin=b"eins zwei\n\ndrei\n")
    assert ended.code == 0, ended.err
    assert ended.lines[0].startswith("seven one")
    assert ended.lines[1] == ""
    assert ended.lines[2].startswith("seven one")


def read_line_within(process, seconds):
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    assert ready, "no answer: the command waits for more input, or keeps its output to itself"
    return process.stdout.readline()


def test_each_line_is_answered_before_the_next_is_sent(folder, start, run_here):
    expected = run_here("translate", folder, stdin=INPUT).out.splitlines(keepends=True)
    process = start("translate", folder, bufsize=0)
    try:
        for number, line in enumerate(INPUT.splitlines(keepends=True)):
            process.stdin.write(line)
            assert read_line_within(process, 40 if number == 0 else 10) == expected[number]
        process.stdin.close()
        assert process.wait(timeout=20) == 0
        assert process.stderr.read() == b""
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("way", ["pipe", "file"])
def test_a_reader_that_had_enough_hears_no_complaint(folder, start, tmp_path, way):
    """As in `capsnmt translate … | head -1`."""
    path = tmp_path / "many.txt"
    path.write_bytes(b"eins zwei drei\n" * 20_000)
    with path.open("rb") as file:
        arguments = ["-i", path] if way == "file" else []
        process = start("translate", folder, "--beam", 1, "--batch-lines", 8, *arguments, stdin=file)
        assert process.stdout.readline()
        process.stdout.close()
        err = process.stderr.read()
        code = process.wait(timeout=30)
    assert err == b""
    assert code == 0


def test_a_missing_model_folder_is_one_clean_line(run_apart, tmp_path):
    ended = run_apart("translate", tmp_path / "nowhere", stdin=b"eins\n")
    assert ended.code == 1
    assert ended.out == b""
    assert len(ended.err.splitlines()) == 1
    assert "nowhere is not a model folder" in ended.err
    assert "Traceback" not in ended.err


def test_files_that_cannot_be_opened(folder, run_here, tmp_path):
    ended = run_here("translate", folder, "-i", tmp_path / "nothing.txt")
    assert ended.code == 1
    assert "nothing.txt" in ended.err
    ended = run_here("translate", folder, "-o", tmp_path / "no" / "folder.txt", stdin=b"eins\n")
    assert ended.code == 1
    assert "folder.txt" in ended.err


def test_python(folder, run_here):
    lines = [line for line in LINES if line.strip()]
    expected = run_here("translate", folder, stdin="".join(line + "\n" for line in lines).encode()).lines
    translator = capsnmt.Translator(folder)
    assert [translator.translate(line) for line in lines] == expected
    assert [done.text for done in capsnmt.translate(folder, lines)] == expected
    assert (translator.languages.source, translator.languages.target) == ("de", "en")


# ---------------------------------------------------------------- evaluate


def test_evaluate_a_model(folder, corpus, run_here, tmp_path):
    report, saved = tmp_path / "report.json", tmp_path / "out.txt"
    test = ["-s", corpus / "test.de", "-r", corpus / "test.en"]
    ended = run_here("evaluate", folder, *test, "--bootstrap", 10, "--json", report, "--save", saved)
    assert ended.code == 0, ended.err
    values = json.loads(report.read_text(encoding="utf-8"))
    assert values["num_sentences"] == 6
    assert (values["source_language"], values["target_language"]) == ("de", "en")
    assert all(score["signature"] for score in values["scores"])
    assert "BLEU" in ended.out.decode()
    outputs = saved.read_text(encoding="utf-8").splitlines()
    assert outputs == run_here("translate", folder, "-i", corpus / "test.de").lines
    # The same outputs as a file get the same scores.
    again = run_here(
        "evaluate",
        *test,
        "--hypotheses",
        saved,
        "--languages",
        "de-en",
        "--bootstrap",
        10,
        "--json",
        tmp_path / "b.json",
    )
    assert again.code == 0, again.err
    assert json.loads((tmp_path / "b.json").read_text(encoding="utf-8")) == values


@pytest.fixture
def partner(trained, tiny_config):
    """A model of another system with the same vocabulary."""
    return trained("transformer", tiny_config("transformer"))


def test_several_folders_are_an_ensemble(folder, partner, run_here):
    one, other, both = (capsnmt.Translator(given) for given in (folder, partner, [folder, partner]))
    sources = [both.pipeline.source_ids(line) for line in ("eins zwei", "drei")]
    targets = [both.pipeline.target_prefix_ids(line) for line in ("one two", "three")]
    for a, b, mean in zip(*(score(each.engine, sources, targets) for each in (one, other, both)), strict=True):
        assert np.exp(mean) == pytest.approx((np.exp(a) + np.exp(b)) / 2, abs=1e-6)  # token by token
    twice = run_here("translate", folder, folder, stdin=INPUT)
    assert twice.code == 0, twice.err
    assert twice.out == run_here("translate", folder, stdin=INPUT).out
    assert len(run_here("translate", folder, partner, stdin=INPUT).lines) == len(LINES)


def test_a_coverage_penalty_changes_scores_of_gnmt_alone(folder, trained, tiny_config, run_here):
    gnmt = trained("gnmt", tiny_config("gnmt"))
    line, scores = b"acht neun sieben sechs vier drei eins zwei acht neun\n", []
    for penalty in (0, 5):
        options = ["--beam", 1, "--max-length-ratio", 0.1, "--coverage-penalty", penalty, "--format", "json"]
        scores.append(json.loads(run_here("translate", gnmt, *options, stdin=line).lines[0])["score"])
    assert scores[1] < scores[0]
    ended = run_here("translate", folder, "--coverage-penalty", 0.2, stdin=INPUT)
    assert ended.code == 1
    assert "coverage_penalty 0.2 needs a system that keeps count of its attention" in ended.err


def test_evaluate_an_ensemble(folder, partner, corpus, run_here, tmp_path):
    test = ["-s", corpus / "test.de", "-r", corpus / "test.en", "--bootstrap", 0]
    ended = run_here("evaluate", folder, partner, *test, "--save", tmp_path / "saved", "--json", "-")
    assert ended.code == 0, ended.err
    with (corpus / "test.de").open("rb") as lines:
        expected = run_here("translate", folder, partner, stdin=lines.read())
    assert (tmp_path / "saved").read_bytes() == expected.out


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("source: de", "source: nl", "because languages differs"),
        ("unicode: NFC", "unicode: none", "because text.normalise differs"),
    ],
)
def test_an_ensemble_needs_models_that_read_the_same(folder, partner, run_here, tmp_path, old, new, message):
    other = shutil.copytree(partner, tmp_path / "other")
    config = (other / "config.yaml").read_text(encoding="utf-8")
    assert old in config
    (other / "config.yaml").write_text(config.replace(old, new, 1), encoding="utf-8")
    ended = run_here("translate", folder, other, stdin=INPUT)
    assert ended.code == 1
    assert message in ended.err


def test_an_ensemble_needs_one_vocabulary(folder, write_recipe, tiny_config, run_here, tmp_path):
    path = write_recipe(tmp_path / "recipe.yaml", tiny_config("simple"))
    changes = ["--set", "text.subwords.vocabulary=50", "--set", f"data.store={tmp_path / 'store'}"]
    ended = run_here("train", path, "--quiet", *changes)
    assert ended.code == 0, ended.err
    ended = run_here("translate", folder, ended.lines[-1], stdin=INPUT)
    assert ended.code == 1
    assert "because the vocabulary differs" in ended.err
    with pytest.raises(capsnmt.CapsNMTError, match="at least one model folder"):
        capsnmt.Translator([])


def test_evaluate_the_reference_itself(corpus, run_here):
    test = ["-s", corpus / "test.de", "-r", corpus / "test.en"]
    ended = run_here(
        "evaluate", *test, "--hypotheses", corpus / "test.en", "--languages", "de-en", "--json", "-", "--bootstrap", 0
    )
    assert ended.code == 0, ended.err
    values = json.loads(ended.out)  # nothing but JSON on stdout
    assert values["scores"][0]["value"] == pytest.approx(100.0)
    assert values["length_ratio"] == 1.0


def test_an_outside_systems_output_is_a_row_with_its_name_and_origin(corpus, run_here, tmp_path):
    """Such as the phrase-based winner of WMT14, whose translations are a file and no model."""
    test = ["-s", corpus / "test.de", "-r", corpus / "test.en", "--hypotheses", corpus / "test.en", "--bootstrap", 0]
    row = ["--name", "Buck et al. [b]", "--origin", "submission 4711 of WMT14"]
    ended = run_here("evaluate", *test, "--languages", "de-en", *row, "--json", tmp_path / "row.json")
    assert ended.code == 0, ended.err
    values = json.loads((tmp_path / "row.json").read_text(encoding="utf-8"))
    assert (values["system"], values["origin"]) == ("Buck et al. [b]", "submission 4711 of WMT14")
    assert all(score["signature"] for score in values["scores"])
    assert "Buck et al. [b]: de → en" in ended.out.decode()
    assert "translations: submission 4711 of WMT14" in ended.out.decode()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "model folder"),
        (["--hypotheses", "test.en"], "--languages"),
        (["--hypotheses", "test.en", "--languages", "de-en", "--beam", "4"], "translated already"),
        (["--origin", "a citation"], "--hypotheses"),
        (["--hypotheses", "test.en", "--languages", "de"], "en-de"),
        (["--hypotheses", "test.en", "--languages", "d-e"], "en-de"),
        (["--hypotheses", "train.en", "--languages", "de-en"], "60"),
        (["--hypotheses", "nothing.en", "--languages", "de-en"], "nothing.en"),
    ],
)
def test_evaluate_says_what_it_needs(corpus, run_here, monkeypatch, arguments, message):
    monkeypatch.chdir(corpus)
    ended = run_here("evaluate", "-s", "test.de", "-r", "test.en", *arguments)
    assert ended.code == 1
    assert message in ended.err


@pytest.mark.parametrize("option", ["--json", "--save"])
def test_evaluate_into_a_folder_that_is_not_there(corpus, run_here, tmp_path, option):
    test = [
        "-s",
        corpus / "test.de",
        "-r",
        corpus / "test.en",
        "--hypotheses",
        corpus / "test.en",
        "--languages",
        "de-en",
    ]
    ended = run_here("evaluate", *test, "--bootstrap", 0, option, tmp_path / "no" / "file")
    assert ended.code == 1
    assert "file" in ended.err


def test_evaluate_needs_both_sides(run_here, corpus):
    assert run_here("evaluate", "-s", corpus / "test.de").code == 2


def test_python_evaluate(folder, corpus):
    sources, references = ((corpus / f"test.{language}").read_text("utf-8").splitlines() for language in ("de", "en"))
    report, outputs = capsnmt.evaluate(sources, references, folder=folder, num_bootstrap=0)
    assert report.num_sentences == len(outputs) == 6


def test_the_commands_pipe_into_each_other(folder, start):
    """The shell's own pipe, lines counted on the other side."""
    process = start("translate", folder, "--beam", 1)
    counter = subprocess.Popen(["wc", "-l"], stdin=process.stdout, stdout=subprocess.PIPE)
    process.stdin.write(b"eins\n\nzwei drei\n" * 50)
    process.stdin.close()
    assert int(counter.communicate(timeout=40)[0]) == 150
    assert process.wait(timeout=10) == 0


def test_score_is_the_searchs_own(folder, run_here, tmp_path):
    sources = ["eins zwei drei", "vier", "neun acht sieben", "zwei zwei", "null fünf"]
    translator = capsnmt.Translator(folder)
    text = translator.text
    ids = {source: text.source_ids(source) for source in sources}
    found = beam_search(
        translator.engine,
        list(ids.values()),
        beam=3,
        num_best=3,
        length_penalty=0.0,
        length_penalty_type="wu",
        max_lengths=[12] * len(sources),
    )
    pairs = [(source, one) for source, hypotheses in zip(sources, found, strict=True) for one in hypotheses]
    assert len(pairs) > len(sources)

    def forced(outputs):
        scored = score(translator.engine, [ids[source] for source, _ in pairs], outputs)
        return [log_probs.sum() for log_probs in scored]

    searched = [hypothesis.log_prob for _, hypothesis in pairs]
    assert forced([hypothesis.ids for _, hypothesis in pairs]) == pytest.approx(searched, abs=1e-4)

    # The command is given texts, and a text can be spelt with other subwords than those that the search chose.
    outputs = [text.target_text(hypothesis.ids) for _, hypothesis in pairs]
    (tmp_path / "source").write_text("".join(f"{source}\n" for source, _ in pairs), encoding="utf-8")
    (tmp_path / "target").write_text("".join(f"{output}\n" for output in outputs), encoding="utf-8")
    ended = run_here("score", folder, "-s", tmp_path / "source", "-t", tmp_path / "target")
    assert ended.code == 0, ended.err
    said = list(map(float, ended.lines))
    spelt = [text.target_prefix_ids(output) for output in outputs]
    assert said == pytest.approx(forced(spelt), abs=1e-4)
    for one, spelling, (_, hypothesis) in zip(said, spelt, pairs, strict=True):
        if spelling == hypothesis.ids:
            assert one == pytest.approx(hypothesis.log_prob, abs=1e-4)


def test_score_needs_a_translation_for_every_source(folder, run_here, tmp_path):
    (tmp_path / "two").write_text("a\nb\n")
    (tmp_path / "one").write_text("a\n")
    ended = run_here("score", folder, "-s", tmp_path / "two", "-t", tmp_path / "one")
    assert ended.code == 1
    assert "2 sources but 1 translations" in ended.err


def test_a_glossary_file(folder, run_here, tmp_path):
    (tmp_path / "terms.tsv").write_text("drei\tTHREE\nOtto\n", encoding="utf-8")
    ended = run_here("translate", folder, "--glossary", tmp_path / "terms.tsv", stdin=b"eins drei Otto zwei\n")
    assert ended.code == 0
    assert "THREE" in ended.lines[0]
    assert "Otto" in ended.lines[0]
