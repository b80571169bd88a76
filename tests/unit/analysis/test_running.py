"""What a suite trains, what it refuses to train, and in which order."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from small_suites import RECIPE, RELEASED, suite_of, write_records

from capsnmt.analysis.records import read_record, write_record
from capsnmt.analysis.reproduction import absent_from, cost_of, plan_of, reproduce
from capsnmt.analysis.running import run_suite
from capsnmt.analysis.runs import runs_of
from capsnmt.analysis.suite import TeachingConfig
from capsnmt.cli import main
from capsnmt.config import FORMAT_VERSION, FolderConfig, VocabularyRecord, dump_yaml, load_recipe
from capsnmt.errors import CapsNMTError
from capsnmt.runtime.manifest import read_manifest


def test_more_processes_than_batches_of_an_update_are_refused(tmp_path):
    suite = suite_of(tmp_path, processes=3, set={"training.accumulate": 2})
    with pytest.raises(CapsNMTError, match=r"plain-s1: 3 processes .* the 2 batches of its training\.accumulate"):
        run_suite(suite, say=lambda text: None)
    assert not (tmp_path / "runs").exists()


def test_an_unknown_key_is_an_error_before_anything_runs(tmp_path):
    with pytest.raises(CapsNMTError, match="rowz"):
        suite_of(tmp_path, rowz={})
    suite = suite_of(tmp_path, rows={"plain": {"recipe": RECIPE, "set": {"training.stepz": 1}}})
    with pytest.raises(CapsNMTError, match="stepz"):
        run_suite(suite, say=lambda text: None)
    assert not (tmp_path / "runs").exists()


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

    def other(**changes):
        return suite_of(
            tmp_path, rows={"buck": {**outside, **changes}}, set={"data.test": test, "data.root": str(data)}
        )

    for changed, told in (({"hypotheses": str(data / "test.en")}, "sha256"), ({"origin": "others"}, "origin")):
        with pytest.raises(CapsNMTError, match=rf"buck-s1.json is of other translations: {told} is .*, the suite has"):
            reproduce(other(**changed), lambda *_: [], train=False, say=lambda text: None)
    reproduce(other(hypotheses="/gone"), lambda *_: [], train=False, say=lambda text: None)


def test_only_rows_that_exist_can_be_chosen(tmp_path):
    with pytest.raises(CapsNMTError, match=r"--rows narrow: no row of the suite; plain, wide"):
        reproduce(suite_of(tmp_path), lambda *_: [], only=["narrow"], say=lambda text: None)


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


def taught_suite(tmp_path, corpus=RELEASED / "corpus", **teaching):
    """A suite whose teacher is trained and has taught; its student is not trained."""
    rows = {name: {"recipe": str(RELEASED / "recipe.yaml")} for name in ("teacher", "student")}
    rows["student"] |= {"distilled_from": "teacher", "teaching": teaching}
    test = {"source": "valid.de", "target": "valid.en"}
    suite = suite_of(tmp_path, rows=rows, seeds=[2], set={"data.root": str(corpus), "data.test": test})
    teacher, student = runs_of(suite)
    write_records([teacher], {"teacher-s2": 20.0})
    shutil.copytree(RELEASED / "capsnmt", teacher.folder)
    assert codes_of(student.teaching()) == [0, 0]
    return suite


@pytest.fixture
def taught(tmp_path):
    return taught_suite(tmp_path)


def test_another_way_of_teaching_is_another_student(taught):
    _, student = runs_of(taught)
    write_records([student], {"student-s2": 20.0})
    row = taught.rows["student"].model_copy(update={"teaching": TeachingConfig(with_original=True)})
    other = taught.model_copy(update={"rows": {**taught.rows, "student": row}})
    with pytest.raises(CapsNMTError, match=r"student-s2.json was taught by .*, the suite wants .* --with-original;"):
        run_suite(other, say=lambda text: None)
    _, mixed = runs_of(other)
    assert codes_of(mixed.teaching()) == [0, 0]
    lines = [(run.distilled / "train.en").read_text(encoding="utf-8").splitlines() for run in (student, mixed)]
    originals = (RELEASED / "corpus" / "train.en").read_text(encoding="utf-8").splitlines()
    assert lines[1] == lines[0] + originals


@pytest.fixture
def started(monkeypatch):
    """The verbs that a suite starts; every one of them fails."""
    verbs = []
    monkeypatch.setattr(
        "capsnmt.analysis.running.run_command", lambda command, log, *, threads: verbs.append(command.words[0]) or 1
    )
    return verbs


@pytest.mark.parametrize("teaching", [{}, {"best_of": 6}, {"with_original": True}])
def test_a_finished_corpus_is_not_taught_again(tmp_path, started, teaching):
    corpus = shutil.copytree(RELEASED / "corpus", tmp_path / "corpus")
    suite = taught_suite(tmp_path, corpus, **teaching)
    run_suite(suite, say=lambda text: None)
    assert started == ["train"]
    with (corpus / "train.en").open("a", encoding="utf-8") as file:
        file.write("\n")
    run_suite(suite, say=lambda text: None)
    assert started[1:] == (["export"] if teaching else ["train"]), "only some corpora are made of the reference"


def test_a_prepared_suite_needs_no_training_text(tmp_path, started):
    corpus = shutil.copytree(RELEASED / "corpus", tmp_path / "corpus")
    suite = taught_suite(tmp_path, corpus)
    _, student = runs_of(suite)
    shutil.copytree(RELEASED / "store", student.distilled / "store")
    (corpus / "train.de").unlink()
    run_suite(suite, say=lambda text: None)
    assert started == ["train"]


def test_a_corpus_of_an_earlier_teacher_teaches_nobody(taught, started):
    """Its model is gone, and a record of the teacher that the suite has now has come from elsewhere."""
    shutil.rmtree(runs_of(taught)[0].folder)
    now = with_teacher(taught, **{"training.learning_rate": 0.001})
    write_records([runs_of(now)[0]], {"teacher-s2": 21.0})
    assert run_suite(now, say=lambda text: None) == ["teacher-s2", "student-s2"]
    assert started == ["train"], "the teacher alone, whose model must be here"


def test_a_students_record_knows_its_teacher_by_settings_that_may_get_new_defaults(taught):
    _, student = runs_of(taught)
    write_records([student], {"student-s2": 20.0})
    record = read_record(student.record)
    del record["teacher_settings"]["model"]["score_scale"]  # as if it had come after the record
    write_record(student.record, record)
    student.check()
    _, other = runs_of(with_teacher(taught, **{"training.learning_rate": 0.001}))
    with pytest.raises(CapsNMTError, match=r"was taught by a run with other settings:\n.*rate: 0.01 -> 0.001"):
        other.check()


def test_another_version_of_a_package_makes_no_other_teacher(taught, monkeypatch):
    _, student = runs_of(taught)
    corpus = (student.distilled / "train.en").read_bytes()
    monkeypatch.setattr("capsnmt.runtime.export.version", lambda name: "99.0")
    assert codes_of(student.teaching()) == [0, 0]
    assert read_manifest(student.teacher.folder).made_with["torch"] == "99.0"
    assert (student.distilled / "train.en").read_bytes() == corpus


@pytest.mark.parametrize("changed", ["teacher-s2/weights.safetensors", "distilled-by-teacher-s2-*/train.en"])
def test_students_wait_for_what_their_teacher_says_now(taught, started, changed):
    (path,) = Path(taught.output).glob(changed)
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
    teacher, student = runs_of(taught)
    shutil.rmtree(teacher.folder)
    if not with_record:
        teacher.record.unlink()
    said: list[str] = []
    failed = run_suite(taught, only=["student"], say=said.append)
    assert started == ["train"]
    assert failed == (["student-s2"] if with_record else ["teacher-s2", "student-s2"])
    told = "done" if with_record else "not taught, for its teacher teacher-s2 failed"
    assert f"{student.distilled.name}: {told}" in said


def test_costs_count_each_corpus_once_and_its_candidates(tmp_path):
    rows = {"teacher": {"recipe": RECIPE}}
    ways = {"plain": {}, "alike": {}, "nearest": {"best_of": 10}}
    rows |= {name: {"recipe": RECIPE, "distilled_from": "teacher", "teaching": way} for name, way in ways.items()}
    suite = suite_of(tmp_path, rows=rows, seeds=[1])
    write_records([run for run in runs_of(suite) if run.row == "plain"], {"plain-s1": 20.0})
    lines = cost_of(suite, "2xcpu", pairs=1_000_000)
    told = {
        line.partition(":")[0]: line.partition("its teacher's translations of 1,000,000 sentences: ")[2]
        for line in lines
    }
    assert told["plain-s1"] == told["teacher-s1"] == "", "it is done, so the other student of its corpus pays"
    assert told["alike-s1"] != ""
    one, ten = (float(told[name].split()[0]) for name in ("alike-s1", "nearest-s1"))
    assert 1.5 * one < ten < 2.5 * one, f"a beam of 10 instead of 5: {told}"


def test_students_of_a_teacher_that_failed_are_not_trained(tmp_path, started):
    rows = {"teacher": {"recipe": RECIPE}, "student": {"recipe": RECIPE, "distilled_from": "teacher"}}
    said: list[str] = []
    failed = run_suite(suite_of(tmp_path, rows=rows, seeds=[1]), say=said.append)
    assert failed == ["teacher-s1", "student-s1"]
    assert started == ["train"]
    assert said[-1].startswith("distilled-by-teacher-s1-")
    assert said[-1].endswith(": not taught, for its teacher teacher-s1 failed")


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
