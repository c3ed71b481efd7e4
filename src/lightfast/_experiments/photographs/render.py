"""Raw scenes under a known light as a camera would render them, balanced rightly or wrongly."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lightfast.color import linear_to_srgb, srgb_to_linear

__all__ = ["CASTS", "Renders", "linear_of", "render", "unrendered"]

CASTS = (0.0, 2.0, 5.0, 10.0, 20.0)
"""How wrong a camera's white balance is, in degrees between what should be gray and gray; 0 for right."""

# Cameras' matrices from their own colors to sRGB, rows summing to 1: off the diagonal lie about these, give or take.
_MATRIX = torch.tensor([[1.75, -0.60, -0.15], [-0.20, 1.55, -0.35], [0.02, -0.50, 1.48]])
_MATRIX_SPREAD = 0.08
_SATURATION, _CONTRAST = (0.9, 1.25), (0.0, 0.6)
_DARKEST = 1e-3


@dataclass(frozen=True)
class Renders:
    """Pictures of scenes, and the same as they should be.

    Attributes:
        pictures: (N, 3, H, W) sRGB in steps of 1/255, as decoded from JPEG; 0 where a scene is masked.
        right: likewise, balanced rightly.
        gray: (N, 3), linear light of what should be gray, in the picture, of norm 1.
        mask: boolean (N, 1, H, W), true where a pixel counts.
    """

    pictures: Tensor
    right: Tensor
    gray: Tensor
    mask: Tensor


def render(
    images: Tensor,
    illuminants: Tensor,
    cast: float | Tensor,
    generator: torch.Generator,
    right: bool = True,
    compress: Callable[[Tensor], Tensor] | None = None,
) -> Renders:
    """Render raw images (N, 3, H, W) under known illuminants (N, 3) with a white balance that is off by `cast` degrees.

    Gains are the right ones times an error: along the line from warm to cold for two in five pictures, to green or
    magenta for one, both for one, and for one any hue, as of a colored lamp. Then exposure, the camera's matrix,
    saturation, tone curve, clipping, and JPEG. Everything but the error is the same in `right`, which is the pictures
    themselves where it is not asked for.

    Args:
        images: linear.
        illuminants: of any norm.
        cast: of all, or of each (N,).
        generator: on the images' device, or the CPU's.
        right: whether right pictures are wanted, too.
        compress: from and to sRGB in [0, 1]; JPEG by default.
    """
    n, device = len(images), images.device

    def uniform(low: float, high: float) -> Tensor:
        return (low + (high - low) * torch.rand(n, generator=generator, device=generator.device)).to(device)

    mask = (images > 0).any(1, keepdim=True)
    balanced = images / (illuminants / illuminants[:, 1:2])[..., None, None]
    bright = torch.quantile(balanced.amax(1).flatten(1), 0.97, dim=1).clamp(min=1e-4)
    exposure = uniform(0.6, 1.5) / bright
    other = torch.randn(n, 3, 3, generator=generator, device=generator.device).to(device)
    matrix = _MATRIX.to(device) + _MATRIX_SPREAD * other
    matrix = torch.lerp(torch.full_like(matrix, 1 / 3), matrix, uniform(*_SATURATION)[:, None, None])
    matrix = matrix / matrix.sum(2, keepdim=True)
    contrast = uniform(*_CONTRAST)[:, None, None, None]
    errors = _errors(torch.as_tensor(cast, device=device).expand(n), matrix, generator)

    def finish(error: Tensor) -> Tensor:
        light = (balanced * (error * exposure[:, None])[..., None, None]).clamp(max=1.5)
        colors = torch.einsum("nij,njhw->nihw", matrix, light).clamp(0, 1)
        encoded = linear_to_srgb(colors)
        curved = torch.lerp(encoded, encoded * encoded * (3 - 2 * encoded), contrast)
        return (compress or _jpeg)(curved) * mask

    gray = torch.einsum("nij,nj->ni", matrix, errors).clamp(min=1e-3)
    pictures = finish(errors)
    rightly = finish(torch.ones_like(errors)) if right else pictures
    return Renders(pictures, rightly, F.normalize(gray), mask)


def _errors(cast: Tensor, matrix: Tensor, generator: torch.Generator) -> Tensor:
    """Gains (N, 3) that turn gray, after the camera's matrix, by `cast` (N,) degrees."""
    n = len(cast)
    kind, chance = (torch.rand(n, k, generator=generator, device=generator.device).to(cast.device) for k in (1, 3))
    warm, green = cast.new_tensor([1.0, 0.0, -1.0]), cast.new_tensor([-0.5, 1.0, -0.5])
    sign = torch.where(chance[:, :2] < 0.5, -1.0, 1.0)
    angle = 2 * math.pi * chance[:, 2:]
    directions = (
        sign[:, :1] * warm,
        sign[:, :1] * green,
        sign[:, :1] * warm + 0.7 * sign[:, 1:] * green,
        angle.cos() * warm + angle.sin() * green,
    )
    direction = directions[0]
    for least, other in zip((0.4, 0.6, 0.8), directions[1:], strict=True):
        direction = torch.where(kind < least, direction, other)
    low, high = torch.zeros(n, 1, device=cast.device), torch.full((n, 1), 2.5, device=cast.device)
    for _ in range(16):
        middle = (low + high) / 2
        gray = torch.einsum("nij,nj->ni", matrix, (middle * direction).exp()).clamp(min=1e-3)
        less = ((gray.sum(1) / math.sqrt(3) / gray.norm(dim=1)).clamp(max=1).acos().rad2deg() < cast)[:, None]
        low, high = torch.where(less, middle, low), torch.where(less, high, middle)
    gains = torch.where(cast[:, None] > 0, low * direction, 0.0).exp()
    # As bright as before, so that an error does not also change how much is clipped.
    return gains / (gains @ gains.new_tensor([0.2126, 0.7152, 0.0722]))[:, None]


def _jpeg(pictures: Tensor, quality: int = 92) -> Tensor:
    from PIL import Image

    coded = []
    for picture in (255 * pictures).round().byte().permute(0, 2, 3, 1).numpy():
        file = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(picture)).save(file, "JPEG", quality=quality)
        coded.append(np.asarray(Image.open(file)))
    return torch.from_numpy(np.stack(coded)).permute(0, 3, 1, 2).float() / 255


def linear_of(pictures: Tensor, saturated: float = 0.99) -> Tensor:
    """What estimators see of pictures: linear light, 0 where a channel is saturated."""
    return srgb_to_linear(pictures) * (pictures < saturated).all(1, keepdim=True)


def unrendered(pictures: Tensor) -> Tensor:
    """Pictures (N, 3, H, W), sRGB, that a camera has balanced: as scenes in white light, by the usual matrix."""
    raw = torch.einsum("ij,njhw->nihw", _MATRIX.inverse().to(pictures), srgb_to_linear(pictures))
    return raw.clamp(min=_DARKEST)
