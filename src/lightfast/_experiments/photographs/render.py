"""Raw scenes under a known light as a camera would render them, balanced rightly or wrongly."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lightfast.color import linear_to_srgb, srgb_to_linear

__all__ = ["CASTS", "Renders", "render"]

CASTS = (0.0, 2.0, 5.0, 10.0, 20.0)
"""How wrong a camera's white balance is, in degrees between what should be gray and gray; 0 for right."""

# Cameras' matrices from their own colors to sRGB, rows summing to 1: off the diagonal lie about these, give or take.
_MATRIX = torch.tensor([[1.75, -0.60, -0.15], [-0.20, 1.55, -0.35], [0.02, -0.50, 1.48]])
_MATRIX_SPREAD = 0.08


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


def render(images: Tensor, illuminants: Tensor, cast: float, generator: torch.Generator, right: bool = True) -> Renders:
    """Render raw images (N, 3, H, W) under known illuminants (N, 3) with a white balance that is off by `cast` degrees.

    Gains are the right ones times an error: along the line from warm to cold for two in five pictures, to green or
    magenta for one, both for one, and for one any hue, as of a colored lamp. Then exposure, the camera's matrix,
    saturation, tone curve, clipping, and JPEG. Everything but the error is the same in `right`, which is the pictures
    themselves where it is not asked for.
    """
    n = len(images)
    mask = (images > 0).any(1, keepdim=True)
    balanced = images / (illuminants / illuminants[:, 1:2])[..., None, None]
    bright = torch.quantile(balanced.amax(1).flatten(1), 0.97, dim=1).clamp(min=1e-4)
    exposure = torch.empty(n).uniform_(0.6, 1.5, generator=generator) / bright
    matrix = _MATRIX + _MATRIX_SPREAD * torch.randn(n, 3, 3, generator=generator)
    saturation = torch.empty(n, 1, 1).uniform_(0.9, 1.25, generator=generator)
    matrix = torch.lerp(torch.full((3, 3), 1 / 3).expand(n, 3, 3), matrix, saturation)
    matrix = matrix / matrix.sum(2, keepdim=True)
    contrast = torch.empty(n).uniform_(0.0, 0.6, generator=generator)
    errors = _errors(n, cast, matrix, generator)

    def finish(error: Tensor) -> Tensor:
        light = (balanced * (error * exposure[:, None])[..., None, None]).clamp(max=1.5)
        colors = torch.einsum("nij,njhw->nihw", matrix, light).clamp(0, 1)
        encoded = linear_to_srgb(colors)
        curved = torch.lerp(encoded, encoded * encoded * (3 - 2 * encoded), contrast[:, None, None, None])
        return _jpeg(curved) * mask

    gray = torch.einsum("nij,nj->ni", matrix, errors).clamp(min=1e-3)
    pictures = finish(errors)
    rightly = finish(torch.ones(n, 3)) if right else pictures
    return Renders(pictures, rightly, torch.nn.functional.normalize(gray), mask)


def _errors(n: int, cast: float, matrix: Tensor, generator: torch.Generator) -> Tensor:
    """Gains (N, 3) that turn gray, after the camera's matrix, by `cast` degrees."""
    if cast == 0:
        return torch.ones(n, 3)
    warm, green = torch.tensor([1.0, 0.0, -1.0]), torch.tensor([-0.5, 1.0, -0.5])
    kind = torch.randint(5, (n, 1), generator=generator)
    sign = torch.randint(2, (n, 2), generator=generator) * 2.0 - 1
    angle = torch.rand(n, 1, generator=generator) * 2 * math.pi
    any_hue = angle.cos() * warm + angle.sin() * green
    both = sign[:, :1] * warm + sign[:, 1:] * 0.7 * green
    direction = torch.where(kind < 2, sign[:, :1] * warm, torch.where(kind == 2, sign[:, :1] * green, any_hue))
    direction = torch.where(kind == 3, both, direction)
    low, high = torch.zeros(n, 1), torch.full((n, 1), 2.5)
    for _ in range(30):
        middle = (low + high) / 2
        gray = torch.einsum("nij,nj->ni", matrix, (middle * direction).exp()).clamp(min=1e-3)
        turned = (gray.sum(1) / math.sqrt(3) / gray.norm(dim=1)).clamp(max=1).acos().rad2deg()[:, None]
        low, high = torch.where(turned < cast, middle, low), torch.where(turned < cast, high, middle)
    gains = (low * direction).exp()
    # As bright as before, so that an error does not also change how much is clipped.
    return gains / (gains @ torch.tensor([0.2126, 0.7152, 0.0722]))[:, None]


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
