"""A suite file becomes runs, results become tables; typos are found before anything is trained."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from capsnmt import __version__
from capsnmt.analysis import figures
from capsnmt.analysis.evidence import Evidence
from capsnmt.analysis.records import counts_of_sentences, curve, read_record, settings_of, write_record
from capsnmt.analysis.reproduction import absent_from, cost_of, plan_of, reproduce
from capsnmt.analysis.results import Spread, collect, compare
from capsnmt.analysis.routing_map import RoutingMap
from capsnmt.analysis.running import run_suite
from capsnmt.analysis.runs import runs_of
from capsnmt.analysis.sections import SECTIONS
from capsnmt.analysis.suite import RowConfig, SectionConfig, SuiteConfig, chosen_rows, read_suite
from capsnmt.cli import main
from capsnmt.config import FORMAT_VERSION, FolderConfig, VocabularyRecord, dump_yaml, load_recipe
from capsnmt.errors import CapsNMTError
from capsnmt.runtime.manifest import read_manifest

RECIPE = "recipes/demo/capsnmt.yaml"
SWEPT = {"recipe": RECIPE, "over": {"model.num_iterations": [1, 2]}}
RELEASED = Path(__file__).parents[2] / "released" / "format-1"


def suite_of(tmp_path, **changes):
    values = {
        "title": "two rows",
        "output": str(tmp_path / "runs"),
        "seeds": [1, 2],
        "set": {"training.steps": 10},
        "rows": {
            "plain": {"recipe": RECIPE},
            "wide": {"recipe": RECIPE, "set": {"model.width": 64, "training.steps": 20}, "seeds": [7]},
        },
        **changes,
    }
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    return read_suite(tmp_path / "suite.yaml")


def test_the_first_seed_of_every_row_comes_before_the_second(tmp_path):
    runs = runs_of(suite_of(tmp_path))
    assert [run.name for run in runs] == ["plain-s1", "wide-s7", "plain-s2"]


def test_a_row_changes_the_suite_and_the_suite_changes_the_recipe(tmp_path):
    plain, wide, _ = (run.config() for run in runs_of(suite_of(tmp_path)))
    assert (plain.training.steps, wide.training.steps) == (10, 20)
    assert (wide.model["width"], wide.training.seed) == (64, 7)
    assert plain.output != wide.output


def test_several_processes_train_and_teach_together_and_one_evaluates(tmp_path):
    rows = {"teacher": {"recipe": RECIPE}, "student": {"recipe": RECIPE, "distilled_from": "teacher"}}
    eight = {"processes": 8, "set": {"training.accumulate": 8}, "seeds": [1], "rows": rows}
    teacher, student = runs_of(suite_of(tmp_path, **eight))
    together = ["torchrun", "--standalone", "--nproc-per-node", "8", "-m", "capsnmt"]
    told = [command.told for command in (*teacher.commands(), *student.teaching())]
    assert [words[: words.index("capsnmt") + 2] for words in told] == [
        ["capsnmt", "prepare"],
        [*together, "train"],
        ["capsnmt", "evaluate"],
        ["capsnmt", "evaluate"],
        [*together, "distill"],
        ["capsnmt", "distill"],
    ]
    assert told[0][2:] == told[1][7:], "what is prepared is what is trained on"
    assert told[4][6:] == told[5][1:], "the last one joins what the eight have translated"
    assert [command.threads_each(16) for command in teacher.training()] == [16, 2]
    one, _ = runs_of(read_suite(tmp_path / "suite.yaml", processes=1))
    assert [command.told[:2] for command in one.training()] == [["capsnmt", "train"]]


def test_more_processes_than_batches_of_an_update_are_refused(tmp_path):
    suite = suite_of(tmp_path, processes=3, set={"training.accumulate": 2})
    with pytest.raises(CapsNMTError, match=r"plain-s1: 3 processes .* the 2 batches of its training\.accumulate"):
        run_suite(suite, say=lambda text: None)
    assert not (tmp_path / "runs").exists()


def test_a_sweep_is_its_own_rows_and_not_those_of_a_like_name(tmp_path):
    rows = {"caps": {"recipe": RECIPE, "over": {"model.num_iterations": [1, 2]}}, "caps-wide": {"recipe": RECIPE}}
    suite = suite_of(tmp_path, rows=rows, seeds=[1])
    section = SectionConfig(kind="table", title="", rows=["caps"])
    runs = runs_of(suite)
    write_records(runs, {run.name: 20.0 for run in runs})
    found = Evidence(suite, runs, None, lambda *_: []).rows(section)
    assert list(found) == ["caps-1", "caps-2"]


def test_a_row_that_is_trained_anyway_is_a_point_of_a_sweep(tmp_path):
    rows = {
        "grid": {"recipe": RECIPE, "over": {"model.num_iterations": [1, 2, 3], "model.num_capsules": [[2], [4]]}},
        "iterations": {"recipe": RECIPE, "over": {"model.num_iterations": [1, 4]}},
        "plain": {"recipe": RECIPE},  # three of them
    }
    section = {"kind": "sweep", "title": "", "rows": ["grid", "iterations"], "points": {"iterations": "plain"}}
    suite = suite_of(tmp_path, rows=rows, seeds=[1], report=[section])
    runs = runs_of(suite)
    write_records(runs, {run.name: float(number) for number, run in enumerate(runs)})
    _, table, *_ = SECTIONS["sweep"](suite.report[0], Evidence(suite, runs, None, lambda *_: []))
    assert table.headings == ["num_iterations", "num_capsules = 2", "num_capsules = 4", "iterations"]
    assert table.rows == [
        ["1", "0.00", "1.00", "6.00"],
        ["2", "2.00", "3.00", ""],
        ["3", "4.00", "5.00", "8.00"],
        ["4", "", "", "7.00"],
    ]


@pytest.mark.parametrize("points", [{"iterations": "wide"}, {"grid": "plain"}, {"plain": "iterations"}])
def test_a_point_of_a_sweep_differs_in_nothing_else(tmp_path, points):
    rows = {
        "grid": {"recipe": RECIPE, "over": {"model.num_iterations": [1, 2], "model.num_capsules": [[2], [4]]}},
        "iterations": {"recipe": RECIPE, "over": {"model.num_iterations": [1, 4]}},
        "plain": {"recipe": RECIPE},
        "wide": {"recipe": RECIPE, "set": {"model.width": 64}},
    }
    section = {"kind": "sweep", "title": "Figure", "rows": ["iterations"], "points": points}
    with pytest.raises(CapsNMTError, match="must be swept over one key and differ in nothing else"):
        suite_of(tmp_path, rows=rows, report=[section])


def test_the_page_on_suites_has_every_key_and_an_example_that_can_be_planned(tmp_path):
    page = (Path(__file__).parents[3] / "docs" / "SUITES.md").read_text(encoding="utf-8")
    keys = {key for config in (SuiteConfig, RowConfig, SectionConfig) for key in config.model_fields}
    unexplained = [key for key in (keys | SECTIONS.keys()) - {"kind"} if f"`{key}" not in page]
    assert unexplained == []
    example = tmp_path / "mine.yaml"
    example.write_text(page.partition("```yaml\n")[2].partition("```")[0], encoding="utf-8")
    plan = plan_of(read_suite(example))
    assert {step["run"] for step in plan} >= {"teacher-s1", "student-s2", "size-16-s1"}


def test_an_unknown_key_is_an_error_before_anything_runs(tmp_path):
    with pytest.raises(CapsNMTError, match="rowz"):
        suite_of(tmp_path, rowz={})
    suite = suite_of(tmp_path, rows={"plain": {"recipe": RECIPE, "set": {"training.stepz": 1}}})
    with pytest.raises(CapsNMTError, match="stepz"):
        run_suite(suite, say=lambda text: None)
    assert not (tmp_path / "runs").exists()


def write_records(runs, scores):
    """Records as a run leaves them, with these BLEU scores by name."""
    for run in runs:
        values = [{"name": "BLEU", "value": scores[run.name]}]
        values += [{"name": name, "value": 50.0} for name in ("chrF2", "paper BLEU", "paper BLEU (lower-cased)")]
        record = {
            "row": run.row,
            "seed": run.seed,
            "taught_by": run.taught_by,
            "settings": settings_of(run.config()),
            "steps": 10,
            "parameters": 1_500_000,
            "valid": {"perplexity": 10.0 + run.seed},
            "tokens_per_s": 1234.0,
            "minutes": 5.0,
            "evaluation": {
                "scores": values,
                "in_bins": [
                    {"label": "1-10", "count": 70, "bleu": {"value": scores[run.name]}},
                    {"label": "11-20", "count": 2, "bleu": {"value": 99.0}},
                    {"label": "21-30", "count": 0, "bleu": None},
                ],
                "longer_than": [
                    {"label": "> 0", "count": 72, "bleu": {"value": scores[run.name]}},
                    {"label": "> 10", "count": 2, "bleu": {"value": 99.0}},
                ],
            },
            "greedy": [{"name": "BLEU", "value": scores[run.name] - 1.0}],
            "sentences": {"references": run.name},  # its own, so that it is not compared
        }
        write_record(run.record, record)


def test_tables_have_mean_and_deviation_over_seeds(tmp_path):
    runs = runs_of(suite_of(tmp_path))
    write_records(runs, {"plain-s1": 20.0, "plain-s2": 22.0, "wide-s7": 30.0})
    results = collect(runs)
    assert str(results["plain"].spread("BLEU")) == "21.00 ± 1.41"
    assert str(results["wide"].spread("BLEU")) == "30.00"
    assert results["plain"].spread("perplexity") == Spread(11.5, pytest.approx(0.7071, abs=1e-3), 2)


def test_sizes_are_shown_by_length_in_percent_of_another_row(tmp_path):
    rows = {"caps": {"recipe": RECIPE, "over": {"model.num_capsules": [[2], [4]]}}, "all": {"recipe": RECIPE}}
    suite = suite_of(tmp_path, rows=rows)
    runs = runs_of(suite)
    write_records(runs, {**{run.name: 40.0 for run in runs}, "caps-2-s1": 10.0, "caps-2-s2": 12.0, "caps-4-s1": 20.0})
    section = SectionConfig(kind="size_by_length", title="", rows=["caps"], against="all")
    table, note, figure, _ = SECTIONS["size_by_length"](section, Evidence(suite, runs, None, lambda *_: []))
    assert table.headings == ["source words", "num_capsules = 2", "num_capsules = 4", "all"]
    assert table.rows == [
        ["1-10 (70)", "11.00 (27.5 %)", "30.00 (75.0 %)", "40.00"],
        ["11-20 (2)", "–", "–", "–"],
        ["21-30 (0)", "–", "–", "–"],
    ]
    assert note.startswith("– where there are fewer than 20 sentences")
    assert figure.png.startswith(b"\x89PNG")


@pytest.fixture
def drawn(monkeypatch):
    """What plots are made of: their lines or bars."""
    found = []

    def draw(values, **axes):
        found.append((values, axes))
        return b""

    for name in ("curves", "bars"):
        monkeypatch.setattr(f"capsnmt.analysis.figures.{name}", draw)
    return found


def blocks_of(suite, **section):
    """A section of the report of all runs."""
    evidence = Evidence(suite, runs_of(suite), None, lambda *_: [])
    return list(SECTIONS[section["kind"]](SectionConfig(title="", **section), evidence))


def test_few_sentences_of_a_length_are_neither_scored_nor_drawn(tmp_path, drawn):
    suite = suite_of(tmp_path)
    write_records(runs_of(suite), {"plain-s1": 20.0, "plain-s2": 22.0, "wide-s7": 30.0})
    _, longer, _, _, bins, *_ = blocks_of(suite, kind="by_length")
    assert longer.rows == [["plain", "21.00 ± 1.41", "–"], ["wide", "30.00", "–"]]
    assert bins.rows[1] == ["wide", "30.00", "–", "–"]
    assert [axes["labels"] for _, axes in drawn] == [["> 0"], ["1-10"]]
    assert [places for _, (places, _, _) in drawn[0][0]] == [[0.0], [0.0]]


def test_every_row_has_its_bar_with_the_sections_label_and_a_deviation_of_several_seeds(tmp_path, drawn):
    rows = {"caps": {**SWEPT, "label": "Caps", "seeds": [1]}, "plain": {"recipe": RECIPE, "paper_bleu": 20.0}}
    suite = suite_of(tmp_path, rows=rows)
    write_records(runs_of(suite), {"caps-1-s1": 1.0, "caps-2-s1": 2.0, "plain-s1": 3.0, "plain-s2": 5.0})
    labels, theirs = {"plain": "Called so here"}, {"caps-2": 25.7}
    table, *_ = blocks_of(suite, kind="table", labels=labels, paper_bleu=theirs)
    called = ["Caps, num_iterations = 1", "Caps, num_iterations = 2", "Called so here"]
    assert [row[0] for row in table.rows] == called
    assert [row[-1] for row in table.rows] == ["", "25.7 (theirs)", "20.0 (theirs)"]
    ((bars, _),) = drawn
    assert bars == [(called[0], 1.0, None), (called[1], 2.0, None), (called[2], 4.0, pytest.approx(1.414, abs=1e-3))]


def test_plots_of_long_labels_and_of_one_seed_can_be_drawn():
    long = "a label of many words " * 5
    assert figures.bars([(long, 20.0, None), (long, 21.0, 0.5)], x="BLEU").startswith(b"\x89PNG")
    line = ([0.0, 1.0], [20.0, 21.0], [0.0, 0.5])
    assert figures.curves([(long, line), (long, line)], x="x", y="y", labels=["a", "b"]).startswith(b"\x89PNG")


def test_the_lines_of_a_sweep_are_in_the_order_of_their_numbers(tmp_path, drawn):
    rows = {
        "grid": {"recipe": RECIPE, "over": {"model.num_iterations": [1, 2], "model.num_capsules": [[2], [10]]}},
        "iterations": SWEPT,
    }
    suite = suite_of(tmp_path, rows=rows, seeds=[1])
    write_records(runs_of(suite), {run.name: 20.0 for run in runs_of(suite)})
    _, table, *_ = blocks_of(
        suite, kind="sweep", rows=["grid", "iterations"], labels={"iterations": "num_capsules = 6"}
    )
    assert table.headings[1:] == ["num_capsules = 2", "num_capsules = 6", "num_capsules = 10"]
    assert [label for label, _ in drawn[0][0]] == table.headings[1:]


def test_a_value_that_nothing_logged_is_told_with_what_was(tmp_path, drawn):
    suite = suite_of(tmp_path)
    write_records(runs_of(suite), {"plain-s1": 20.0, "plain-s2": 22.0, "wide-s7": 30.0})
    for run in runs_of(suite):
        logged = {"valid": {"step": [5, 10], "perplexity": [9.0, 8.0]}}
        write_record(run.record, {**read_record(run.record), "training": logged})
    figure, told = blocks_of(suite, kind="training", values=["valid.perplexity", "valid.perplexitty"])
    assert figure.caption == "valid.perplexity over updates, the first seed of each row"
    assert told == "**None of the rows logged `valid.perplexitty`**; logged were valid.perplexity."


@pytest.mark.parametrize(
    ("models", "seed", "told"),
    [
        ([1, 2, 3], 2, "seed 2, which has the median entropy; other seeds: 1, 3"),
        ([1], 1, "seed 1, as the model of the median, seed 2, is not here; other seeds: 2, 3"),
    ],
)
def test_routing_is_shown_of_the_median_seed_and_says_which(tmp_path, models, seed, told):
    suite = suite_of(tmp_path, rows={"caps": {"recipe": RECIPE}}, seeds=[1, 2, 3])
    runs = runs_of(suite)
    write_records(runs, {run.name: 20.0 for run in runs})
    for run, entropy in zip(runs, (1.0, 0.3, 0.2), strict=True):
        routing = {"entropy_1": entropy, "used": 2, "largest": 1}
        write_record(run.record, {**read_record(run.record), "routing": routing})
        if run.seed in models:
            run.folder.mkdir(parents=True)
            (run.folder / "weights.safetensors").touch()
    asked = []

    def route(folder, sentences):
        asked.append(folder)
        return [RoutingMap(("▁a", "▁b"), np.full((1, 2, 2), 0.5, dtype=np.float32))]

    section = SectionConfig(kind="routing", title="", rows=["caps"], sentences=["a b"])
    *_, figure = SECTIONS["routing"](section, Evidence(suite, runs, None, route))
    assert figure.caption == f"Routing of caps, row caps, {told}"
    assert asked == [runs[seed - 1].folder]
    shutil.rmtree(runs[seed - 1].folder)
    *_, kept = SECTIONS["routing"](section, Evidence(suite, runs, None, route))
    assert kept == figure, "what was kept of a model is shown when it is gone"


def test_results_say_what_is_behind_every_number(compared, tmp_path):
    suite, _ = compared(good={"recipe": RECIPE, "seeds": [1]}, bad={"recipe": RECIPE, "seeds": [1]})
    for run in runs_of(suite):
        record = read_record(run.record)
        record["evaluation"]["scores"][0] |= {"signature": "nrefs:1", "confidence": [39.0, 91.0]}
        write_record(run.record, record)
    suite = suite.model_copy(update={"report": [SectionConfig(kind="table", title="Systems", against="good")]})
    folder = reproduce(suite, lambda *_: [], data=str(tmp_path / "data"), train=False)
    found = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    made = f"capsnmt reproduce {tmp_path / 'suite.yaml'} --data DATA"
    assert (found["command"], found["capsnmt"]) == (made, __version__)
    for name in ("report.md", "report.html"):
        assert f"capsnmt {__version__}." in (folder / name).read_text(encoding="utf-8")
        assert made in (folder / name).read_text(encoding="utf-8")
    good, bad = found["runs"]
    assert (good["BLEU"], good["BLEU low"], good["BLEU high"], good["taught_by"]) == (90.0, 39.0, 91.0, None)
    assert bad["signatures"]["BLEU"] == "nrefs:1"
    assert [command.split()[1] for command in bad["commands"]] == ["train", "evaluate", "evaluate"]
    (table,) = found["tables"]
    assert (table["title"], table["headings"][-1]) == ("Systems", "against good")
    assert "(p = " in table["rows"][1][-1]
    assert (folder / "results.csv").read_text(encoding="utf-8").startswith("row,seed,taught_by,steps")


@pytest.fixture
def compared(tmp_path):
    """compared(rows) → runs whose translations of 40 sentences are good or, in rows that are called so, bad."""
    data = tmp_path / "data"
    data.mkdir()
    references = [f"das ist der Satz Nummer {i} von vielen guten Sätzen" for i in range(40)]
    (data / "test.en").write_text("".join("x " * (i + 1) + "\n" for i in range(40)), encoding="utf-8")
    (data / "test.de").write_text("".join(line + "\n" for line in references), encoding="utf-8")
    test = {"source": "test.en", "target": "test.de", "tsv": None}

    def make(**rows):
        suite = suite_of(tmp_path, rows=rows, set={"data.test": test, "data.root": str(data)})
        runs = runs_of(suite)
        write_records(runs, {run.name: 40.0 if run.row.startswith("bad") else 90.0 for run in runs})
        for run in runs:
            lines = references
            if run.row.startswith("bad"):
                wrong = range(0, 20, 2)
                lines = [line.replace("guten", "b") if i in wrong else line for i, line in enumerate(references)]
            run.folder.parent.mkdir(exist_ok=True)
            run.translations.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
            config = run.config().data
            reference = data / config.test.target
            sentences = counts_of_sentences(data / "test.en", run.translations, reference)
            write_record(run.record, {**read_record(run.record), "sentences": sentences})
        return suite, collect(runs)

    return make


def test_rows_are_compared_on_the_seeds_that_both_have(compared):
    rows = {"good": {"recipe": RECIPE}, "bad": {"recipe": RECIPE}, "lonely": {"recipe": RECIPE, "seeds": [9]}}
    _, found_rows = compared(**rows)
    found = compare(found_rows["good"], found_rows["bad"], num_samples=200)
    assert found.seeds == (1, 2)
    assert str(found).endswith(", 2 seeds)")
    assert 0 < found.gain.confidence[0] < found.gain.mean < found.gain.confidence[1]
    assert found.gain.p_value < 0.05
    assert compare(found_rows["good"], found_rows["lonely"]) is None


@pytest.mark.parametrize(("seeds", "told"), [([1], ", seed 1)"), ([1, 2], ", seeds 1, 2)"), ([1, 2, 3], ", 3 seeds)")])
def test_a_difference_says_of_which_seeds_it_is_where_a_row_has_more(compared, seeds, told):
    _, rows = compared(good={"recipe": RECIPE, "seeds": [1, 2, 3]}, bad={"recipe": RECIPE, "seeds": seeds})
    for a, b in (("good", "bad"), ("bad", "good")):
        assert str(compare(rows[a], rows[b], num_samples=50)).endswith(told)


def test_rows_are_compared_on_sentences_of_some_length(compared):
    _, rows = compared(good={"recipe": RECIPE}, bad={"recipe": RECIPE})
    good, bad = rows["good"], rows["bad"]
    assert compare(good, bad, longer_than=19, num_samples=50).gain.mean == 0.0  # the last twenty are good
    assert compare(good, bad, longer_than=18, num_samples=50).gain.mean > 0.0
    assert compare(good, bad, longer_than=21, num_samples=50) is None, "19 sentences are too few to say anything"


def test_rows_with_references_of_their_own_are_not_compared(compared, tmp_path):
    tokenised = {"data.test": {"source": "test.en", "target": "test.tok.de", "tsv": None}}
    (tmp_path / "data" / "test.tok.de").write_text("das ist ein anderer Satz\n" * 40, encoding="utf-8")
    _, rows = compared(good={"recipe": RECIPE}, bad={"recipe": RECIPE, "set": tokenised})
    assert compare(rows["good"], rows["bad"]) is None


def test_students_are_shown_beside_themselves_and_their_teacher(compared):
    rows = {
        "teacher": {"recipe": RECIPE, "seeds": [1]},
        "bad": {"recipe": RECIPE, "set": {"model.width": 64}, "seeds": [1]},
        "student": {"recipe": RECIPE, "set": {"model.width": 64}, "seeds": [1], "distilled_from": "teacher"},
    }
    suite, _ = compared(**rows)
    section = SectionConfig(kind="distillation", title="", rows=["student"])
    table = next(SECTIONS["distillation"](section, Evidence(suite, runs_of(suite), None, lambda *_: [])))
    greedy, beam = table.rows
    assert greedy == ["student", "1", "1", "39.00", "89.00", "+50.00", "89.00", "100.0", "100.0"]
    assert beam[1:5] == ["1", "the recipe's", "40.00", "90.00"]
    assert "(p = " in beam[5]


def distilled(suite):
    """The table of a suite's students."""
    section = SectionConfig(kind="distillation", title="")
    return next(SECTIONS["distillation"](section, Evidence(suite, runs_of(suite), None, lambda *_: []))).rows


