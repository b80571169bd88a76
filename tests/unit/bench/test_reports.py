"""From measurements to figures: ratios, claims, fronts, tables and pictures."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from rich.console import Console

from capsnmt.bench import growth, latency, throughput
from capsnmt.bench.floors import ATTENTION, DECODER, ENCODER, OUTPUT
from capsnmt.bench.limit import SEARCH, achieved_seconds
from capsnmt.bench.pareto import mark_front
from capsnmt.bench.plots import save_plot
from capsnmt.bench.report import BenchReport, Claim, print_report, write_json
from capsnmt.bench.stages import stage_of, stage_seconds
from capsnmt.bench.start import model_names
from capsnmt.errors import CapsNMTError


def latency_row(name, median_ms, *, beam=8, threads=2):
    return {
        "protocol": latency.FORCED,
        "threads": threads,
        "beam": beam,
        "name": name,
        "system": name,
        "median_ms": median_ms,
        "min_ms": median_ms - 1.0,
        "max_ms": median_ms + 1.0,
        "times_the_first": 1.0,
    }


def test_latency_claims_compare_medians_at_the_most_threads():
    rows = [
        latency_row("capsnmt", 50.0),
        latency_row("ct2-6+6", 250.0),
        latency_row("capsnmt-selection", 30.0),
        latency_row("capsnmt", 90.0, threads=1),
        latency_row("ct2-6+6", 95.0, threads=1),
    ]
    found = {claim.what: claim for claim in latency.claims(rows)}
    assert len(found) == 2
    peer = next(claim for what, claim in found.items() if "ct2-6+6" in what)
    assert (peer.value, peer.wanted, peer.met) == (5.0, 4.0, True)
    selection = next(claim for what, claim in found.items() if "selection" in what)
    assert selection.value == pytest.approx(50 / 30, abs=1e-4)
    assert not selection.met


def test_throughput_claims_want_more_sentences_and_less_memory():
    own = {"name": "capsnmt", "beam": 1, "sentences_per_s": 30.0, "peak_mb": 300.0}
    peer = {"name": "ct2-6+6", "beam": 1, "sentences_per_s": 20.0, "peak_mb": 250.0}
    faster, smaller = throughput.claims([own, peer])
    assert (faster.value, faster.met) == (1.5, True)
    assert (smaller.value, smaller.met) == (1.2, False)
    assert throughput.claims([own]) == []


def test_a_batch_is_decoded_to_its_longest_source():
    assert throughput.target_tokens([[0] * 3, [0] * 5, [0] * 4], 2) == 2 * 5 + 1 * 4


def growth_rows(name, steps, totals):
    return [
        {
            "name": name,
            "system": name,
            "source_length": length,
            "target_length": length,
            "step_median_ms": step,
            "step_times_ms": [step, step],
            "median_ms": total,
            "times_ms": [total, total],
            "peak_mb": 100.0 + length,
        }
        for length, step, total in zip((8, 64, 512), steps, totals, strict=True)
    ]


def test_growth_tells_flat_from_growing_and_straight_from_bent():
    rows = growth_rows("capsnmt", [1.0, 1.05, 1.02], [10.0, 80.0, 640.0])
    rows += growth_rows("transformer", [1.0, 2.0, 9.0], [1.0, 2.0, 500.0])
    figures = growth.growth_figures(rows)
    assert figures["capsnmt"]["step_longest_over_shortest_source"] == 1.02
    assert figures["capsnmt"]["step_slowest_over_fastest"] == 1.05
    assert figures["capsnmt"]["total_r_squared"] == pytest.approx(1.0)
    assert figures["capsnmt"]["total_ms_per_token"] == pytest.approx(1.25)
    assert figures["transformer"]["step_slowest_over_fastest"] == 9.0
    assert figures["transformer"]["memory_growth_mb"] == 504.0
    assert [claim.met for claim in growth.claims(figures)] == [True, True, True]
    bent = growth.growth_figures(growth_rows("capsnmt", [1.0, 1.0, 1.2], [1.0, 200.0, 300.0]))
    assert [claim.met for claim in growth.claims(bent)] == [False, False, False]


def test_the_exponent_is_that_of_the_last_two_lengths():
    rows = growth_rows("a", [1.0] * 3, [1.0, 2.0, 8.0])
    found = growth.growth_figures(rows)["a"]
    assert found["total_exponent"] == pytest.approx(
        math.log(4.0) / math.log(rows[2]["source_length"] / rows[1]["source_length"]), abs=1e-3
    )
    assert found["target_exponent"] is None


def test_lengths_are_compared_within_a_pass():
    """A processor that was twice as slow in one pass has not made anything grow."""
    rows = growth_rows("a", [1.0] * 3, [1.0, 8.0, 64.0])
    for row, slow in zip(rows, ([1, 1, 2], [1, 2, 2], [1, 2, 2]), strict=True):
        for key in ("times_ms", "step_times_ms"):
            row[key] = [row[key][0] * factor for factor in slow]
    found = growth.growth_figures(rows)["a"]
    assert found["total_exponent"] == 1.0
    assert found["step_longest_over_shortest_source"] == 1.0


def test_a_step_is_what_the_encoder_leaves_or_what_more_steps_add():
    def call(total_s, encode_s):
        return {"total_s": total_s, "encode_s": encode_s, "step_s": None}

    assert growth.seconds_per_step(call(20.0, 9.0), None, 10) == 1.0
    assert growth.seconds_per_step(call(20.0, None), call(10.0, None), 10) == 1.0


def test_a_row_is_on_the_front_if_no_other_beats_it():
    rows = [{"bleu": bleu, "median_ms": ms} for bleu, ms in ((30.0, 50.0), (28.0, 10.0), (27.0, 20.0), (30.0, 60.0))]
    mark_front(rows)
    assert [row["on_front"] for row in rows] == [True, True, False, False]


def test_stages_of_a_translation_add_up_to_the_whole():
    outside = {"total_s": 10.0, "encode_s": 2.0, "step_s": 7.0}
    found = achieved_seconds(outside, {OUTPUT: 0.5, DECODER: 0.25, "rest": 0.25})
    assert found[ENCODER] == 2.0
    assert found[SEARCH] == 1.0
    assert found[OUTPUT] == 3.5
    assert sum(found.values()) == 10.0


def node(operation, reads, makes):
    return {
        "op_name": operation,
        "input_type_shape": [{"float": shape} for shape in reads],
        "output_type_shape": [{"float": shape} for shape in makes],
    }


@pytest.mark.parametrize(
    ("stage", "operation", "reads", "makes"),
    [
        (OUTPUT, "MatMulIntegerToFloat", [[8, 1, 64], [], [2000]], [[8, 1, 2000]]),
        (OUTPUT, "TopK", [[8, 2000], [1]], [[8, 16], [8, 16]]),
        (DECODER, "Gather", [[2000, 64], [8]], [[8, 64]]),  # of an embedding
        (DECODER, "MatMulIntegerToFloat", [[8, 64], [], [256]], [[8, 256]]),
        (DECODER, "Unsqueeze", [[8, 64], [2]], [[1, 1, 8, 64]]),
        (ATTENTION, "MatMulIntegerToFloat", [[8, 1, 64], [], [64]], [[8, 1, 64]]),
        (ATTENTION, "Softmax", [[8, 4, 1, 6]], [[8, 4, 1, 6]]),
    ],
)
def test_nodes_belong_to_stages_by_their_shapes(stage, operation, reads, makes):
    assert stage_of(node(operation, reads, makes), 2000) == stage


def test_notes_become_the_median_over_calls():
    def event(microseconds, shape):
        args = node("Add", [shape], [shape])
        return {"cat": "Node", "name": "x_kernel_time", "dur": microseconds, "args": args}

    calls = [[event(time, [8, 64]), event(2 * time, [8, 2000])] for time in (900, 100, 200)]
    events = [{"cat": "Session", "name": "run", "dur": 5}] + [each for call in calls for each in call]
    found = stage_seconds(events, 3, vocabulary=2000)
    assert found[DECODER] == pytest.approx(200e-6)
    assert found[OUTPUT] == pytest.approx(400e-6)
    assert stage_seconds([], 3, vocabulary=2000) == {}


def made_report():
    rows = [latency_row("capsnmt", 50.0), latency_row("ct2-6+6", 250.0)]
    return BenchReport(
        kind="latency",
        title="a title",
        settings={"width": 16},
        columns=latency.COLUMNS,
        rows=rows,
        groups=("protocol", "beam"),
        claims=[Claim("faster", 5.0, ">=", 4.0), Claim("smaller", 1.5, "<=", 1.0)],
        notes=["[red]a note"],
    )


def test_the_table_fits_a_terminal_and_shows_names_figures_claims_and_notes():
    console = Console(width=80, record=True, force_terminal=False)
    with console.capture() as captured:
        print_report(made_report(), console)
    text = captured.get()
    assert max(map(len, text.splitlines())) <= 80
    for shown in (
        "a title",
        "protocol forced, beam 8",
        "capsnmt",
        "ct2-6+6",
        "250",
        ">= 4",
        "met",
        "no",
        "[red]a note",
    ):
        assert shown in text


def test_json_holds_rows_and_whether_claims_are_met(tmp_path, capsys):
    write_json(made_report(), tmp_path / "report.json")
    found = json.loads((tmp_path / "report.json").read_text())
    assert [row["median_ms"] for row in found["rows"]] == [50.0, 250.0]
    assert [claim["met"] for claim in found["claims"]] == [True, False]
    write_json(made_report(), Path("-"))
    assert json.loads(capsys.readouterr().out) == found
    with pytest.raises(CapsNMTError, match="--json"):
        write_json(made_report(), tmp_path)


def test_pictures_of_every_kind_are_drawn(tmp_path):
    bars = [latency_row("capsnmt", 50.0), latency_row("ct2-6+6", 250.0, beam=1)]
    rates = {"sentences_per_s": 3.0, "min_sentences_per_s": 2.0, "max_sentences_per_s": 4.0}
    stage = {"system": "a", "beam": 1, "stage": "search", "floor_ms": 0.0, "achieved_ms": None}
    rows = {
        "latency": bars,
        "throughput": [row | rates for row in bars],
        "growth": growth_rows("capsnmt", [1.0, 1.0, 1.0], [1.0, 2.0, 3.0]),
        "limit": [stage, stage | {"stage": "x", "floor_ms": 1.0, "achieved_ms": 2.0, "times_the_floor": 2.0}],
        "start": [row | {"what": row["name"]} for row in bars],
        "pareto": [row | {"bleu": 30.0, "on_front": True} for row in bars],
    }
    for kind, own in rows.items():
        report = BenchReport(kind=kind, title=kind, settings={}, columns={}, rows=own)
        save_plot(report, tmp_path / f"{kind}.png")
        assert (tmp_path / f"{kind}.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(CapsNMTError, match="--plot"):
        save_plot(report, tmp_path / "picture.nonsense")


def test_folders_of_the_same_name_are_told_apart(tmp_path):
    a, b, c = (tmp_path / name for name in ("x/best", "y/best", "z/other"))
    assert model_names([a, b, c]) == [str(a), str(b), "other"]
