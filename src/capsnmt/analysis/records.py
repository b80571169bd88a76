"""What lasts of a finished run: one file from which reports are made, without its model and without its corpus.

A record holds the settings it was made with, its scores, what was logged on the way, and of every test sentence the
counts that BLEU is computed from, so that runs can be compared long after their models are gone. It holds no text.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from capsnmt.config import RunConfig, changed_settings, parse
from capsnmt.data.corpus import read_lines
from capsnmt.errors import CapsNMTError
from capsnmt.evaluation.significance import sentence_counts
from capsnmt.folder import METRICS, WEIGHTS, read_folder_config

# Where things lie and how often something is printed changes no result.
_FREE_KEYS = {"output", "data.root", "data.store", "training.keep_last", "training.log_every"}
_EXACT = {"settings", "teacher_settings"}  # parts of a record that are compared


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Whole or not at all; a line for each of its parts, so that a changed run shows what changed."""
    parts = (
        f"{json.dumps(key)}: {json.dumps(value if key in _EXACT else _rounded(value))}" for key, value in record.items()
    )
    temporary = path.with_suffix(".writing")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")
    temporary.replace(path)


def read_record(path: Path) -> dict[str, Any]:
    """What `write_record` wrote."""
    return json.loads(path.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def settings_of(config: RunConfig) -> dict[str, Any]:
    """The whole recipe, the model's defaults spelt out: a default that changes later must not change a record."""
    from capsnmt.models import whole_model_section  # brings torch

    return {**config.model_dump(mode="json"), "model": whole_model_section(config.model)}


def check_settings(path: Path, was: str, settings: dict[str, Any], wanted: RunConfig) -> None:
    """An error that names what differs, if settings in a record are of another recipe than `wanted`.

    They are read as a recipe is, so that a setting which came after the record has its default in both.
    """
    old = settings_of(parse(RunConfig, settings, f"settings of {path}"))
    changed = changed_settings(old, settings_of(wanted), free=_FREE_KEYS)
    if changed:
        raise CapsNMTError(
            f"{path} {was} with other settings:\n" + "\n".join(changed) + "\n"
            "go back to them, or call the row otherwise, or delete the file and its model folder to train again"
        )


def check_folder(folder: Path, wanted: RunConfig) -> None:
    """An error that names what differs, if a model folder is of another recipe than `wanted`; the test set may."""
    expected, found = settings_of(wanted), settings_of(read_folder_config(folder))
    found = {key: found[key] for key in expected}  # a folder's config has its format and vocabulary, too
    expected["data"]["test"] = found["data"]["test"] = None
    if changed := changed_settings(found, expected, free=_FREE_KEYS):
        raise CapsNMTError(
            f"{folder} is a model of other settings than the suite has:\n" + "\n".join(changed) + "\n"
            "go back to them, or call the row otherwise, or delete the folder and what it taught to train again"
        )


def fingerprint(settings: dict[str, Any]) -> str:
    """Of a record's settings without the free ones: what was made with others has another."""
    return hashlib.sha256(json.dumps(_without_free_keys(settings), sort_keys=True).encode()).hexdigest()[:16]


def _without_free_keys(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    return {
        key: _without_free_keys(value, f"{prefix}{key}.") if isinstance(value, dict) else value
        for key, value in settings.items()
        if f"{prefix}{key}" not in _FREE_KEYS
    }


def counts_of_sentences(source: Path, translations: Path, reference: Path) -> dict[str, Any]:
    """What BLEU is computed from, by sentence, and how long each source is in words."""
    references = list(read_lines(reference))
    return {
        "references": hashlib.sha256("\n".join(references).encode()).hexdigest()[:16],
        "source_words": [len(line.split()) for line in read_lines(source)],
        "bleu": sentence_counts(list(read_lines(translations)), references).tolist(),
    }


def counts_of_training(folder: Path) -> dict[str, Any]:
    """What a training itself says: validation, speed, time, parameters, routing, and its records by kind and value."""
    records = list(_metrics(folder))
    best = min((r for r in records if r["kind"] == "valid"), key=lambda r: r["loss"], default={})
    train = [r for r in records if r["kind"] == "train"]
    newest = max((folder / "checkpoints").glob("step-*/state.json"))
    tokens = json.loads(newest.read_text(encoding="utf-8"))["target_tokens"]
    speeds = sorted(r["tokens_per_s"] for r in train)
    routing = [r for r in records if r["kind"] == "routing"]
    return {
        "steps": train[-1]["step"] if train else 0,
        "parameters": count_parameters(folder / WEIGHTS),
        "valid": {key: best.get(key) for key in ("loss", "perplexity", "bleu", "chrf")},
        "tokens_per_s": speeds[len(speeds) // 2] if speeds else None,
        "minutes": tokens / speeds[len(speeds) // 2] / 60 if speeds else None,  # at that speed, without interruptions
        "routing": routing[-1] if routing else None,
        "finished": time.strftime("%Y-%m-%d"),
        "training": _by_kind(records),
    }


def curve(record: dict[str, Any], kind: str, name: str) -> list[tuple[int, float]]:
    """Update and value of everything that was logged under a name, such as `perplexity` of `valid`."""
    logged = record.get("training", {}).get(kind, {})
    pairs = zip(logged.get("step", ()), logged.get(name, ()), strict=False)
    return [(step, value) for step, value in pairs if value is not None]


def logged_values(record: dict[str, Any]) -> list[str]:
    """What `curve` can find in a record, as in valid.perplexity."""
    kinds = record.get("training", {}).items()
    return [f"{kind}.{name}" for kind, values in kinds for name in values if name != "step"]


def _by_kind(records: Sequence[dict[str, Any]]) -> dict[str, dict[str, list[Any]]]:
    """Records of a kind become one list for each of their values: their names are written once."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        kinds.setdefault(record["kind"], []).append(record)
    return {
        kind: {
            name: [record.get(name) for record in own]
            for name in dict.fromkeys(key for record in own for key in record if key != "kind")
        }
        for kind, own in kinds.items()
    }


def _metrics(folder: Path) -> Iterator[dict[str, Any]]:
    with (folder / METRICS).open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def count_parameters(weights: Path) -> int:
    """Numbers in a safetensors file, tied ones once."""
    from safetensors import safe_open

    with safe_open(weights, framework="numpy") as file:
        return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118


def _rounded(value: Any) -> Any:
    """Floats with six digits: enough for every table and plot."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, (list, tuple)) else value
