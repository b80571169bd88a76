"""What a run tells its user: a progress bar or plain lines, metrics.jsonl, TensorBoard."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch.utils.tensorboard import SummaryWriter

from capsnmt.folder import METRICS


class Journal:
    """Writes every record to metrics.jsonl and TensorBoard, and shows it. Without a folder it only shows."""

    def __init__(self, folder: Path | None, start_step: int, total_steps: int, *, show: bool) -> None:
        self._file, self._board = None, None
        if folder is not None:
            _drop_records_after(folder / METRICS, start_step)
            self._file = (folder / METRICS).open("a", encoding="utf-8")
            self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=start_step + 1)
        self._console = Console(stderr=True)
        self._show = show
        self._bar: Progress | None = None
        if show and sys.stderr.isatty():
            self._bar = Progress(
                TextColumn("training"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[status]}"),
                console=self._console,
            )
            self._task = self._bar.add_task("training", total=total_steps, completed=start_step, status="")
        self._total_steps, self._start_step, self._start_s = total_steps, start_step, time.monotonic()

    def __enter__(self) -> Journal:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._bar:
            self._bar.stop()
        if self._file and self._board:
            self._file.close()
            self._board.close()

    def advance(self, step: int) -> None:
        """Moves the bar."""
        if self._bar:
            self._bar.update(self._task, completed=step)

    def record(self, kind: str, step: int, **values: Any) -> None:
        """One record, for example record("train", 50, loss=4.2)."""
        self.note(kind, step, values)
        text = "  ".join(f"{name} {_format(value)}" for name, value in values.items() if value is not None)
        if self._bar and kind == "train":
            self._bar.update(self._task, status=text)
        else:
            self.say(f"{kind:<5} step {step}/{self._total_steps}  {text}{self._time_left(step)}")

    def note(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """A record that is kept but not shown."""
        if self._file and self._board and values:
            self._file.write(json.dumps({"kind": kind, "step": step, **values}) + "\n")
            self._file.flush()
            for name, value in values.items():
                if isinstance(value, (int, float)):
                    self._board.add_scalar(f"{kind}/{name}", value, step)

    def say(self, text: str) -> None:
        """A line for the user, above the bar if there is one."""
        if self._show:
            self._console.print(text, highlight=False, soft_wrap=True, markup=False)

    def _time_left(self, step: int) -> str:
        done = step - self._start_step
        if self._bar or done <= 0:
            return ""
        left_s = (time.monotonic() - self._start_s) / done * (self._total_steps - step)
        return f"  left {int(left_s // 60)}:{int(left_s % 60):02d}"


def _format(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"


def _drop_records_after(path: Path, step: int) -> None:
    """After a crash the log may be ahead of the checkpoint; the resumed run writes those records again."""
    if path.exists():
        lines = path.read_text(encoding="utf-8").split("\n")
        kept = [line for line in lines if line.endswith("}") and json.loads(line)["step"] <= step]
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
        temporary.replace(path)  # never half of the history, even if this process is killed too