def test_students_are_compared_on_the_seeds_that_both_have_with_the_model_that_taught(tmp_path):
    rows = {
        "teacher": {"recipe": RECIPE, "seeds": [1, 2]},
        "plain": {"recipe": RECIPE, "set": {"model.width": 64}, "seeds": [1, 2, 3]},
        "student": {"recipe": RECIPE, "set": {"model.width": 64}, "seeds": [2, 3, 4], "distilled_from": "teacher"},
    }
    suite = suite_of(tmp_path, rows=rows)
    scores = {"teacher-s1": 40.0, "teacher-s2": 99.0, "plain-s1": 99.0, "plain-s2": 20.0, "plain-s3": 22.0}
    scores |= {"student-s2": 30.0, "student-s3": 32.0, "student-s4": 99.0}
    write_records(runs_of(suite), scores)
    greedy, beam = distilled(suite)
    assert greedy == ["student", "2", "1", "20.00 ± 1.41", "30.00 ± 1.41", "+10.00", "39.00", "76.9", "52.6"]
    assert beam[3:5] == ["21.00 ± 1.41", "31.00 ± 1.41"]
    assert beam[6:] == ["40.00", "77.5", "52.6"]


@pytest.mark.parametrize("others", [{}, {"plain": {"recipe": RECIPE, "set": {"model.width": 64}, "seeds": [9]}}])
def test_a_student_without_a_comparable_row_is_shown_beside_its_teacher(tmp_path, others):
    rows = {
        "teacher": {"recipe": RECIPE, "seeds": [1]},
        "student": {"recipe": RECIPE, "set": {"model.width": 64}, "distilled_from": "teacher"},
    }
    suite = suite_of(tmp_path, rows={**rows, **others})
    write_records(runs_of(suite), {"teacher-s1": 40.0, "student-s1": 30.0, "student-s2": 32.0, "plain-s9": 10.0})
    assert distilled(suite) == [
        ["student", "2", "1", "–", "30.00 ± 1.41", "–", "39.00", "76.9", "–"],
        ["student", "2", "the recipe's", "–", "31.00 ± 1.41", "–", "40.00", "77.5", "–"],
    ]


