"""The model card: what was trained on what, and how well it did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from capsnmt import __version__
from capsnmt.config import ParallelText, RunConfig
from capsnmt.folder import CARD, METRICS
from capsnmt.training.checkpoint import Progress


def write_card(folder: Path, config: RunConfig, progress: Progress, checkpoints: list[str]) -> None:
    """Writes card.md from the run's own records."""
    languages, training = config.languages, config.training
    best = _last_record(folder / METRICS, progress.best_step)
    lines = [
        f"# {config.model['system']} {languages.source}→{languages.target}",
        "",
        f"- Made by capsnmt {__version__}: {progress.step} updates, {progress.target_tokens:,} target tokens, "
        f"{progress.elapsed_s / 60:.1f} minutes of training.",
        f"- Trained on {', '.join(map(_name, config.data.train.corpora))}, validated on {_name(config.data.valid)}.",
        f"- Weights: {'mean of ' if len(checkpoints) > 1 else ''}{', '.join(checkpoints)}.",
        f"- Best validation: {best or 'none'}.",
        f"- Seed {training.seed}, {training.batch_tokens} tokens per side and batch, batches per update: "
        f"{training.accumulate}.",
        "",
        "The whole recipe is in `config.yaml`, the curves are in `metrics.jsonl` and `tensorboard/`.",
        "",
    ]
    (folder / CARD).write_text("\n".join(lines), encoding="utf-8")


def _name(text: ParallelText) -> str:
    return f"`{text.tsv or f'{text.source} / {text.target}'}`"


def _last_record(path: Path, step: int) -> str:
    records: list[dict[str, Any]] = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    chosen = [record for record in records if record["kind"] == "valid" and record["step"] == step]
    if not chosen:
        return ""
    shown = {name: chosen[-1][name] for name in ("perplexity", "bleu", "chrf") if chosen[-1].get(name) is not None}
    return ", ".join(f"{name} {value:.2f}" for name, value in shown.items()) + f" at step {step}"
