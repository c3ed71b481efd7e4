"""Figures, as PNG files: on white for papers, and on black for pages that are read at night."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lightfast._experiments.recognition.evaluation import MIXED_SATURATION
from lightfast._experiments.recognition.examples import Answer, Example, decode_png
from lightfast._experiments.recognition.summary import StrategySummary
from lightfast._experiments.report.tables import VARYING

__all__ = ["DARK", "LIGHT", "Theme", "error_figure", "examples_figure", "new_figure", "png_of", "varying_figure"]


@dataclass(frozen=True)
class Theme:
    """Colors of paper and ink."""

    paper: str
    ink: str
    faint: str
    right: str
    wrong: str


LIGHT = Theme(paper="#ffffff", ink="#1f2430", faint="#d9dce3", right="#86b8f5", wrong="#c3c8d1")
DARK = Theme(paper="#16181d", ink="#e4e7ee", faint="#363b46", right="#2b62a8", wrong="#4b5260")

# Hue says the family, and the dash which of it.
_LINES: dict[str, tuple[str, str, str]] = {
    "original": ("#8a909c", "-", "o"),
    "augmentation": ("#e0892b", "-", "s"),
    "gray-world": ("#c2528b", "-", "v"),
    "shades-of-gray": ("#c2528b", "--", "^"),
    "quasi-unsupervised": ("#c2528b", ":", "D"),
    "equivariant": ("#2f7fdf", "-", "o"),
    "wrapped": ("#2aa198", "--", "s"),
    "wrapped-plane": ("#2aa198", "-", "o"),
    "wrapped-quadratic": ("#2aa198", ":", "D"),
    "group-dropout": ("#6f5bd6", "-", "D"),
    "equivariant-pixel": ("#2f7fdf", ":", "v"),
    "group-fill": ("#6f5bd6", "--", "^"),
    "equivariant-free": ("#2f7fdf", "--", "s"),
    "free-group-fill": ("#6f5bd6", ":", "v"),
}


def error_figure(summaries: Sequence[StrategySummary], title: str, theme: Theme = LIGHT) -> bytes:
    """Error over the saturation of the light, a line a strategy, with the spread over seeds as a band."""
    figure, (axes,) = new_figure((8.6, 4.8), theme)
    for summary in summaries:
        color, dash, marker = _LINES.get(summary.name, (theme.ink, "-", "o"))
        means = [error.mean for error in summary.errors]
        axes.plot(
            summary.saturations,
            means,
            dash,
            color=color,
            marker=marker,
            markersize=4,
            linewidth=1.8,
            label=summary.title,
        )
        if all(error.spread is not None for error in summary.errors):
            low = [error.mean - (error.spread or 0) for error in summary.errors]
            high = [error.mean + (error.spread or 0) for error in summary.errors]
            axes.fill_between(summary.saturations, low, high, color=color, alpha=0.2, linewidth=0)
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(bottom=0)
    axes.set_xticks([step / 10 for step in range(11)])
    axes.set_xlabel("saturation of the light")
    axes.set_ylabel("test error, %")
    axes.set_title(title, loc="left", fontsize=11, color=theme.ink, pad=12)
    axes.grid(axis="y", color=theme.faint, linewidth=0.8)
    axes.legend(
        loc="upper left", fontsize=9, labelcolor=theme.ink, facecolor=theme.paper, edgecolor="none", framealpha=0.9
    )
    return png_of(figure)


def varying_figure(summaries: Sequence[StrategySummary], title: str, theme: Theme = LIGHT) -> bytes:
    """Error in white light, under one light and under every kind of light that varies, a line of marks a strategy."""
    figure, (axes,) = new_figure((8.6, 4.8), theme)
    measured = [summary for summary in summaries if set(VARYING) <= set(summary.varying)]
    names = ["white", "one light", *VARYING.values()]
    for number, summary in enumerate(measured):
        color, _, marker = _LINES.get(summary.name, (theme.ink, "-", "o"))
        errors = [summary.at(0.0), summary.at(MIXED_SATURATION), *(summary.varying[kind] for kind in VARYING)]
        # Side by side, so that marks at the same height stay apart.
        places = [place + 0.6 * ((number + 0.5) / len(measured) - 0.5) for place in range(len(names))]
        axes.errorbar(
            places,
            [error.mean for error in errors],
            [error.spread or 0.0 for error in errors],
            fmt=marker,
            color=color,
            fillstyle="none" if marker != "o" else "full",
            markersize=6,
            elinewidth=1.4,
            label=summary.title,
        )
    axes.set_ylim(bottom=0)
    axes.set_xticks(range(len(names)), names)
    axes.set_ylabel("test error, %")
    axes.set_title(title, loc="left", fontsize=11, color=theme.ink, pad=12)
    axes.grid(axis="y", color=theme.faint, linewidth=0.8)
    axes.legend(
        loc="upper left", fontsize=9, labelcolor=theme.ink, facecolor=theme.paper, edgecolor="none", framealpha=0.9
    )
    return png_of(figure)


def examples_figure(examples: Sequence[Example], theme: Theme = LIGHT) -> bytes:
    """Images under growing saturation, and below each the most probable classes of both networks."""
    from matplotlib.figure import Figure

    columns = len(examples[0].saturations)
    figure = Figure(figsize=(2.15 * columns + 1.1, 3.9 * len(examples) + 0.5), facecolor=theme.paper)
    left, right = 0.085, 0.99
    groups = figure.add_gridspec(len(examples), 1, hspace=0.14, left=left, right=right, top=0.955, bottom=0.015)
    for number, example in enumerate(examples):
        cells = groups[number].subgridspec(3, columns, height_ratios=(2.1, 1, 1), hspace=0.16, wspace=0.12)
        for column, saturation in enumerate(example.saturations):
            axes = figure.add_subplot(cells[0, column])
            axes.imshow(decode_png(example.pngs[column]), interpolation="nearest")
            axes.set_axis_off()
            if number == 0:
                axes.set_title(f"S = {saturation:g}", fontsize=11, color=theme.ink, pad=8)
            for row, (name, answers) in enumerate(
                (("original", example.original), ("equivariant", example.equivariant)), start=1
            ):
                bars = figure.add_subplot(cells[row, column])
                _draw_bars(bars, answers[column], example.truth, theme)
                if column == 0:
                    bars.set_ylabel(name, fontsize=9, color=theme.ink, labelpad=8)
    return png_of(figure)


def _draw_bars(axes: Any, answer: Answer, truth: str, theme: Theme) -> None:
    for place, (name, probability) in enumerate(zip(answer.classes, answer.probabilities, strict=True)):
        is_right = name == truth
        axes.barh(place, 1, color=theme.faint, alpha=0.45, height=0.82)
        axes.barh(place, probability, color=theme.right if is_right else theme.wrong, height=0.82)
        weight = "bold" if is_right else "normal"
        axes.text(0.03, place, name, va="center", ha="left", fontsize=8, color=theme.ink, weight=weight)
        axes.text(0.97, place, f"{100 * probability:.0f} %", va="center", ha="right", fontsize=8, color=theme.ink)
    axes.set_xlim(0, 1)
    axes.set_ylim(len(answer.classes) - 0.5, -0.5)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_facecolor(theme.paper)
    for spine in axes.spines.values():
        spine.set_visible(False)


def new_figure(size: tuple[float, float], theme: Theme, columns: int = 1) -> tuple[Any, list[Any]]:
    """An empty figure of so many inches, and its axes side by side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, facecolor=theme.paper, layout="constrained")
    panels = [figure.add_subplot(1, columns, number + 1) for number in range(columns)]
    for axes in panels:
        axes.set_facecolor(theme.paper)
        axes.tick_params(colors=theme.ink, length=0, labelsize=9)
        axes.xaxis.label.set_color(theme.ink)
        axes.yaxis.label.set_color(theme.ink)
        axes.spines["bottom"].set_color(theme.faint)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
    return figure, panels


def png_of(figure: Any) -> bytes:
    """The figure as a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    file = io.BytesIO()
    figure.set_dpi(150)
    FigureCanvasAgg(figure).print_png(file)
    return file.getvalue()
