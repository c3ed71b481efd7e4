"""Figures of inpainting: curves over the saturation of the light, filled images, and the square that commutes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lightfast._experiments.inpainting.evaluation import HOLE, exact_convolutions
from lightfast._experiments.report.figures import (
    LIGHT,
    Theme,
    draw_curves,
    image_grid,
    label_axes,
    new_figure,
    png_of,
)
from lightfast._experiments.summary import Summary
from lightfast._pipelines.inpainter import Inpainter, center_mask
from lightfast.color import linear_to_srgb
from lightfast.light import random_illuminants, relight, von_kries

EXAMPLE_SATURATIONS = (0.0, 0.2, 0.4, 0.6, 0.8)

_MAGNIFIED = 8


def curves_figure(summaries: Sequence[Summary], test: str, theme: Theme = LIGHT) -> bytes:
    """PSNR and pattern stability over the saturation of the light, a line a network, on one of the test sets."""
    figure, panels = new_figure((10.4, 4.4), theme, columns=2)
    shown = {
        "psnr": (f"{test}: what was there", "PSNR, dB"),
        "stability": ("the same as in white light", "pattern stability, dB"),
    }
    saturations = summaries[0].mean["tests"][test]["saturations"]
    for axes, (kind, (title, text)) in zip(panels, shown.items(), strict=True):
        draw_curves(axes, theme, summaries, saturations, lambda measured, kind=kind: measured["tests"][test][kind])
        axes.set_xlim(-0.02, 1.02)
        axes.set_xticks([step / 10 for step in range(11)])
        label_axes(axes, theme, title, "saturation of the light", text, legend=axes is panels[0])
    panels[1].set_ylim(bottom=0)
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
    return image_grid(rows, titles, theme, group=2 + len(models))


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
    return image_grid(rows, titles, theme)


def _filled(model: Inpainter, images: Tensor) -> Tensor:
    with exact_convolutions():
        return model.cpu()(images, center_mask())
