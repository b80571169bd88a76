"""Results become tables, plots and data; every number says what is behind it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from small_suites import PUBLISHED, RECIPE, SWEPT, suite_of, write_records

from capsnmt import __version__
from capsnmt.analysis import figures
from capsnmt.analysis.evidence import Evidence
from capsnmt.analysis.records import read_record, write_record
from capsnmt.analysis.reproduction import plan_of, reproduce
from capsnmt.analysis.results import Spread, collect, compare
from capsnmt.analysis.routing_map import RoutingMap
from capsnmt.analysis.runs import runs_of
from capsnmt.analysis.sections import SECTIONS
from capsnmt.analysis.suite import SectionConfig
from capsnmt.errors import CapsNMTError


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
    long = "a label of many words, $x_$ and $$ " * 5  # a dollar sign begins no formula
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


@pytest.mark.parametrize(
    ("options", "measures"),
    [
        ({}, True),
        ({"only": ["good"]}, False),  # others may be trained beside
        ({"train": False}, False),
        ({"train": False, "measure": True}, True),
        ({"only": ["good"], "measure": True}, True),
        ({"measure": False}, False),
    ],
)
def test_benchmarks_run_after_all_trainings_or_when_they_are_asked_for(compared, monkeypatch, options, measures):
    suite, _ = compared(good={"recipe": RECIPE}, bad={"recipe": RECIPE})
    suite = suite.model_copy(update={"report": [SectionConfig(kind="complexity", title="Cost")]})
    asked = []
    monkeypatch.setitem(SECTIONS, "complexity", lambda section, evidence: asked.append(evidence.measures) or ["None."])
    reproduce(suite, lambda *_: [], say=lambda text: None, **options)
    assert asked == [measures]


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


@pytest.mark.parametrize("data", ["data", ".", "/"])
def test_commands_are_told_without_our_folders(tmp_path, data):
    evidence = Evidence(suite_of(tmp_path), [], data, lambda *_: [])
    command = ["capsnmt", "train", "--data", data, "--set", "data.store=runs/x", "a.b"]
    assert evidence.told(command) == "capsnmt train --data DATA --set data.store=runs/x a.b"
