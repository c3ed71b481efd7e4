"""Scenes that the project draws itself: colored patches with shading, seen by several cameras under known light."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from lightfast._experiments.data.lit_scenes import LitScenes

_PATCHES = 24
_NOISE = 0.002


@torch.no_grad()
def draw_scenes(scenes: int = 120, cameras: int = 3, seed: int = 0, size: tuple[int, int] = (32, 48)) -> LitScenes:
    """Draw scenes, each under one light for each camera; the same arguments give the same ones.

    Reflectances average to nearly gray over many scenes, but not within one. A camera mixes the channels a little, has
    its own gains, and clips at 1. A rectangle of each image, where a color chart would be, is masked with 0.

    There are `scenes * cameras` images of this height and width; cameras add a little noise.

    >>> lit = draw_scenes(scenes=4, cameras=2, size=(16, 24))
    >>> lit.images.shape, lit.illuminants.norm(dim=1).round(decimals=3).unique()
    (torch.Size([8, 3, 16, 24]), tensor([1.]))
    """
    if scenes < 3 or cameras < 1 or min(size) < 8:
        raise ValueError(f"expected at least 3 scenes, 1 camera and 8 x 8 pixels, not {scenes}, {cameras} and {size}")
    generator = torch.Generator().manual_seed(seed)
    reflectances = _reflectances(scenes, size, generator)
    matrices, gains = _sensors(cameras, generator)
    images, lights = [], []
    for camera in range(cameras):
        light = _daylight(scenes, generator) * gains[camera]
        seen = torch.einsum("cd,ndhw->nchw", matrices[camera], reflectances).clamp(min=0.002)
        moved = seen.flip(3) if camera % 2 else seen
        exposure = 0.55 * 2 ** torch.rand((scenes, 1, 1, 1), generator=generator)
        image = moved * light[:, :, None, None] * exposure
        image = (image + _NOISE * torch.randn(image.shape, generator=generator)).clamp(1e-4, 1)
        images.append(image * _chart(scenes, size, generator))
        lights.append(light)
    names = tuple(f"camera-{chr(ord('a') + number)}" for number in range(cameras))
    folds = torch.stack([torch.randperm(scenes, generator=generator) % 3 + 1 for _ in range(cameras)])
    return LitScenes(
        "drawn scenes",
        torch.cat(images),
        F.normalize(torch.cat(lights)),
        names,
        torch.arange(cameras).repeat_interleave(scenes),
        torch.arange(scenes).repeat(cameras),
        folds.flatten(),
    )


def _reflectances(n: int, size: tuple[int, int], generator: torch.Generator) -> Tensor:
    """Patches around random centers, each of a color and with shading: (n, 3, H, W)."""
    height, width = size
    y = torch.linspace(0, 1, height)[:, None].expand(size)
    x = torch.linspace(0, width / height, width).expand(size)
    centers = torch.rand((n, _PATCHES, 2, 1, 1), generator=generator) * torch.tensor([1, width / height])[:, None, None]
    nearest = ((y - centers[:, :, 0]).square() + (x - centers[:, :, 1]).square()).argmin(1)
    tint = 0.1 * torch.randn((n, 3, 1), generator=generator)
    colors = tint + 0.45 * torch.randn((n, 3, _PATCHES), generator=generator)
    brightness = 0.5 * torch.randn((n, 1, _PATCHES), generator=generator) - 1.4
    # A patch in five has no color of its own: the walls, roads and clouds by which light is known.
    neutral = torch.rand((n, 1, _PATCHES), generator=generator) < 0.2
    logs = torch.where(neutral, brightness + 0.5, colors + brightness)
    patches = logs.gather(2, nearest.flatten(1)[:, None].expand(-1, 3, -1)).unflatten(2, size)
    slope = 0.5 * torch.randn((n, 2, 1, 1, 1), generator=generator)
    shading = slope[:, 0] * (y - 0.5) + slope[:, 1] * (x - 0.5)
    grain = 0.08 * torch.randn((n, 1, *size), generator=generator)
    return (patches + shading + grain).exp().clamp(max=1.2)


def _sensors(cameras: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Matrices (cameras, 3, 3) whose rows sum to 1, and gains (cameras, 3): green sees the most."""
    mixing = 0.08 * torch.rand((cameras, 3, 3), generator=generator)
    away = mixing * (1 - torch.eye(3))
    gains = torch.tensor([0.55, 1.0, 0.65]) * (0.12 * torch.randn((cameras, 3), generator=generator)).exp()
    return torch.eye(3) + away - torch.diag_embed(away.sum(2)), gains


def _daylight(n: int, generator: torch.Generator) -> Tensor:
    """Lights (n, 3) from reddish to bluish, and a little to either side."""
    warmth = 0.35 * torch.randn((n, 1), generator=generator)
    side = 0.05 * torch.randn((n, 1), generator=generator)
    return (warmth * torch.tensor([1.0, 0.0, -1.0]) + side * torch.tensor([0.5, -1.0, 0.5])).exp()


def _chart(n: int, size: tuple[int, int], generator: torch.Generator) -> Tensor:
    """0 in a rectangle of each image, 1 elsewhere: (n, 1, H, W)."""
    height, width = size
    tall, wide = height // 5, width // 5
    top = torch.randint(height - tall, (n, 1, 1, 1), generator=generator)
    left = torch.randint(width - wide, (n, 1, 1, 1), generator=generator)
    y, x = torch.arange(height)[:, None], torch.arange(width)
    inside = (y >= top) & (y < top + tall) & (x >= left) & (x < left + wide)
    return (~inside).float()