def test_an_outside_system_is_a_row_that_is_not_trained(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    (data / "test.en").write_text("one two three four five\n" * 4, encoding="utf-8")
    (data / "test.de").write_text("eins zwei drei vier fünf\n" * 4, encoding="utf-8")
    test = {"source": "test.en", "target": "test.de", "tsv": None}
    outside = {"recipe": RECIPE, "hypotheses": str(data / "test.de"), "origin": "their submission to WMT14"}
    suite = suite_of(tmp_path, rows={"buck": outside}, set={"data.test": test, "data.root": str(data)})
    assert run_suite(suite, say=lambda text: None) == []
    runs = runs_of(suite)
    assert [run.name for run in runs] == ["buck-s1"]  # more seeds would be the same translations
    assert not runs[0].folder.exists()
    evaluation = read_record(runs[0].record)["evaluation"]
    assert (evaluation["system"], evaluation["origin"]) == ("buck", "their submission to WMT14")
    assert all(score["signature"] for score in evaluation["scores"])
    assert plan_of(suite) == [{"run": "buck-s1", "updates": 0, "tokens": 0, "processes": 1, "done": True}]
    report = (reproduce(suite, lambda *_: [], train=False) / "report.md").read_text(encoding="utf-8")
    assert "| buck | – | – | – | – | 100.00 [100.0, 100.0] | – | 100.00 | 100.00 | 100.00 | – | – |" in report
    assert "buck was not trained here: their submission to WMT14." in report
    assert "capsnmt train" not in report


PUBLISHED = {"label": "Phrase-based", "paper_bleu": 20.7, "origin": "Table 1 of the paper, on WMT14"}


def test_a_published_figure_stands_in_tables_and_is_compared_with_nothing(compared):
    suite, _ = compared(good={"recipe": RECIPE}, buck=PUBLISHED, bad={"recipe": RECIPE, "paper_bleu": 25.7})
    kinds = ("table", "by_length", "distillation", "complexity", "latency")
    sections = [SectionConfig(kind="table", title="Systems", against="good")]
    sections += [SectionConfig(kind=kind, title=kind) for kind in kinds]
    evidence = Evidence(suite.model_copy(update={"report": sections}), runs_of(suite), None, lambda *_: [])
    assert [run.row for run in runs_of(suite)] == ["good", "bad", "good", "bad"]
    assert [step["run"] for step in plan_of(suite)] == ["good-s1", "bad-s1", "good-s2", "bad-s2"]
    for section in sections:
        assert list(evidence.rows(section)) == ["good", "bad"]
        assert list(evidence.trained(section)) == ["good", "bad"]
    table, *others = SECTIONS["table"](sections[0], evidence)
    assert [row[0] for row in table.rows] == ["good", "Phrase-based", "bad"]
    assert table.rows[1][1:] == ["–"] * 12 + ["20.7 (theirs)"]
    assert "(p = " in table.rows[2][-2]
    assert all(len(row) == len(table.headings) for row in table.rows)
    told = f"was not measured here, and is compared with nothing: its figure is {PUBLISHED['origin']}."
    assert f"Phrase-based {told}" in others


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({"kind": "latency", "rows": ["plain", "buck"]}, "names buck, of which there is only a published figure"),
        ({"kind": "table", "rows": ["plain", "buck"], "against": "buck"}, "not in `against`"),
    ],
)
def test_a_published_figure_cannot_be_measured_or_compared_with(tmp_path, section, told):
    rows = {"plain": {"recipe": RECIPE}, "buck": PUBLISHED}
    with pytest.raises(CapsNMTError, match=told):
        suite_of(tmp_path, rows=rows, report=[{"title": "x", **section}])
    with pytest.raises(CapsNMTError, match="no row with a recipe"):
        suite_of(tmp_path, rows={**rows, "student": {"recipe": RECIPE, "distilled_from": "buck"}})
    with pytest.raises(CapsNMTError, match=r"--rows buck: no row"):
        chosen_rows(suite_of(tmp_path, rows=rows), ["buck"])


