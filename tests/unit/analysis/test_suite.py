"""A suite file becomes runs; typos are found before anything is trained."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from small_suites import PUBLISHED, RECIPE, SWEPT, suite_of, write_records

from capsnmt.analysis.evidence import Evidence
from capsnmt.analysis.records import curve, read_record, write_record
from capsnmt.analysis.reproduction import plan_of, reproduce
from capsnmt.analysis.runs import runs_of
from capsnmt.analysis.sections import SECTIONS
from capsnmt.analysis.suite import RowConfig, SectionConfig, SuiteConfig, TeachingConfig, chosen_rows, read_suite
from capsnmt.errors import CapsNMTError


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


def test_students_share_a_corpus_where_their_teacher_taught_them_alike(tmp_path):
    rows = {name: {"recipe": RECIPE, "distilled_from": "teacher"} for name in ("plain", "nearest", "alike", "mixed")}
    for name, more in (("nearest", {}), ("alike", {}), ("mixed", {"with_original": True})):
        rows[name]["teaching"] = {"best_of": 8, **more}
    runs = runs_of(suite_of(tmp_path, rows={"teacher": {"recipe": RECIPE}, **rows}, seeds=[1]))
    _, plain, nearest, alike, mixed = runs
    assert nearest.distilled == alike.distilled
    assert len({run.distilled for run in runs}) == 4, "the teacher has none"
    (told,) = (command.words for command in mixed.teaching() if command.words[0] == "distill")
    options = ("--n-best", "8", "--choose", "bleu", "--with-original")
    assert [told[number : number + 5] for number in range(len(told))].count(options) == 1
    assert plain.taught_by is not None
    assert mixed.taught_by == " ".join([plain.taught_by, *options])
    with pytest.raises(CapsNMTError, match="teaching needs distilled_from"):
        suite_of(tmp_path, rows={"plain": {"recipe": RECIPE, "teaching": {"best_of": 8}}})


def test_a_report_does_not_say_where_a_folder_of_runs_really_lies(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "runs").symlink_to(tmp_path / "elsewhere")
    recipe = str(Path(RECIPE).absolute())
    monkeypatch.chdir(tmp_path / "here")
    rows = {"teacher": {"recipe": recipe}, "student": {"recipe": recipe, "distilled_from": "teacher"}}
    suite = suite_of(tmp_path, rows=rows, seeds=[1], output="runs/suite")
    _, student = runs = runs_of(suite)
    (command,) = student.training()
    (told,) = Evidence(suite, runs, None, lambda *_: []).commands([command])
    assert str(tmp_path) not in told.replace(recipe, "")
    typed = subprocess.run(["bash", "-c", f"printf '%s\\n' {told}"], stdout=subprocess.PIPE, text=True, check=True)
    assert typed.stdout.splitlines() == command.told, "and yet it does the same"


def test_a_sweep_is_its_own_rows_and_not_those_of_a_like_name(tmp_path):
    rows = {"caps": {"recipe": RECIPE, "over": {"model.num_iterations": [1, 2]}}, "caps-wide": {"recipe": RECIPE}}
    suite = suite_of(tmp_path, rows=rows, seeds=[1])
    section = SectionConfig(kind="table", title="", rows=["caps"])
    runs = runs_of(suite)
    write_records(runs, {run.name: 20.0 for run in runs})
    found = Evidence(suite, runs, None, lambda *_: []).rows(section)
    assert list(found) == ["caps-1", "caps-2"]


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
    keys = {key for config in (SuiteConfig, RowConfig, TeachingConfig, SectionConfig) for key in config.model_fields}
    unexplained = [key for key in (keys | SECTIONS.keys()) - {"kind"} if f"`{key}" not in page]
    assert unexplained == []
    example = tmp_path / "mine.yaml"
    example.write_text(page.partition("```yaml\n")[2].partition("```")[0], encoding="utf-8")
    plan = plan_of(read_suite(example))
    assert {step["run"] for step in plan} >= {"teacher-s1", "student-s2", "size-16-s1"}


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


def test_a_swept_row_is_chosen_by_its_name_or_by_one_of_its_own(tmp_path):
    rows = {"caps": {"recipe": RECIPE, "over": {"model.num_iterations": [1, 2]}}, "plain": {"recipe": RECIPE}}
    suite = suite_of(tmp_path, rows=rows)
    assert chosen_rows(suite, ["caps"]) == {"caps-1", "caps-2"}
    assert chosen_rows(suite, ["caps-2", "plain"]) == {"caps-2", "plain"}


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


def test_a_record_says_which_settings_its_teacher_had(compared):
    rows = {"teacher": {"recipe": RECIPE, "seeds": [1]}, "student": {"recipe": RECIPE, "distilled_from": "teacher"}}
    before, _ = compared(**rows)
    for run in runs_of(before):
        run.check()
    rows["teacher"]["set"] = {"model.width": 96}
    after = before.model_copy(update={"rows": {**before.rows, "teacher": RowConfig(**rows["teacher"])}})
    with pytest.raises(CapsNMTError, match=r"was taught by a run with other settings:\n.*width: .* -> 96"):
        runs_of(after)[-1].check()


def test_translations_without_an_origin_are_refused(tmp_path):
    with pytest.raises(CapsNMTError, match="whose translations are they"):
        suite_of(tmp_path, rows={"buck": {"recipe": RECIPE, "hypotheses": "test.de"}})
