"""What all figures share, as PNG files: on white for papers, and on black for pages that are read at night."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from lightfast._experiments.summary import Summary


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

LINES: dict[str, tuple[str, str, str]] = {
    "original": ("#8a909c", "-", "o"),
    "augmentation": ("#e0892b", "-", "s"),
    "augmented": ("#e0892b", "-", "s"),
    "gray-world": ("#c2528b", "-", "v"),
    "shades-of-gray": ("#c2528b", "--", "^"),
    "quasi-unsupervised": ("#c2528b", ":", "D"),
    "gray-edge-1": ("#e0892b", "-", "s"),
    "pca": ("#e0892b", "--", "D"),
    "equivariant": ("#2f7fdf", "-", "o"),
    "equivariant-pixel": ("#2f7fdf", ":", "v"),
    "equivariant-free": ("#2f7fdf", "--", "s"),
    "equivariant-plane": ("#123f8c", "-", "o"),
    "equivariant-plane-free": ("#123f8c", "--", "s"),
    "equivariant-ensemble": ("#2f7fdf", ":", "D"),
    "wrapped": ("#2aa198", "--", "s"),
    "wrapped-plane": ("#2aa198", "-", "o"),
    "wrapped-quadratic": ("#2aa198", ":", "D"),
    "group-dropout": ("#6f5bd6", "-", "D"),
    "group-fill": ("#6f5bd6", "--", "^"),
    "free-group-fill": ("#6f5bd6", ":", "v"),
    "local": ("#6f5bd6", "-", "^"),
    "local-ensemble": ("#6f5bd6", ":", "v"),
    "histogram": ("#3f9a4c", "-", "P"),
    "statistics": ("#7a5230", "-", "p"),
    "general": ("#d1495b", "-", "h"),
    "general-ensemble": ("#d1495b", ":", "H"),
    "joint": ("#b8860b", "-", "*"),
    "joint-ensemble": ("#b8860b", ":", "X"),
}
"""Color, dash and mark by name, in all experiments: hue says the family, and the dash which of it."""


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


def draw_curves(
    axes: Any,
    theme: Theme,
    summaries: Sequence[Summary],
    x: Sequence[float],
    numbers: Callable[[Any], Sequence[float | None]],
) -> None:
    """A line for each summary, with the spread over seeds as a band.

    `numbers` gives those at each x from what was measured, as `lambda found: found["errors"]` does; None for none.
    """
    for summary in summaries:
        color, dash, marker = LINES.get(summary.name, (theme.ink, "-", "o"))
        mean = numbers(summary.mean)
        known = [place for place, number in enumerate(mean) if number is not None]
        places, y = [x[place] for place in known], [mean[place] for place in known]
        axes.plot(places, y, dash, color=color, marker=marker, markersize=4, linewidth=1.8, label=summary.title)
        if summary.spread is not None:
            spread = [numbers(summary.spread)[place] or 0.0 for place in known]
            low, high = ([a + sign * b for a, b in zip(y, spread, strict=True)] for sign in (-1, 1))  # pyright: ignore[reportOptionalOperand]
            axes.fill_between(places, low, high, color=color, alpha=0.2, linewidth=0)


def curve_figure(
    summaries: Sequence[Summary],
    x: Sequence[float],
    numbers: Callable[[Any], Sequence[float | None]],
    labels: tuple[str, str, str],
    theme: Theme,
    log_ticks: Sequence[float] = (),
) -> bytes:
    """Curves over a strength from 0 to 1, as :func:`draw_curves` draws them.

    The labels are the title, what x is, and what the numbers are. With `log_ticks`, numbers to write beside it, the
    axis is logarithmic; otherwise it is linear, from 0 on.
    """
    figure, (axes,) = new_figure((8.6, 4.8), theme)
    draw_curves(axes, theme, summaries, x, numbers)
    axes.set_xlim(-0.02, 1.02)
    axes.set_xticks([step / 10 for step in range(11)])
    if log_ticks:
        axes.set_yscale("log")
        axes.set_yticks(log_ticks, [f"{tick:g}" for tick in log_ticks])
        axes.minorticks_off()
    else:
        axes.set_ylim(bottom=0)
    label_axes(axes, theme, *labels, beside=bool(log_ticks))
    return png_of(figure)


def label_axes(axes: Any, theme: Theme, title: str, x: str, y: str, legend: bool = True, beside: bool = False) -> None:
    """Title, labels, lines across, and a legend: inside, or beside the axes."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title, loc="left", fontsize=11, color=theme.ink, pad=12)
    axes.grid(axis="y", color=theme.faint, linewidth=0.8)
    place: dict[str, Any] = {"loc": "upper left", "facecolor": theme.paper, "edgecolor": "none", "framealpha": 0.9}
    if beside:
        place = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5), "frameon": False}
    if legend:
        axes.legend(fontsize=9, labelcolor=theme.ink, **place)


def image_grid(
    rows: Sequence[tuple[str, Sequence[Tensor]]], titles: Sequence[str], theme: Theme, group: int | None = None
) -> bytes:
    """Rows of images (3, H, W) in [0, 1], each with its name; a gap after every `group` of them."""
    from matplotlib.figure import Figure

    group = group or len(rows)
    height, width = rows[0][1][0].shape[1:]
    wide, gap, left, top = 1.55, 0.18, 1.15, 0.45
    tall = wide * height / width
    blocks = -(-len(rows) // group)
    size = left + wide * len(titles), top + tall * len(rows) + gap * (blocks - 1) + 0.05
    figure = Figure(figsize=size, facecolor=theme.paper)
    for row, (name, images) in enumerate(rows):
        base = size[1] - top - tall * (row + 1) - gap * (row // group)
        for column, image in enumerate(images):
            place = (left + wide * column + 0.03) / size[0], (base + 0.03) / size[1]
            axes = figure.add_axes((*place, (wide - 0.06) / size[0], (tall - 0.06) / size[1]))
            axes.imshow(image.permute(1, 2, 0).clamp(0, 1).numpy(), interpolation="nearest")
            axes.set_xticks([])
            axes.set_yticks([])
            for spine in axes.spines.values():
                spine.set_visible(False)
            if row == 0:
                axes.set_title(titles[column], fontsize=10, color=theme.ink, pad=6)
            if column == 0:
                axes.set_ylabel(name, fontsize=9, color=theme.ink, labelpad=6)
    return png_of(figure)


def png_of(figure: Any) -> bytes:
    """The figure as a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        # Names of folders and classes are no formulas, whatever signs they have.
        text.set_parse_math("$" not in text.get_text())
    file = io.BytesIO()
    figure.set_dpi(150)
    FigureCanvasAgg(figure).print_png(file)
    return file.getvalue()