@pytest.mark.parametrize("change", [{"origin": None}, {"paper_bleu": None}, {"seeds": [1]}, {"hypotheses": "x"}])
def test_a_row_without_a_recipe_has_a_label_a_figure_and_its_origin(tmp_path, change):
    row = {key: value for key, value in {**PUBLISHED, **change}.items() if value is not None}
    with pytest.raises(CapsNMTError, match="a row without a recipe is a published figure"):
        suite_of(tmp_path, rows={"buck": row})


def test_a_section_that_fails_costs_no_other_and_no_figure(compared, monkeypatch):
    suite, _ = compared(good={"recipe": RECIPE}, bad={"recipe": RECIPE})
    sections = [
        SectionConfig(kind="complexity", title="Cost", text="Measured."),
        SectionConfig(kind="table", title="Systems"),
    ]
    suite = suite.model_copy(update={"report": sections})
    figures = suite.report_folder / "figures"
    kept = []

    def fails(section, evidence):
        yield "half of it"
        kept.extend(path.name for path in figures.iterdir())
        raise CapsNMTError(f"no memory for {Path.cwd()}/runs/x")

    figures.mkdir(parents=True)
    (figures / "7-old.png").touch()
    monkeypatch.setitem(SECTIONS, "complexity", fails)
    with pytest.raises(CapsNMTError, match=r"'Cost' could not be made: no memory for runs/x\nthe report of all else"):
        reproduce(suite, lambda *_: [], say=lambda text: None)
    assert kept == ["7-old.png"], "figures are replaced when there are new ones"
    assert [path.name for path in figures.iterdir()] == ["1-bleu.png"]
    report = (suite.report_folder / "report.md").read_text(encoding="utf-8")
    told = "**Could not be made**: no memory for runs/x. The same `capsnmt reproduce` tries again"
    assert f"## Cost\n\nMeasured.\n\n{told}" in report
    assert "half of it" not in report
    assert "| good | 2 |" in report


