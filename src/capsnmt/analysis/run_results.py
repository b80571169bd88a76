"""Every finished run with what its numbers rest on, for other programs: results.json and results.csv."""

from __future__ import annotations

from typing import Any

from capsnmt.analysis.evidence import Evidence

_COUNTS = ("row", "seed", "taught_by", "steps", "parameters", "tokens_per_s", "minutes", "threads", "finished")
_GREEDY = ("BLEU", "chrF2")  # of beam 1


def run_results(evidence: Evidence) -> list[dict[str, Any]]:
    """One record a run: its scores by name, their intervals and signatures, and the commands that made them."""
    records = {(row.row, run["seed"]): run for row in evidence.results.values() for run in row.runs}
    commands = {
        (run.row, run.seed): evidence.commands([*run.teaching(evidence.data), *run.commands(evidence.data)])
        for run in evidence.runs
    }
    return [{**_flat(record), **_behind(record), "commands": commands[key]} for key, record in records.items()]


def _flat(run: dict[str, Any]) -> dict[str, Any]:
    """Counts and scores, a value for each name."""
    scores: dict[str, Any] = {}
    for score in run["evaluation"]["scores"]:
        scores[score["name"]] = score["value"]
        if interval := score.get("confidence"):
            scores |= {f"{score['name']} {end}": value for end, value in zip(("low", "high"), interval, strict=True)}
    greedy = {f"{s['name']}, beam 1": s["value"] for s in run.get("greedy", ()) if s["name"] in _GREEDY}
    routing = {key: value for key, value in (run.get("routing") or {}).items() if key not in ("kind", "step")}
    valid = {f"valid_{key}": value for key, value in run.get("valid", {}).items()}
    return {**{key: run.get(key) for key in _COUNTS}, **valid, **scores, **greedy, **routing}


def _behind(run: dict[str, Any]) -> dict[str, Any]:
    """What its scores mean: their signatures by name."""
    signatures = {score["name"]: score.get("signature") for score in run["evaluation"]["scores"]}
    signatures |= {f"{s['name']}, beam 1": s.get("signature") for s in run.get("greedy", ()) if s["name"] in _GREEDY}
    return {"signatures": signatures}
