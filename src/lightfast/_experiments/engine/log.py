"""What a run tells: lines of JSON and TensorBoard events in its folder, and a bar on the terminal."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightfast._atomic import write_whole

__all__ = ["Display", "LogFile"]

_REFRESH_SECONDS = 0.1
_LINE_SECONDS = 30.0


class LogFile:
    """`log.jsonl` and, where tensorboard is installed, `tensorboard/` in a run's folder.

    Args:
        folder: the run's.
        step: where the run goes on; lines after it, of a run that was killed, are dropped.
    """

    def __init__(self, folder: Path, step: int) -> None:
        path = folder / "log.jsonl"
        _keep_lines(path, step)
        self._lines = path.open("a", encoding="utf-8")
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            self._events = None
        else:
            self._events = SummaryWriter(folder / "tensorboard", purge_step=step + 1)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """One line, and one event for each value."""
        self._lines.write(json.dumps({"step": step, **values}) + "\n")
        self._lines.flush()
        if self._events is not None:
            for name, value in values.items():
                self._events.add_scalar(name, value, step)

    def close(self) -> None:
        """Write out what is left."""
        self._lines.close()
        if self._events is not None:
            self._events.close()


class Display:
    """A bar for each run with the latest values and the time left; without a terminal, a line every half minute.

    Args:
        enabled: whether to show anything.
    """

    def __init__(self, enabled: bool) -> None:
        self._enabled, self._progress = enabled, None
        self._bars: list[_Bar] = []
        if enabled and sys.stderr.isatty():
            self._progress = _make_progress()

    def add(self, name: str, steps: int, done: int) -> int:
        """A bar for a run; returns its number."""
        self._bars.append(_Bar(name, steps, done))
        if self._progress is not None:
            self._progress.add_task(name, total=steps, completed=done, values="")
        return len(self._bars) - 1

    def advance(self, bar: int, step: int) -> None:
        """Show that a run has done `step` steps, not more often than the eye can see, or than a file should grow."""
        shown, now = self._bars[bar], time.monotonic()
        if self._progress is not None:
            if now - shown.at > _REFRESH_SECONDS:
                self._progress.update(bar, completed=step)
                shown.at = now
        elif self._enabled and now - shown.at > _LINE_SECONDS:
            self._print(shown, step)

    def show(self, bar: int, step: int, values: Mapping[str, float]) -> None:
        """Show a run's latest values."""
        shown = self._bars[bar]
        shown.values = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
        if self._progress is not None:
            self._progress.update(bar, completed=step, values=shown.values)
        elif self._enabled and step == shown.steps:
            self._print(shown, step)

    def _print(self, shown: _Bar, step: int) -> None:
        shown.at = time.monotonic()
        each = (shown.at - shown.started) / max(step - shown.done, 1)
        left = f"{each * (shown.steps - step) / 60:.1f} min left" if step < shown.steps else "done"
        parts = [shown.name, f"{step}/{shown.steps}", shown.values, left]
        print("  ".join(filter(None, parts)), file=sys.stderr, flush=True)

    def __enter__(self) -> Display:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()


@dataclass
class _Bar:
    """A run as it is shown: its first step, when that was, and what was shown last, and when."""

    name: str
    steps: int
    done: int
    values: str = ""
    started: float = field(default_factory=lambda: time.monotonic())
    at: float = field(default_factory=lambda: time.monotonic())


def _keep_lines(path: Path, step: int) -> None:
    """Drop the lines of steps after `step`, and one that was cut short, in one move."""
    if not path.exists():
        return
    kept = [line for line in path.read_text(encoding="utf-8").splitlines() if _is_before(line, step)]
    write_whole(path, "".join(f"{line}\n" for line in kept).encode())


def _is_before(line: str, step: int) -> bool:
    try:
        return json.loads(line)["step"] <= step
    except (json.JSONDecodeError, KeyError, TypeError):
        return False


def _make_progress() -> Any:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:
        return None
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[values]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