def test_what_is_kept_is_reported_without_models_and_without_their_corpus(compared, tmp_path):
    suite, _ = compared(good={"recipe": RECIPE}, bad={"recipe": RECIPE})
    kept = suite.model_copy(update={"kept": str(tmp_path / "docs")})
    assert kept.records_folder == tmp_path / "docs" / "records" / "runs"
    for run, record in zip(runs_of(kept), [read_record(run.record) for run in runs_of(suite)], strict=True):
        write_record(run.record, record)
    shutil.rmtree(tmp_path / "runs")
    shutil.rmtree(tmp_path / "data")
    told = []
    folder = reproduce(kept, lambda *_: [], say=told.append)
    assert told == ["two rows: 4 runs, 4 of them done, 0 to do"]
    assert folder == tmp_path / "docs" / "suite"
    report = (folder / "report.md").read_text(encoding="utf-8")
    assert "| good | 2 | 10 | 1.50M | 11.50 ± 0.71 | 90.00 ± 0.00 |" in report


def test_a_record_of_other_settings_is_refused_and_one_without_a_new_default_is_not(tmp_path):
    suite = suite_of(tmp_path, rows={"plain": {"recipe": RECIPE}}, seeds=[1])
    (run,) = runs_of(suite)
    write_records([run], {"plain-s1": 20.0})
    record = read_record(run.record)
    del record["settings"]["model"]["score_scale"]  # as if it had come after the record
    write_record(run.record, {**record, "settings": {**record["settings"], "output": "elsewhere"}})
    reproduce(suite, lambda *_: [], say=lambda text: None)
    other = suite.model_copy(update={"set": {"training.steps": 10, "training.label_smoothing": 0.3}})
    for train in (True, False):
        with pytest.raises(CapsNMTError, match=r"training.label_smoothing: 0.1 -> 0.3"):
            reproduce(other, lambda *_: [], train=train, say=lambda text: None)


