"""Pictures that the project draws itself: textured objects in front of colored clutter, under light.

The class is the pair of shape and color, so both matter. The clutter averages to roughly gray, as the world does,
and that is what tells a red object in white light from a white one in red light.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from lightfast.color import hsv_to_rgb, linear_to_srgb
from lightfast.light import random_illuminants

SHAPES = ("disc", "square", "triangle")
COLORS = ("red", "green", "blue")
CLASSES = tuple(f"{color} {shape}" for shape in SHAPES for color in COLORS)
"""Nine classes: label `3 shape + color`."""


@torch.no_grad()
def draw(count: int, seed: int = 0, size: int = 24) -> tuple[Tensor, Tensor]:
    """Draw `count` pictures; the same seed and size give the same ones.

    Args:
        count: how many. Asking for more leaves the first ones as they are, up to whole blocks of 1024.
        seed: another seed, other pictures.
        size: height and width in pixels.

    Returns:
        sRGB images, uint8 (count, 3, size, size), and labels, int64 (count,), into :data:`CLASSES`.

    >>> images, labels = draw(4, seed=1)
    >>> images.shape, images.dtype, labels.shape
    (torch.Size([4, 3, 24, 24]), torch.uint8, torch.Size([4]))
    """
    if count < 0 or size < 8:
        raise ValueError(f"expected a count of at least 0 and a size of at least 8 pixels, not {count} and {size}")
    generator = torch.Generator().manual_seed(seed)
    blocks = [_draw_block(generator, size) for _ in range(math.ceil(count / _BLOCK))]
    images = torch.cat([images for images, _ in blocks] or [torch.empty(0, 3, size, size, dtype=torch.uint8)])
    labels = torch.cat([labels for _, labels in blocks] or [torch.empty(0, dtype=torch.int64)])
    return images[:count], labels[:count]


_BLOCK = 1024


def _draw_block(generator: torch.Generator, size: int) -> tuple[Tensor, Tensor]:
    n = _BLOCK
    labels = torch.randint(len(CLASSES), (n,), generator=generator)
    shape, color = labels // len(COLORS), labels % len(COLORS)
    grid = (torch.arange(size) + 0.5) / size * 2 - 1
    y, x = grid[None, :, None], grid[None, None, :]

    inside = _object_mask(shape, x, y, generator, softness=2 / size)
    reflectance = torch.lerp(_clutter(n, size, generator), _object_color(color, x, y, generator), inside[:, None])
    light = _light(n, x, y, generator)
    linear = reflectance * light + 0.004 * torch.randn(reflectance.shape, generator=generator)
    srgb = linear_to_srgb(linear.clamp(0, 1))
    return (srgb * 255).round().to(torch.uint8), labels


def _uniform(n: int, low: float, high: float, generator: torch.Generator) -> Tensor:
    """(n, 1, 1) numbers, to be combined with maps (n, H, W)."""
    return low + (high - low) * torch.rand((n, 1, 1), generator=generator)


def _object_mask(shape: Tensor, x: Tensor, y: Tensor, generator: torch.Generator, softness: float) -> Tensor:
    """1 inside the object, 0 outside, with an edge about a pixel wide: (n, H, W)."""
    n = len(shape)
    across, down = _uniform(n, -0.15, 0.15, generator), _uniform(n, -0.15, 0.15, generator)
    radius, angle = _uniform(n, 0.55, 0.75, generator), _uniform(n, -0.2, 0.2, generator)
    u = ((x - across) * angle.cos() + (y - down) * angle.sin()) / radius
    v = ((y - down) * angle.cos() - (x - across) * angle.sin()) / radius
    # Distances to the edge of shapes of equal area, positive inside.
    third = math.sqrt(3) / 2
    triangle = 0.78 - torch.stack([v, third * u - v / 2, -third * u - v / 2]).amax(0)
    edges = torch.stack([1 - (u * u + v * v).sqrt(), 0.886 - torch.maximum(u.abs(), v.abs()), triangle])
    chosen = edges.gather(0, shape.reshape(1, n, 1, 1).expand(1, *edges.shape[1:]))[0]
    return (chosen * radius / softness + 0.5).clamp(0, 1)


def _object_color(color: Tensor, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
    """The reflectance of the object, (n, 3, H, W): near the color of its name, with stripes or checks."""
    n = len(color)
    hue = color.float() / len(COLORS) + _uniform(n, -0.04, 0.04, generator)[:, 0, 0]
    saturation, value = _uniform(n, 0.55, 0.9, generator)[:, 0, 0], _uniform(n, 0.5, 0.95, generator)[:, 0, 0]
    base = hsv_to_rgb(torch.stack([hue, saturation, value], 1))
    angle, frequency = _uniform(n, 0, math.pi, generator), _uniform(n, 4, 12, generator)
    phase, depth = _uniform(n, 0, 2 * math.pi, generator), _uniform(n, 0.1, 0.4, generator)
    stripes = torch.sin(frequency * (x * angle.cos() + y * angle.sin()) + phase)
    checks = stripes * torch.sin(frequency * (y * angle.cos() - x * angle.sin()) + phase)
    texture = torch.where(_uniform(n, 0, 1, generator) < 0.5, stripes, checks)
    return base[:, :, None, None] * (1 - depth * (0.5 + 0.5 * texture))[:, None]


def _clutter(n: int, size: int, generator: torch.Generator) -> Tensor:
    """The reflectance of the background, (n, 3, H, W): soft colored patches that average to nearly gray."""
    patches = 0.4 * torch.randn((n, 3, 5, 5), generator=generator) + 0.2 * torch.randn(
        (n, 1, 5, 5), generator=generator
    )
    tint = 0.08 * torch.randn((n, 3, 1, 1), generator=generator)
    grain = 0.1 * torch.randn((n, 1, size, size), generator=generator)
    logs = F.interpolate(patches, size=(size, size), mode="bilinear", align_corners=True)
    logs = logs - logs.mean((2, 3), keepdim=True) + tint + grain
    return (_uniform(n, 0.12, 0.25, generator)[:, None] * logs.exp()).clamp(0.01, 0.95)


def _light(n: int, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
    """Light of nearly no color, some exposure, and shading across the picture: (n, 3, H, W)."""
    color = random_illuminants(n, 0.1 * torch.rand(n, generator=generator), generator=generator)
    angle, slope = _uniform(n, 0, 2 * math.pi, generator), _uniform(n, 0, 0.3, generator)
    shading = _uniform(n, 0.6, 1.0, generator) * (1 + slope * (x * angle.cos() + y * angle.sin()))
    return color[:, :, None, None] * shading[:, None]
