"""Small suites, and records as their runs leave them."""

from __future__ import annotations

from pathlib import Path

import yaml

from capsnmt.analysis.records import settings_of, write_record
from capsnmt.analysis.suite import read_suite

RECIPE = "recipes/demo/capsnmt.yaml"
SWEPT = {"recipe": RECIPE, "over": {"model.num_iterations": [1, 2]}}
PUBLISHED = {"label": "Phrase-based", "paper_bleu": 20.7, "origin": "Table 1 of the paper, on WMT14"}
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


def write_records(runs, scores):
    """Records as a run leaves them, with these BLEU scores by name."""
    for run in runs:
        values = [{"name": "BLEU", "value": scores[run.name]}]
        values += [{"name": name, "value": 50.0} for name in ("chrF2", "paper BLEU", "paper BLEU (lower-cased)")]
        record = {
            "row": run.row,
            "seed": run.seed,
            "taught_by": run.taught_by,
            "teacher_settings": None if run.teacher is None else settings_of(run.teacher.config()),
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