def test_values_are_logged_once_by_name_and_found_again(tmp_path):
    logged = {"valid": {"step": [5, 10, 15], "bleu": [None, 1.23456789, 2.0]}}
    write_record(tmp_path / "x.json", {"training": logged})
    record = read_record(tmp_path / "x.json")
    assert curve(record, "valid", "bleu") == [(10, 1.23457), (15, 2.0)]
    assert curve(record, "routing", "used") == []


def test_only_rows_that_exist_can_be_chosen(tmp_path):
    with pytest.raises(CapsNMTError, match=r"--rows narrow: no row of the suite; plain, wide"):
        reproduce(suite_of(tmp_path), lambda *_: [], only=["narrow"], say=lambda text: None)


def test_a_swept_row_is_chosen_by_its_name_or_by_one_of_its_own(tmp_path):
    rows = {"caps": {"recipe": RECIPE, "over": {"model.num_iterations": [1, 2]}}, "plain": {"recipe": RECIPE}}
    suite = suite_of(tmp_path, rows=rows)
    assert chosen_rows(suite, ["caps"]) == {"caps-1", "caps-2"}
    assert chosen_rows(suite, ["caps-2", "plain"]) == {"caps-2", "plain"}


def test_a_typo_in_a_model_section_does_not_wait_for_its_training(tmp_path):
    suite = suite_of(
        tmp_path, rows={"plain": {"recipe": RECIPE}, "typo": {"recipe": RECIPE, "set": {"model.windowz": 1}}}
    )
    with pytest.raises(CapsNMTError, match="windowz"):
        run_suite(suite, say=lambda text: None)
    assert not (tmp_path / "runs").exists()


def test_students_of_a_teacher_that_failed_to_teach_are_not_trained(tmp_path, monkeypatch):
    rows = {"teacher": {"recipe": RECIPE}, "student": {"recipe": RECIPE, "distilled_from": "teacher"}}
    suite = suite_of(tmp_path, rows=rows, seeds=[1])
    teacher, _ = runs_of(suite)
    write_records([teacher], {"teacher-s1": 20.0})
    teacher.folder.mkdir(parents=True)
    (teacher.folder / "weights.safetensors").touch()
    commands = []

    def fails(command, log, *, threads):
        commands.append(command.words[0])
        return 1

    monkeypatch.setattr("capsnmt.analysis.running.run_command", fails)
    assert run_suite(suite, say=lambda text: None) == ["student-s1"]
    assert commands == ["export"]


def codes_of(commands):
    """Runs commands here and returns what each ended with."""
    codes = []
    for command in commands:
        with pytest.raises(SystemExit) as ended:
            main(list(command.words))
        codes.append(ended.value.code or 0)
    return codes


