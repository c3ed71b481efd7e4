"""How well holes are filled, and how much of it depends on the light.

All numbers are over the missing pixels alone, a mean over images unless said otherwise. The image and what was in the
hole are relit together, in linear light, and nothing is rounded to 8 bits. `psnr`, `l1` and `l2` compare sRGB values,
clipped to [0, 1].

*Pattern stability* asks whether the same is filled in under another light. What is filled in at saturation S, in linear
light and before any clipping, is divided by the light; if the pattern is the same, that is what is filled in in white
light. Its PSNR to that, both as sRGB values and not clipped, is taken for each image, and the median over images is
reported. It is infinite at S = 0, and has no meaning at S = 1, where a channel of the light is 0: both are None. Light
that varies over the image is divided out pixel by pixel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from lightfast._experiments.lights import SATURATIONS, evaluation_lights, in_batches
from lightfast._pipelines.inpainter import CENTER, OVERLAP, Inpainter, center_mask
from lightfast.color import linear_to_srgb
from lightfast.light import LIGHT_KINDS, relight, varying_light
from lightfast.metrics import psnr

HOLE = slice(CENTER.start + OVERLAP, CENTER.stop - OVERLAP)
"""Rows and columns of the missing pixels."""

VARYING_SATURATION = 0.8
"""Saturation of the two lights between which light that varies over the image changes."""

STABLE_UP_TO = 0.8
"""The saturation up to which the worst pattern stability is quoted."""


@dataclass(frozen=True)
class HoleEvaluation:
    """What was measured on a set of images, a number for each saturation of the light.

    Attributes:
        saturations: of the light.
        psnr: in dB, the mean over images.
        l1: mean absolute error, in per cent of the range.
        l2: mean squared error, likewise.
        stability: pattern stability in dB, the median over images.
        stability_low: its first quartile.
        images: how many were looked at.
        varying: `psnr`, `stability` and `stability_low` under light of every kind in
            :data:`lightfast.light.LIGHT_KINDS`, of saturation 0.8.
    """

    saturations: tuple[float, ...]
    psnr: tuple[float, ...]
    l1: tuple[float, ...]
    l2: tuple[float, ...]
    stability: tuple[float | None, ...]
    stability_low: tuple[float | None, ...]
    images: int
    varying: dict[str, dict[str, float]]


@torch.no_grad()
def evaluate_inpainter(
    inpainter: Inpainter,
    images: Tensor,
    *,
    saturations: Sequence[float] = SATURATIONS,
    seed: int = 0,
    batch_size: int = 100,
    device: torch.device | str = "cpu",
) -> HoleEvaluation:
    """Relight the images, cut out the middle, fill it in, and compare.

    Images are sRGB, uint8 (N, 3, 128, 128). One has the same hue at every saturation; the seed is of the lights, which
    are drawn on the CPU for all images at once. The inpainter is put in evaluation mode and moved to the device.
    """
    inpainter = inpainter.to(device).eval()
    mask = center_mask().to(device)
    lights = [light.to(device) for light in evaluation_lights(len(images), saturations, seed)]
    several = [
        varying_light(kind, len(images), VARYING_SATURATION, generator=torch.Generator().manual_seed(seed + 1))
        for kind in LIGHT_KINDS
    ]
    rows: list[list[Tensor]] = [[] for _ in (*lights, *several)]
    with exact_convolutions():
        for chosen, batch in in_batches(images, batch_size, device):
            plain = inpainter.linear(batch, mask)[:, :, HOLE, HOLE]
            uniform = (light[chosen][:, :, None, None] for light in lights)
            varying = (light[chosen].maps(batch.shape[2:]).to(device) for light in several)
            for place, light in enumerate(chain(uniform, varying)):
                rows[place].append(_compare(inpainter, batch, mask, light, plain).cpu())
    tables = [torch.cat(row, 1) for row in rows]
    tables, under = tables[: len(lights)], dict(zip(LIGHT_KINDS, tables[len(lights) :], strict=True))
    meaningful = [0 < saturation < 1 for saturation in saturations]
    return HoleEvaluation(
        tuple(saturations),
        *(tuple(float(table[line].mean()) for table in tables) for line in range(3)),
        stability=tuple(float(t[3].median()) if ok else None for t, ok in zip(tables, meaningful, strict=True)),
        stability_low=tuple(
            float(t[3].quantile(0.25)) if ok else None for t, ok in zip(tables, meaningful, strict=True)
        ),
        images=len(images),
        varying={
            kind: {
                "psnr": float(table[0].mean()),
                "stability": float(table[3].median()),
                "stability_low": float(table[3].quantile(0.25)),
            }
            for kind, table in under.items()
        },
    )


def _compare(inpainter: Inpainter, batch: Tensor, mask: Tensor, light: Tensor, plain: Tensor) -> Tensor:
    """PSNR, L1, L2 and pattern stability of each image, (4, N), under light (N, 3, 1, 1) or (N, 3, H, W)."""
    relit = relight(batch, illuminants=light.expand_as(batch))
    filled = inpainter.linear(relit, mask)[:, :, HOLE, HOLE]
    shown, wanted = linear_to_srgb(filled.clamp(0, 1)), relit[:, :, HOLE, HOLE]
    difference = (shown - wanted).flatten(1)
    back = filled / light.expand_as(batch)[:, :, HOLE, HOLE].clamp(min=torch.finfo(light.dtype).tiny)
    # Where the light is 0 the ratio may be infinite; the number is not reported there.
    stable = psnr(linear_to_srgb(back).nan_to_num(), linear_to_srgb(plain)).clamp(max=200)
    return torch.stack([psnr(shown, wanted), 100 * difference.abs().mean(1), 100 * difference.square().mean(1), stable])


def worst_stability(saturations: Sequence[float], stability: Sequence[float | None]) -> float:
    """The lowest pattern stability at saturations up to 0.8.

    >>> worst_stability((0.0, 0.4, 0.8, 0.9), (None, 80.0, 70.0, 20.0))
    70.0
    """
    numbers = [
        number
        for saturation, number in zip(saturations, stability, strict=True)
        if number is not None and saturation <= STABLE_UP_TO
    ]
    return min(numbers, default=math.nan)


@contextmanager
def exact_convolutions() -> Iterator[None]:
    """Inside this context, float32 convolutions on a GPU are float32, and not TensorFloat-32."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before
