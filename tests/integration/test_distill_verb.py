"""distill through the command: a model's own translations become a corpus, also when it is killed on the way."""

from __future__ import annotations

import json
import shutil
import signal
import statistics
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import sacrebleu
import sentencepiece

from capsnmt.bench.peer_model import convert_folder

RELEASED = Path(__file__).parents[1] / "released" / "format-1"
UNFILTERED = ("--keep-repetition", "--keep-copies", "--max-ratio", 1000)
LONGER = {"steps": 150, "learning_rate": 0.01, "validate_every": 150, "checkpoint_every": 150, "log_every": 100}


@dataclass
class Distilled:
    """A distilled corpus as it lies in its folder."""

    folder: Path = field(compare=False)
    sources: list[str] = field(init=False)
    targets: list[str] = field(init=False)
    verdicts: list[list[str]] = field(init=False)  # verdict and candidate of every line of the source

    def __post_init__(self):
        names = ("train.de", "train.en", "verdicts.tsv")
        self.sources, self.targets, rows = (
            (self.folder / name).read_text(encoding="utf-8").split("\n")[:-1] for name in names
        )
        numbered = [row.split("\t") for row in rows[1:]]
        assert [row[0] for row in numbered] == [str(number) for number in range(1, len(rows))]
        self.verdicts = [row[1:] for row in numbered]


