"""Every benchmark through the command, at a size at which nothing but the way through the code is measured."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

RECIPES = Path(__file__).resolve().parents[2] / "recipes"

SIZES = ("--width", 16, "--vocabulary", 120, "--repeats", 1, "--pause", 0, "--quiet")
ANY = ("--max-bleu-loss", 100, "--max-chrf-loss", 100, "--min-speed-up", 0)


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """Models are built once for all tests of this file."""
    return tmp_path_factory.mktemp("work")


@pytest.fixture
def bench(run_here, tmp_path):
    """bench("latency", …) → the JSON that it wrote, after a look at the table and the picture."""

    def run(kind, *options):
        files = ("--json", tmp_path / "report.json", "--plot", tmp_path / "plot.png")
        ended = run_here("bench", kind, *options, *files)
        assert ended.code == 0, ended.err
        assert kind in ended.out.decode() or "latency" in ended.out.decode()
        assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
        report = json.loads((tmp_path / "report.json").read_text())
        assert report["bench"] == kind
        assert report["machine"]["cores"] >= 1
        return report

    return run


def test_latency_has_a_row_for_each_setting_and_the_ratios(bench, work, corpus):
    systems = ("capsnmt", "capsnmt-selection", "ct2-6+2-map")
    given = ("--systems", ",".join(systems), "--words", 20, "--length", 4, "--beams", "1,2", "--threads", 1)
    given += ("--source", corpus / "test.en", "--sentences", 2, "--passes", 1, "--work", work)
    rows = bench("latency", *given, *SIZES)["rows"]
    found = [(row["beam"], row["protocol"], row["name"]) for row in rows]
    assert found == [(beam, way, name) for beam in (1, 2) for way in ("forced", "test set") for name in systems]
    for row in rows:
        assert 0.0 < row["min_ms"] <= row["median_ms"] <= row["max_ms"]
    for first in range(0, len(rows), 3):
        for row in rows[first : first + 3]:
            assert row["times_the_first"] == pytest.approx(
                row["median_ms"] / rows[first]["median_ms"], rel=1e-3, abs=1e-3
            )


def test_throughput_chooses_a_batch_and_tells_memory_and_claims(bench, work, corpus):
    given = ("--systems", "capsnmt,ct2-6+6", "--words", 20, "--source", corpus / "train.en", "--sentences", 5)
    given += ("--beams", 1, "--threads", 1, "--batches", "2,4", "--probe", 4, "--work", work)
    report = bench("throughput", *given, *SIZES)
    assert [row["name"] for row in report["rows"]] == ["capsnmt", "ct2-6+6"]
    for row in report["rows"]:
        assert row["batch"] in (2, 4)
        assert row["sentences_per_s"] > 0.0
        assert row["peak_mb"] > 10.0
    assert len(report["claims"]) == 2


def test_growth_gives_both_of_its_numbers(bench, work):
    given = ("--systems", "capsnmt", "--lengths", "2,4,8", "--steps", 2, "--threads", 1, "--work", work)
    report = bench("growth", *given, *SIZES)
    assert [(row["source_length"], row["target_length"]) for row in report["rows"]] == [(2, 2), (4, 4), (8, 8)]
    figures = report["figures"]["capsnmt"]
    assert figures["step_slowest_over_fastest"] >= 1.0
    assert figures["total_r_squared"] <= 1.0


def test_growth_of_a_recipe_and_with_the_target_alone(bench, work, tmp_path):
    recipe = yaml.safe_load((RECIPES / "multi30k-en-de" / "rnnsearch.yaml").read_text())
    recipe["model"]["width"] = 16
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(recipe))
    given = ("--systems", tmp_path / "small.yaml", "--lengths", "2,4,8", "--fixed-source", 3, "--steps", 2)
    report = bench("growth", *given, "--threads", 1, "--work", work, *SIZES)
    assert [row["system"] for row in report["rows"]] == ["small"] * 3
    assert all(row["from_fixed_ms"] > 0.0 for row in report["rows"])
    (figures,) = report["figures"].values()
    assert figures["target_exponent"] is not None


def test_growth_of_characters_is_that_of_as_long_sentences_in_a_vocabulary_of_their_own(bench, corpus, tmp_path):
    recipe = yaml.safe_load((RECIPES / "multi30k-en-de" / "bytenet.yaml").read_text())
    recipe["model"] |= {"width": 16, "dilations": [1, 2], "encoder_sets": 1, "decoder_sets": 1}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(recipe))
    work = tmp_path / "work"
    given = ("--systems", tmp_path / "small.yaml", "--lengths", "2,4,8", "--steps", 2, "--threads", 1, "--work", work)
    report = bench("growth", *given, "--source", corpus / "test.en", *SIZES)
    (figures,) = report["figures"].values()
    assert figures["tokens_per_subword"] > 1.5
    assert f"small has characters, {figures['tokens_per_subword']:g} for each subword of the others" in report["notes"]
    (manifest,) = work.glob("*/runtime/manifest.json")
    sizes = json.loads(manifest.read_text())["vocabulary"]
    assert (sizes["source_size"], sizes["target_size"]) == (99, 112)


def test_limit_gives_stages_that_add_up(bench, work):
    given = ("--systems", "capsnmt-attention", "--length", 4, "--beams", 2, "--threads", 1, "--work", work)
    report = bench("limit", *given, *SIZES)
    rows = {row["stage"]: row for row in report["rows"]}
    whole = rows.pop("whole translation")
    assert {"encoder", "decoder LSTMs", "attention", "output layer", "search"} <= rows.keys()
    assert sum(row["achieved_ms"] for row in rows.values()) == pytest.approx(whole["achieved_ms"], abs=0.01)
    assert sum(row["floor_ms"] for row in rows.values()) == pytest.approx(whole["floor_ms"], abs=0.01)
    assert report["claims"][0]["value"] == whole["best_times_the_floor"]
    assert all(rows[stage]["gb_per_s"] > 0.0 for stage in ("encoder", "output layer"))


@pytest.fixture
def exported(trained, tiny_config, run_here, tmp_path):
    """A trained Transformer with its runtime."""
    folder = shutil.copytree(trained("transformer", tiny_config("transformer")), tmp_path / "transformer")
    assert run_here("export", folder, *ANY).code == 0
    return folder


def test_start_and_pareto_of_a_trained_model(bench, work, exported, corpus):
    report = bench("start", "--model", exported, "--repeats", 1, "--pause", 0, "--quiet")
    bare, runtime, own = report["rows"]
    assert own["what"] == "capsnmt translate transformer"
    assert bare["peak_mb"] < runtime["peak_mb"]
    assert all(0.0 < row["median_ms"] <= row["end_median_ms"] for row in report["rows"])

    given = ("--model", exported, "-s", corpus / "test.de", "-r", corpus / "test.en", "--beams", 2, "--threads", 1)
    report = bench("pareto", *given, "--repeats", 1, "--pause", 0, "--work", work, "--quiet")
    assert [row["system"] for row in report["rows"]] == ["transformer, int8", "transformer, CTranslate2 int8"]
    assert all(0.0 <= row["bleu"] <= 100.0 and row["median_ms"] > 0.0 for row in report["rows"])
    assert any(row["on_front"] for row in report["rows"])


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        (("latency", "--systems", "marian"), "marian"),
        (("latency", "--beams", "one"), "one"),
        (("latency", "--json", "/no/such/folder/x.json"), "/no/such/folder"),
        (("limit", "--systems", "transformer"), "CapsNMT"),
        (("start", "--model", "/no/such/model"), "/no/such/model"),
        (("pareto", "--model", "/no/such/model", "-s", __file__, "-r", __file__), "capsnmt export"),
    ],
)
def test_faults_are_named_before_anything_is_built(run_here, options, shown):
    ended = run_here("bench", *options)
    assert ended.code == 1
    assert shown in ended.err.replace("\n", "")