@pytest.fixture
def taught(tmp_path):
    """A suite whose teacher is trained and has taught; its student is not trained."""
    rows = {name: {"recipe": str(RELEASED / "recipe.yaml")} for name in ("teacher", "student")}
    rows["student"]["distilled_from"] = "teacher"
    test = {"source": "valid.de", "target": "valid.en"}
    suite = suite_of(tmp_path, rows=rows, seeds=[2], set={"data.root": str(RELEASED / "corpus"), "data.test": test})
    teacher, student = runs_of(suite)
    write_records([teacher], {"teacher-s2": 20.0})
    shutil.copytree(RELEASED / "capsnmt", teacher.folder)
    assert codes_of(student.teaching()) == [0, 0]
    return suite


@pytest.fixture
def started(monkeypatch):
    """The verbs that a suite starts; every one of them fails."""
    verbs = []
    monkeypatch.setattr(
        "capsnmt.analysis.running.run_command", lambda command, log, *, threads: verbs.append(command.words[0]) or 1
    )
    return verbs


def test_a_finished_corpus_is_not_taught_again(taught, started):
    run_suite(taught, say=lambda text: None)
    assert started == ["train"]


def test_another_version_of_a_package_makes_no_other_teacher(taught, monkeypatch):
    _, student = runs_of(taught)
    corpus = (student.distilled / "train.en").read_bytes()
    monkeypatch.setattr("capsnmt.runtime.export.version", lambda name: "99.0")
    assert codes_of(student.teaching()) == [0, 0]
    assert read_manifest(student.teacher.folder).made_with["torch"] == "99.0"
    assert (student.distilled / "train.en").read_bytes() == corpus


@pytest.mark.parametrize("changed", ["teacher-s2/weights.safetensors", "distilled-by-teacher-s2/train.en"])
def test_students_wait_for_what_their_teacher_says_now(taught, started, changed):
    path = Path(taught.output) / changed
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert run_suite(taught, say=lambda text: None) == ["student-s2"]
    assert started == ["export"]


def test_a_teacher_that_was_trained_again_is_refused_its_old_corpus(taught, capsys):
    _, student = runs_of(taught)
    weights = student.teacher.folder / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    assert codes_of(student.teaching()) == [0, 1]
    assert "teacher.weights" in capsys.readouterr().err


def with_teacher(suite, **settings):
    """The suite with a teacher of other settings."""
    teacher = suite.rows["teacher"].model_copy(update={"set": settings})
    return suite.model_copy(update={"rows": {**suite.rows, "teacher": teacher}})


@pytest.mark.parametrize("only", [[], ["student"]])
def test_a_student_is_not_taught_by_a_teacher_of_other_settings(taught, started, only):
    now = with_teacher(taught, **{"training.learning_rate": 0.001})
    runs_of(now)[0].record.unlink()
    with pytest.raises(CapsNMTError, match=r"teacher-s2 is a model of other settings.*\n.*rate: 0.01 -> 0.001"):
        run_suite(now, only=only, say=lambda text: None)
    with pytest.raises(CapsNMTError, match=r"teacher-s2 is a model of other settings"):
        plan_of(now, only=only)
    assert started == []


@pytest.mark.parametrize("with_record", [True, False])
def test_a_corpus_alone_teaches_where_a_record_says_whose_it_is(taught, started, with_record):
    teacher, _ = runs_of(taught)
    shutil.rmtree(teacher.folder)
    if not with_record:
        teacher.record.unlink()
    said: list[str] = []
    failed = run_suite(taught, only=["student"], say=said.append)
    assert started == ["train"]
    assert failed == (["student-s2"] if with_record else ["teacher-s2", "student-s2"])
    told = "done" if with_record else "not taught, for its teacher teacher-s2 failed"
    assert f"distilled-by-teacher-s2: {told}" in said


def test_students_of_a_teacher_that_failed_are_not_trained(tmp_path, started):
    rows = {"teacher": {"recipe": RECIPE}, "student": {"recipe": RECIPE, "distilled_from": "teacher"}}
    said: list[str] = []
    failed = run_suite(suite_of(tmp_path, rows=rows, seeds=[1]), say=said.append)
    assert failed == ["teacher-s1", "student-s1"]
    assert started == ["train"]
    assert said[-1] == "distilled-by-teacher-s1: not taught, for its teacher teacher-s1 failed"


def test_a_wrong_folder_of_corpora_is_one_error_before_all_trainings(tmp_path, started):
    rows = {name: {"recipe": "recipes/multi30k-en-de/simple.yaml"} for name in ("a", "b")}
    suite = suite_of(tmp_path, rows=rows, set={"data.store": str(tmp_path / "store")})
    with pytest.raises(CapsNMTError, match=r"files of the corpora do not exist: /nowhere/multi30k/train.* and 2 more;"):
        run_suite(suite, data="/nowhere", say=lambda text: None)
    assert "valid.de and 2 more" in absent_from(suite, "/nowhere")
    assert len(plan_of(suite, "/nowhere")) == 4, "a plan may be for another machine"
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "store.json").touch()
    assert "train" not in absent_from(suite, "/nowhere"), "of a prepared corpus only the test set is read"
    assert absent_from(suite_of(tmp_path), "/nowhere") is None, "the demo's corpus is made"
    assert started == []


def test_a_teacher_rewrites_two_files(tmp_path):
    rows = {"teacher": {"recipe": RECIPE}, "student": {"recipe": RECIPE, "distilled_from": "teacher"}}
    tsv = {"data.train": {"tsv": "train.tsv"}}
    with pytest.raises(CapsNMTError, match=r"no source and target file in data\.train for a teacher to rewrite"):
        run_suite(suite_of(tmp_path, rows=rows, set=tsv), say=lambda text: None)