@pytest.fixture(scope="module")
def taught(write_recipe, run_here, tmp_path_factory):
    """A model that was trained long enough to say something."""
    model = {"system": "simple", "width": 32, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
    recipe = write_recipe(tmp_path_factory.mktemp("taught") / "recipe.yaml", model, **LONGER)
    ended = run_here("train", recipe, "--quiet")
    assert ended.code == 0, ended.err
    return ended.lines[-1]


@pytest.fixture
def command(taught, corpus, tmp_path):
    def make(*options):
        sides = ["-s", corpus / "train.de", "-r", corpus / "train.en"]
        return ["distill", taught, *sides, "-o", tmp_path / "out", "--quiet", *options]

    return make


@pytest.fixture
def distilled(corpus, run_here, tmp_path):
    """distilled(model or option, …) → the whole corpus, in a folder of its own."""

    def make(*models_and_options):
        sides = ["-s", corpus / "train.de", "-r", corpus / "train.en"]
        ended = run_here("distill", *models_and_options, *sides, "-o", tmp_path / "whole", "--quiet")
        assert ended.code == 0, ended.err
        return Distilled(tmp_path / "whole")

    return make


def test_the_corpus_is_what_translate_says(command, run_here, taught, corpus, tmp_path):
    ended = run_here(*command("--beam", 3, *UNFILTERED))
    assert ended.code == 0, ended.err
    lines = (corpus / "train.de").read_bytes()
    expected = run_here("translate", taught, "--beam", 3, stdin=lines).lines
    assert len(set(expected)) > 3
    assert (tmp_path / "out" / "train.en").read_text(encoding="utf-8").split("\n")[:-1] == [x for x in expected if x]
    assert json.loads(ended.lines[-1])["verdicts"]["kept"] == len([x for x in expected if x])


def test_the_device_reaches_the_teacher(command, run_here):
    ended = run_here(*command("--device", "cuda", "--engine", "onnx"))
    assert ended.code == 1
    assert "device cuda needs engine torch" in ended.err


def test_an_ensemble_teaches_what_it_translates(taught, folder, corpus, run_here, distilled):
    lines = (corpus / "train.de").read_bytes()
    both, first, second = (
        run_here("translate", *models, "--beam", 3, stdin=lines).lines
        for models in ([taught, folder], [taught], [folder])
    )
    assert both not in (first, second)
    assert distilled(taught, folder, "--beam", 3, *UNFILTERED).targets == [line for line in both if line]


def test_the_candidate_nearest_to_the_reference_is_chosen(taught, corpus, run_here, distilled):
    """sacreBLEU's own function is asked about the candidates that `translate` shows."""
    options = ["--beam", 4, "--n-best", 4]
    shown = run_here("translate", taught, *options, "--format", "json", stdin=(corpus / "train.de").read_bytes())
    references = (corpus / "train.en").read_text(encoding="utf-8").split("\n")[:-1]
    best = []
    for line, reference in zip(shown.lines, references, strict=True):
        texts = [candidate["text"] for candidate in json.loads(line)["hypotheses"]]
        scores = [sacrebleu.sentence_bleu(text, [reference]).score for text in texts]
        best.append((str(scores.index(max(scores)) + 1), texts[scores.index(max(scores))]))
    assert {place for place, _ in best} >= {"1", "2"}, "so choosing makes a difference"
    found = distilled(taught, *options, "--choose", "bleu", *UNFILTERED)
    assert [candidate for _, candidate in found.verdicts] == [place for place, _ in best]
    assert found.targets == [text for _, text in best if text.strip()]


def test_a_score_below_the_limit_leaves_its_line_out(taught, corpus, run_here, distilled):
    shown = run_here("translate", taught, "--beam", 3, "--format", "json", stdin=(corpus / "train.de").read_bytes())
    said = [(record["translation"], record["score"]) for record in map(json.loads, shown.lines)]
    limit = statistics.median(score for text, score in said if text)
    expected = ["not_translated" if not text else "score" if score < limit else "kept" for text, score in said]
    assert {"score", "kept"} <= set(expected)
    found = distilled(taught, "--beam", 3, "--min-score", limit, *UNFILTERED)
    assert [verdict for verdict, _ in found.verdicts] == expected
    assert found.targets == [text for (text, _), verdict in zip(said, expected, strict=True) if verdict == "kept"]


def test_shards_of_which_one_is_killed_join_to_the_whole(command, start, run_here, distilled, taught, tmp_path):
    whole = distilled(taught)
    for shard in ("3/3", "1/3"):
        assert run_here(*command("--shard", shard)).code == 0
    options = ("--batch-lines", 1, "--shard", "2/3")
    process = start(*command(*options), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    journal = tmp_path / "out" / "translations-2-of-3.jsonl"
    deadline_s = time.monotonic() + 500
    while not (journal.exists() and journal.read_bytes().count(b"\n") > 5):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = journal.read_bytes()
    assert run_here(*command(*options)).code == 0
    assert journal.read_bytes().startswith(kept[: kept.rfind(b"\n") + 1])
    assert not (tmp_path / "out" / "manifest.json").exists(), "a shard is no corpus"
    assert run_here(*command()).code == 0
    assert Distilled(tmp_path / "out") == whole


def test_a_shard_that_is_missing_is_told_and_made_by_the_joining(
    command, run_here, distilled, taught, tmp_path, caplog
):
    whole = distilled(taught)
    for shard in ("1/3", "3/3"):
        assert run_here(*command("--shard", shard)).code == 0
    refused = run_here(*command("--shard", "1/2"))
    assert refused.code == 1
    assert "--shard 1/2: " in refused.err
    assert "in 3 shards" in refused.err
    assert run_here(*command()).code == 0
    assert "shard 2/3 has 0 of its 20 lines" in caplog.text
    assert Distilled(tmp_path / "out") == whole


def test_a_ctranslate2_model_teaches(run_here, tmp_path):
    model = tmp_path / "converted"
    convert_folder(RELEASED / "transformer", model, num_positions=64, int8=False)
    shutil.copy(RELEASED / "transformer" / "subwords.model", model / "sentencepiece.model")
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(model / "sentencepiece.model"))
    tokens = [pieces.id_to_piece(id_) for id_ in range(pieces.get_piece_size())]
    (model / "shared_vocabulary.json").write_text(json.dumps(tokens), encoding="utf-8")
    source = tmp_path / "numbers.de"
    numbers = (RELEASED / "corpus" / "train.de").read_text(encoding="utf-8").split("\n")[:40]
    lines = ["", *(line for line in numbers if not set(line) & set("0123456789"))]  # digits are protected in ours
    source.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    ask = ["distill", model, "-s", source, "-o", tmp_path / "out", "--beam", 1, "--quiet", *UNFILTERED]
    assert "give --languages" in run_here(*ask).err
    ended = run_here(*ask, "--languages", "de-en")
    assert ended.code == 0, ended.err
    ours = run_here("translate", RELEASED / "transformer", "--beam", 1, "--no-split", stdin=source.read_bytes()).lines
    assert len(set(ours)) > 10
    assert Distilled(tmp_path / "out").targets == [line for line in ours if line]
    assert Distilled(tmp_path / "out").verdicts[0] == ["empty", ""]


# A line of the source, what the command makes of it, and its verdict.
ANSWERS = [
    ("eins zwei drei", "one two three", "kept"),
    ("eins", "one two three four five six", "length_ratio"),
    ("immer und immer und wieder", "again and again and again and again and again", "repetition"),
    ("das ist eine kopie", "das ist eine kopie", "copy"),
    ("New York City", "New York City", "kept"),
    ("stumm", "", "not_translated"),
    ("", "", "empty"),
    ("zwei", "two", "kept"),
]


@pytest.fixture
def teach(run_here, tmp_path):
    """teach(options…) → how a command that knows the answers by heart has taught."""
    rules = "".join(f"s/^{source}$/{target}/;t\n" for source, target, _ in ANSWERS if source)
    (tmp_path / "rules.sed").write_text(rules, encoding="utf-8")
    (tmp_path / "source.de").write_text("".join(f"{source}\n" for source, _, _ in ANSWERS), encoding="utf-8")
    (tmp_path / "reference.en").write_text("".join(f"r{n}\n" for n in range(len(ANSWERS))), encoding="utf-8")

    def run(*options, command=f"sed -f {tmp_path / 'rules.sed'}"):
        sides = ["-s", tmp_path / "source.de", "-r", tmp_path / "reference.en", "--languages", "de-en"]
        return run_here("distill", "--command", command, *sides, "-o", tmp_path / "out", "--quiet", *options)

    return run


@pytest.mark.parametrize(
    ("options", "kept_too"),
    [
        ((), None),
        (("--max-ratio", 6), "length_ratio"),
        (("--keep-repetition",), "repetition"),
        (("--keep-copies",), "copy"),
    ],
)
def test_each_filter_leaves_out_its_lines_and_says_so(options, kept_too, teach, tmp_path):
    ended = teach(*options)
    assert ended.code == 0, ended.err
    expected = ["kept" if verdict == kept_too else verdict for _, _, verdict in ANSWERS]
    found = Distilled(tmp_path / "out")
    assert [verdict for verdict, _ in found.verdicts] == expected
    pairs = [each[:2] for each, verdict in zip(ANSWERS, expected, strict=True) if verdict == "kept"]
    assert list(zip(found.sources, found.targets, strict=True)) == pairs
    assert json.loads(ended.lines[-1])["verdicts"] == dict(Counter(expected))


def test_the_original_pairs_follow_the_distilled_ones(teach, tmp_path):
    assert teach("--with-original").code == 0
    found = Distilled(tmp_path / "out")
    assert found.sources == ["eins zwei drei", "New York City", "zwei", *(source for source, _, _ in ANSWERS)]
    assert found.targets == ["one two three", "New York City", "two", *(f"r{n}" for n in range(len(ANSWERS)))]


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("sed 1d", "answered 3 lines with 2"),
        ("cat; echo more", "answered 3 lines with 4"),
        ("kill -9 $$", "ended with -9"),
        ("exit 3", "ended with 3"),
    ],
)
def test_a_command_that_fails_on_the_way_loses_nothing(fault, told, teach, tmp_path):
    """It fails at its second block; mended, it is not asked about the first one again."""
    script = tmp_path / "teacher.sh"
    knows = f"tee -a {tmp_path / 'asked'} | sed -f {tmp_path / 'rules.sed'}"
    script.write_text(f"if [ -e {tmp_path / 'asked'} ]; then {fault}; else {knows}; fi\n", encoding="utf-8")
    options = {"command": f"exec sh {script}"}
    ended = teach("--batch-lines", 3, **options)
    assert ended.code == 1
    assert told in ended.err
    assert not (tmp_path / "out" / "manifest.json").exists()
    script.write_text(f"{knows}\n", encoding="utf-8")
    assert teach("--batch-lines", 3, **options).code == 0
    assert (tmp_path / "asked").read_text(encoding="utf-8") == (tmp_path / "source.de").read_text(encoding="utf-8")
    assert [verdict for verdict, _ in Distilled(tmp_path / "out").verdicts] == [verdict for _, _, verdict in ANSWERS]


