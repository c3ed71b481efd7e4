"""Figures of inpainting: curves over the saturation of the light, filled images, and the square that commutes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lightfast._experiments.inpainting.evaluation import HOLE, exact_convolutions
from lightfast._experiments.report.figures import LIGHT, Theme, new_figure, png_of
from lightfast._pipelines.inpainter import Inpainter, center_mask
from lightfast.color import linear_to_srgb
from lightfast.light import random_illuminants, relight, von_kries

__all__ = ["EXAMPLE_SATURATIONS", "curves_figure", "filled_figure", "square_figure"]

EXAMPLE_SATURATIONS = (0.0, 0.2, 0.4, 0.6, 0.8)

_LINES = {
    "original": ("#8a909c", "-", "o"),
    "wrapped": ("#2aa198", "--", "s"),
    "equivariant": ("#2f7fdf", "-", "o"),
    "equivariant-free": ("#6f5bd6", "-", "D"),
}
_MAGNIFIED = 8


def curves_figure(results: Mapping[str, Any], test: str, theme: Theme = LIGHT) -> bytes:
    """PSNR and pattern stability over the saturation of the light, a line a network, on one of the test sets."""
    figure, panels = new_figure((10.4, 4.4), theme, columns=2)
    for name, network in results["networks"].items():
        found = network["tests"][test]
        color, dash, marker = _LINES[name]
        how = {"color": color, "marker": marker, "markersize": 4, "linewidth": 1.8, "label": network["title"]}
        for axes, kind in zip(panels, ("psnr", "stability"), strict=True):
            known = [place for place, number in enumerate(found[kind]) if number is not None]
            x, y = ([column[place] for place in known] for column in (found["saturations"], found[kind]))
            axes.plot(x, y, dash, **how)
            if f"{kind}_spread" in found:
                spread = [found[f"{kind}_spread"][place] for place in known]
                low, high = ([a + sign * b for a, b in zip(y, spread, strict=True)] for sign in (-1, 1))
                axes.fill_between(x, low, high, color=color, alpha=0.2, linewidth=0)
    for axes, text in zip(panels, ("PSNR, dB", "pattern stability, dB"), strict=True):
        axes.set_xlim(-0.02, 1.02)
        axes.set_xticks([step / 10 for step in range(11)])
        axes.set_xlabel("saturation of the light")
        axes.set_ylabel(text)
        axes.grid(axis="y", color=theme.faint, linewidth=0.8)
    panels[1].set_ylim(bottom=0)
    panels[0].set_title(f"{test}: what was there", loc="left", fontsize=11, color=theme.ink, pad=12)
    panels[1].set_title("the same as in white light", loc="left", fontsize=11, color=theme.ink, pad=12)
    panels[0].legend(loc="upper left", fontsize=9, labelcolor=theme.ink, facecolor=theme.paper, edgecolor="none")
    return png_of(figure)


@torch.no_grad()
def filled_figure(models: Mapping[str, Inpainter], images: Tensor, theme: Theme = LIGHT, seed: int = 0) -> bytes:
    """Images (N, 3, 128, 128), sRGB in [0, 1], under growing saturation: real, cut, and filled by each model."""
    mask = center_mask()
    rows: list[tuple[str, list[Tensor]]] = []
    for number, image in enumerate(images):
        generators = [torch.Generator().manual_seed(seed + number) for _ in EXAMPLE_SATURATIONS]
        relit = torch.cat(
            [
                relight(image[None], saturation, generator=generator)
                for saturation, generator in zip(EXAMPLE_SATURATIONS, generators, strict=True)
            ]
        )
        rows += [("real", list(relit)), ("cut", list(torch.where(mask, 0.5, relit)))]
        rows += [(name, list(_filled(model, relit))) for name, model in models.items()]
    titles = [f"S = {saturation:g}" for saturation in EXAMPLE_SATURATIONS]
    return _grid(rows, titles, theme, group=2 + len(models))


@torch.no_grad()
def square_figure(models: Mapping[str, Inpainter], image: Tensor, theme: Theme = LIGHT, seed: int = 3) -> bytes:
    """An image (3, 128, 128) filled and then relit, and relit and then filled, for each model, and the difference."""
    mask, white = center_mask(), image[None]
    light = random_illuminants(1, 0.8, generator=torch.Generator().manual_seed(seed))
    rows: list[tuple[str, list[Tensor]]] = []
    for name, model in models.items():
        with exact_convolutions():
            later = von_kries(model.cpu().linear(white, mask), light)
            sooner = model.linear(relight(white, illuminants=light), mask)
        shown = [linear_to_srgb(linear.clamp(0, 1)) for linear in (later, sooner)]
        difference = (linear_to_srgb(later) - linear_to_srgb(sooner)).abs()
        largest = float(difference[:, :, HOLE, HOLE].max())
        cut = torch.where(mask, 0.5, white)
        filled = model(white, mask)
        parts = [cut, filled, *shown, (_MAGNIFIED * difference).clamp(0, 1)]
        rows.append((f"{name}\nlargest difference {largest:.1g}", [part[0] for part in parts]))
    titles = ["image", "filled", "filled, then relit", "relit, then filled", f"difference × {_MAGNIFIED}"]
    return _grid(rows, titles, theme)


def _filled(model: Inpainter, images: Tensor) -> Tensor:
    with exact_convolutions():
        return model.cpu()(images, center_mask())


def _grid(
    rows: Sequence[tuple[str, Sequence[Tensor]]], titles: Sequence[str], theme: Theme, group: int | None = None
) -> bytes:
    """Rows of images (3, H, W) in [0, 1], each with its name; a gap after every `group` of them."""
    from matplotlib.figure import Figure

    group = group or len(rows)
    cell, gap, left, top = 1.55, 0.18, 1.15, 0.45
    blocks = -(-len(rows) // group)
    size = left + cell * len(titles), top + cell * len(rows) + gap * (blocks - 1) + 0.05
    figure = Figure(figsize=size, facecolor=theme.paper)
    for row, (name, images) in enumerate(rows):
        base = size[1] - top - cell * (row + 1) - gap * (row // group)
        for column, image in enumerate(images):
            place = (left + cell * column + 0.03) / size[0], (base + 0.03) / size[1]
            axes = figure.add_axes((*place, (cell - 0.06) / size[0], (cell - 0.06) / size[1]))
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