@pytest.mark.parametrize(
    ("teacher", "told"),
    [
        ("swept", "which is swept; name one of its rows: swept-1, swept-2"),
        ("student", "which is distilled itself"),
        ("other", "which is distilled itself"),
        ("outside", "which is an outside system"),
    ],
)
def test_what_cannot_teach_is_told_before_anything_runs(tmp_path, teacher, told):
    rows = {
        "plain": {"recipe": RECIPE},
        "swept": SWEPT,
        "outside": {"recipe": RECIPE, "hypotheses": "x", "origin": "y"},
        "other": {"recipe": RECIPE, "distilled_from": "plain"},
    }
    with pytest.raises(CapsNMTError, match=told):
        suite_of(tmp_path, rows={**rows, "student": {"recipe": RECIPE, "distilled_from": teacher}})
    suite = suite_of(tmp_path, rows={**rows, "student": {"recipe": RECIPE, "distilled_from": "swept-2"}})
    assert {run.teacher.row for run in runs_of(suite) if run.row == "student"} == {"swept-2"}


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({"kind": "sweep", "rows": ["plain"]}, "names plain, which is swept over 0 keys"),
        ({"kind": "sweep", "rows": ["swept-1"]}, "names swept-1, which is swept over 0 keys"),
        ({"kind": "sweep"}, "must name swept rows"),
        ({"kind": "sweep", "rows": ["swept", "wide"]}, "swept over model.num_iterations and model.width"),
        ({"kind": "size_by_length", "rows": ["plain"]}, "must have one row in `rows`, which is swept"),
        ({"kind": "size_by_length"}, "must have one row in `rows`, which is swept"),
        ({"kind": "table", "against": "swept"}, "is against swept, which is swept; name one of its rows: swept-1,"),
        ({"kind": "table", "labels": {"plane": "Plain"}}, "names plane, which is no row"),
        ({"kind": "table", "paper_bleu": {"plane": 1.0}}, "names plane, which is no row"),
        ({"kind": "training"}, "has nothing to show: name it in `values`"),
    ],
)
def test_a_section_that_could_not_be_made_is_told_before_anything_runs(tmp_path, section, told):
    wide = {"recipe": RECIPE, "over": {"model.width": [32, 64]}}
    with pytest.raises(CapsNMTError, match=told):
        suite_of(
            tmp_path,
            rows={"plain": {"recipe": RECIPE}, "swept": SWEPT, "wide": wide},
            report=[{"title": "x", **section}],
        )


def test_two_rows_of_one_name_are_refused(tmp_path):
    with pytest.raises(CapsNMTError, match="two rows are called swept-2"):
        suite_of(tmp_path, rows={"swept": SWEPT, "swept-2": {"recipe": RECIPE}})


def test_a_plan_is_of_the_chosen_rows_and_refuses_what_a_run_would(tmp_path):
    rows = {
        "teacher": {"recipe": RECIPE, "seeds": [1]},
        "plain": {"recipe": RECIPE},
        "student": {"recipe": RECIPE, "seeds": [1], "distilled_from": "teacher"},
    }
    suite = suite_of(tmp_path, rows=rows)
    assert [step["run"] for step in plan_of(suite, only=["plain"])] == ["plain-s1", "plain-s2"]
    write_records(runs_of(suite)[:1], {"teacher-s1": 20.0})
    steps = plan_of(suite, only=["student"])
    assert [step["run"] for step in steps] == ["teacher-s1", "student-s1"]
    assert [step["done"] for step in steps] == [False, False], "a student needs its teacher's model, not its record"
    for changed, told in (
        ({"set": {"training.steps": 11}}, "training.steps: 10 -> 11"),
        ({"set": {"training.steps": 10, "model.num_capsule": [3]}}, "num_capsule"),
        ({"processes": 16}, "16 processes would make larger updates"),
    ):
        with pytest.raises(CapsNMTError, match=told):
            plan_of(suite.model_copy(update=changed))
    with pytest.raises(CapsNMTError, match="--rows plane: no row"):
        plan_of(suite, only=["plane"])


def test_the_cost_of_what_is_not_done_stands_beside_all_of_it(tmp_path):
    suite = suite_of(tmp_path)
    assert cost_of(suite, "1xM40", pairs=1000)[-1].startswith("all of it on 1xM40")
    write_records(runs_of(suite)[:1], {"plain-s1": 20.0})
    *_, whole, rest = cost_of(suite, "1xM40", pairs=1000)
    assert whole.startswith("all of it on 1xM40")
    assert rest.startswith("not done yet: 2 of 3 runs, ")
    assert [line.partition(":")[0] for line in cost_of(suite, "1xM40", only=["wide"], pairs=9)[:-1]] == ["wide-s7"]


def test_a_record_says_which_settings_its_teacher_had(compared):
    rows = {"teacher": {"recipe": RECIPE, "seeds": [1]}, "student": {"recipe": RECIPE, "distilled_from": "teacher"}}
    before, _ = compared(**rows)
    for run in runs_of(before):
        run.check()
    rows["teacher"]["set"] = {"model.width": 96}
    after = before.model_copy(update={"rows": {**before.rows, "teacher": RowConfig(**rows["teacher"])}})
    with pytest.raises(CapsNMTError, match="was taught by teacher-s1 of"):
        runs_of(after)[-1].check()


def test_a_folder_of_another_number_of_updates_is_not_gone_on_with(tmp_path):
    suite = suite_of(tmp_path, rows={"plain": {"recipe": RECIPE}}, seeds=[1])
    (run,) = runs_of(suite)
    run.folder.mkdir(parents=True)
    vocabulary = VocabularyRecord(source_size=9, target_size=9, fingerprint="x")
    values = {**load_recipe(RECIPE, []).model_dump(), "format_version": FORMAT_VERSION, "vocabulary": vocabulary}
    dump_yaml(FolderConfig(**values), run.folder / "config.yaml")
    said: list[str] = []
    assert run_suite(suite, say=said.append) == ["plain-s1"]
    assert f"a training of {values['training']['steps']:,} updates, the suite wants 10" in said[-1]


@pytest.mark.parametrize("data", ["data", ".", "/"])
def test_commands_are_told_without_our_folders(tmp_path, data):
    evidence = Evidence(suite_of(tmp_path), [], data, lambda *_: [])
    command = ["capsnmt", "train", "--data", data, "--set", "data.store=runs/x", "a.b"]
    assert evidence.told(command) == "capsnmt train --data DATA --set data.store=runs/x a.b"


def test_translations_without_an_origin_are_refused(tmp_path):
    with pytest.raises(CapsNMTError, match="whose translations are they"):
        suite_of(tmp_path, rows={"buck": {"recipe": RECIPE, "hypotheses": "test.de"}})
