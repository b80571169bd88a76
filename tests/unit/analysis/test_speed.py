"""What benchmarks find is kept while it holds, told with what it depends on, and never outlives `reproduce`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from capsnmt.analysis import speed
from capsnmt.config import load_recipe
from capsnmt.errors import CapsNMTError

RECIPES = Path(__file__).parents[3] / "recipes" / "multi30k-en-de"


@pytest.fixture
def machine(monkeypatch):
    """A machine whose benchmarks end at once: its values may be changed, and it counts its runs."""
    found = {"processor": "slow", "cores": 2, "load_before": 0.1, "code": "first", "commands": [], "fails": False}

    def run_command(command, out, *, threads, folder):
        words = list(command.words)
        found["commands"].append(words)
        if found["fails"]:
            out.write("capsnmt: no memory left\n")
            return 1
        names = words[words.index("--systems") + 1].split(",")
        assert all(Path(folder, name).exists() for name in names), "recipes lie where the command runs"
        lengths = [{"name": name, "source_length": 32, "median_ms": 7.0} for name in names]
        tests = [{"name": n, "protocol": "test set", "beam": b, "median_ms": 5.0 * b} for n in names for b in (1, 8)]
        report = {
            "rows": lengths if words[1] == "growth" else tests,
            "figures": {name: {"total_exponent": 1.0, "tokens_per_subword": 4.5} for name in names},
            "machine": {key: found[key] for key in ("processor", "cores", "load_before")},
            "settings": {"sentences_measured": 12},
        }
        Path(folder, "report.json").write_text(json.dumps(report), encoding="utf-8")
        return 0

    monkeypatch.setattr(speed, "run_command", run_command)
    monkeypatch.setattr(speed, "processor", lambda: found["processor"])
    monkeypatch.setattr(speed, "code_hash", lambda *rooms: found["code"])
    return found


@pytest.fixture
def growth(tmp_path):
    """growth(recipe, …) → what was found, measured or kept."""

    def find(*names, measure=True):
        systems = {name: load_recipe(RECIPES / f"{name}.yaml") for name in names or ("capsnmt",)}
        return speed.growth(systems, tmp_path / "test.en", tmp_path / "complexity.json", measure=measure)

    return find


def test_what_is_measured_is_kept(machine, growth):
    assert growth(measure=False) is None
    first = growth()
    assert first.rows["capsnmt"]["latency_ms"] == 7.0
    assert (growth(), growth(measure=False)) == (first, first)
    assert first.warnings == []
    assert len(machine["commands"]) == 1


def test_killed_while_it_is_written_it_is_measured_again(machine, growth, monkeypatch):
    write = Path.write_text

    def dies(path, text, **options):
        write(path, text[: len(text) // 2], **options)
        if path.name.startswith("complexity"):
            raise KeyboardInterrupt

    with monkeypatch.context() as killed:
        killed.setattr(Path, "write_text", dies)
        killed.setattr(speed, "_run", lambda *_: machine["found"])
        machine["found"] = {"rows": [], "figures": {}, "machine": machine, "settings": {}}
        with pytest.raises(KeyboardInterrupt):
            growth()
    assert growth().rows["capsnmt"]["latency_ms"] == 7.0


@pytest.mark.parametrize(("key", "value"), [("processor", "fast"), ("code", "second")])
def test_another_processor_or_other_code_is_measured_again_where_that_may_be(machine, growth, key, value):
    growth()
    machine[key] = value
    old = growth(measure=False)
    assert old.machine.startswith("slow")
    assert "other code or on another processor" in old.warnings[0]
    assert growth().warnings == []
    assert len(machine["commands"]) == 2


def test_every_system_has_its_own_vocabulary_and_characters_the_length_of_the_test_set(machine, growth, tmp_path):
    growth()
    growth("capsnmt", "bytenet")
    plain, with_characters = machine["commands"]
    assert "--vocabulary" not in with_characters
    assert "--source" not in plain, "where all have subwords no test set is needed"
    assert with_characters[with_characters.index("--source") + 1] == str(tmp_path / "test.en")


def test_a_busy_machine_is_told(machine, growth):
    machine["load_before"] = 1.0  # half of its two cores
    assert growth().warnings == []
    machine |= {"load_before": 1.1, "code": "second"}
    (warning,) = growth().warnings
    assert "Others were at work" in warning
    assert "complexity.json" in warning


def test_latencies_say_of_how_many_sentences(machine, tmp_path):
    systems = {"capsnmt": load_recipe(RECIPES / "capsnmt.yaml")}
    found = speed.latencies(systems, tmp_path / "test.en", (1, 8), tmp_path / "latency.json", measure=True)
    assert found.rows == {"capsnmt": [5.0, 40.0]}
    assert found.num_sentences == 12


def test_a_benchmark_that_fails_says_why_and_leaves_nothing(machine, growth, tmp_path):
    machine["fails"] = True
    with pytest.raises(CapsNMTError, match=r"`capsnmt bench growth .*` ended with 1: capsnmt: no memory left"):
        growth()
    assert not (tmp_path / "complexity.json").exists()
