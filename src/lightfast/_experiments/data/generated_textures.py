"""Textures that the project draws itself: patterns that go on where a hole is cut into them, in two colors."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lightfast._experiments.data.street import HoleImages
from lightfast.color import linear_to_srgb


@torch.no_grad()
def draw_textures(count: int, seed: int = 0, size: int = 128) -> Tensor:
    """Stripes, checks, plaids and rings, turned, scaled, colored and shaded at random; the same seed, the same ones.

    sRGB images, uint8 (count, 3, size, size).

    >>> draw_textures(2, size=32).shape
    torch.Size([2, 3, 32, 32])
    """
    generator = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand((count, *(shape or (1, 1, 1))), generator=generator)

    grid = (torch.arange(size) + 0.5) / size * 2 - 1
    y, x = grid[:, None], grid[None, :]
    angle, rate = uniform(0, math.pi), uniform(0.75, 2.5) * math.pi
    along, across = x * angle.cos() + y * angle.sin(), y * angle.cos() - x * angle.sin()
    first = (rate * along + uniform(0, 2 * math.pi)).sin()
    second = (rate * uniform(0.6, 1.6) * across + uniform(0, 2 * math.pi)).sin()
    rings = (1.5 * rate * ((x - uniform(-1, 1)).square() + (y - uniform(-1, 1)).square()).sqrt()).sin()
    kinds = torch.cat([first, first * second * 2, first + second, rings], 1)
    chosen = torch.randint(4, (count, 1, 1, 1), generator=generator).expand(-1, -1, size, size)
    pattern = torch.sigmoid(uniform(2, 8) * kinds.gather(1, chosen))
    tint = 0.15 * torch.randn((count, 3, 1, 1), generator=generator)
    dark, bright = (
        (tint + 0.4 * torch.randn((count, 3, 1, 1), generator=generator) + math.log(middle)).exp()
        for middle in (0.08, 0.35)
    )
    slope = uniform(-0.5, 0.5) * x + uniform(-0.5, 0.5) * y
    grain = 0.03 * torch.randn((count, 1, size, size), generator=generator)
    linear = torch.lerp(dark, bright, pattern) * (slope + grain).exp()
    return (linear_to_srgb(linear.clamp(0, 1)) * 255).round().to(torch.uint8)


def drawn_textures(train: int = 512, test: int = 64) -> HoleImages:
    """The textures as a set to train on and one to test on."""
    return HoleImages(
        "drawn textures", draw_textures(train, 1), {"Textures": draw_textures(test, 2)}, photographs=False
    )
