"""The report of a speedrun: a table, and how fast each attempt learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightfast._atomic import write_whole
from lightfast._experiments.report.figures import LIGHT, Theme, new_figure, png_of
from lightfast._experiments.report.tables import Rows, markdown

Record = Mapping[str, Any]

_CYCLE = ("#2f7fdf", "#e0892b", "#2aa198", "#c2528b", "#6f5bd6", "#8a909c")


def write_speedrun_report(out: Path, records: Sequence[Record]) -> str:
    """Write `table.md` and `curve.png` into the folder, and return the table."""
    text = "\n\n".join([_summary(records), markdown(_rows(records))]) + "\n"
    write_whole(out / "table.md", text.encode())
    write_whole(out / "curve.png", speedrun_figure(records))
    return text


def _summary(records: Sequence[Record]) -> str:
    target, data = records[0]["target"], records[0]["data"]
    reached = [record for record in records if record["reached"]]
    head = f"{data}: at least {target:g} % right under each of these lights, varying ones of saturation 0.9"
    if not reached:
        return f"{head}: no attempt got there."
    best = min(reached, key=lambda record: record["seconds"])
    return f"{head}: {best['seconds']:.1f} s of training, by {_label(best)}."


def _label(record: Record) -> str:
    return f"{record['network']}, {record['strategy']}, {record['epochs']:g} epochs, seed {record['seed']}"


def _rows(records: Sequence[Record]) -> Rows:
    head = [
        "Attempt",
        "training, s",
        *records[0]["errors"],
        "reached",
        "warm-up, s",
        "capture, s",
        "test, s",
    ]
    return [
        head,
        *(
            [
                _label(record),
                f"{record['seconds']:.2f}",
                *(f"{error:.2f}" for error in record["errors"].values()),
                "yes" if record["reached"] else "no",
                f"{record['warmup_seconds']:.1f}",
                f"{record['capture_seconds']:.1f}",
                f"{record['evaluation_seconds']:.1f}",
            ]
            for record in records
        ),
    ]


def speedrun_figure(records: Sequence[Record], theme: Theme = LIGHT) -> bytes:
    """Error on training images over time, a line an attempt, and its test error at the end."""
    figure, (axes,) = new_figure((8.6, 4.2), theme)
    for number, record in enumerate(records):
        color = _CYCLE[number % len(_CYCLE)]
        times = [line["seconds"] for line in record["curve"]]
        axes.plot(times, [line["error"] for line in record["curve"]], color=color, linewidth=1.6, label=_label(record))
        for error, marker in zip(record["errors"].values(), "oDs^", strict=True):
            axes.plot(times[-1], error, marker, color=color, markersize=6, markeredgecolor=theme.paper)
    goal = 100 - records[0]["target"]
    axes.axhline(goal, color=theme.ink, linewidth=1, linestyle="--")
    axes.text(0, goal, f" {goal:g} %", va="bottom", fontsize=9, color=theme.ink)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("seconds of training")
    axes.set_ylabel("error, %: lines training, ○ ◇ □ △ test, lights as in the table")
    axes.grid(axis="y", color=theme.faint, linewidth=0.8)
    axes.legend(fontsize=8, frameon=False, labelcolor=theme.ink)
    return png_of(figure)