def test_a_command_that_failed_at_once_may_be_mended(teach, tmp_path):
    assert "ended with 127" in teach(command="no-such-command").err
    assert teach().code == 0
    again = teach(command="cat")
    assert again.code == 1, "another teacher must not go on with what is translated"
    assert "teacher.command: " in again.err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--choose", "bleu"), "give --n-best"),
        (("--choose", "bleu", "--command", "cat"), "neither --choose bleu nor --min-score"),
        (("--min-score", "-1", "--command", "cat"), "neither --choose bleu nor --min-score"),
        (("--beam", "8", "--command", "cat"), "leave out --beam, --n-best, --split and --no-split"),
        (("--n-best", "5", "--command", "cat"), "leave out --beam, --n-best, --split and --no-split"),
        (("--no-split", "--command", "cat"), "leave out --beam, --n-best, --split and --no-split"),
        (("--subwords", "x.spm", "--command", "cat"), "leave --subwords out"),
        (("--subwords", "x.spm"), "leave --subwords out"),
        (("--beam", "4", "--n-best", "8"), "--beam 4 gives 4 candidates at the most, --n-best 8 wants more"),
    ],
)
def test_options_that_would_do_nothing_are_refused(options, told, command, run_here):
    verb, model, *rest = command(*options)
    ended = run_here(verb, *([] if "--command" in options else [model]), *rest)
    assert ended.code == 1
    assert told in ended.err


def test_one_teacher_at_a_time(command, run_here):
    ended = run_here(*command("--command", "cat"))
    assert ended.code == 1
    assert "one teacher" in ended.err
