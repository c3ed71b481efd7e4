"""Light that varies over the image: between two illuminants in gradients, halves, blobs and shadows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from lightfast.light._illuminants import random_illuminants, saturations, uniform

LightKind = Literal["log-gradient", "gradient", "spot", "shadow", "halves"]
"""The name of a way in which light varies: see :data:`LIGHT_KINDS`."""

LIGHT_KINDS: tuple[LightKind, ...] = get_args(LightKind)
"""Light that varies over the image: gradients in log and in linear light, a spot, a soft shadow, a hard edge."""


def gradient_light(
    first: Tensor,
    second: Tensor,
    size: Sequence[int],
    *,
    angle: float | Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Light that turns evenly from one illuminant into another across the image: two (N, C) to (N, C, H, W).

    Each map is `(1 - w) first + w second`, where `w` grows in proportion to the distance along a direction,
    from 0 in one corner to 1 in the opposite one.

    Args:
        first: illuminants (N, C) where `w` is 0.
        second: illuminants (N, C) where `w` is 1.
        size: (H, W) of the images.
        angle: direction in which `w` grows, in radians from rightwards towards downwards: a number or (N,);
            by default random for each image.
        generator: where the random directions come from.

    >>> white, red = torch.ones(1, 3), torch.tensor([[1.0, 0.0, 0.0]])
    >>> gradient_light(white, red, (1, 5), angle=0.0)[0, 1]
    tensor([[1.0000, 0.7500, 0.5000, 0.2500, 0.0000]])
    """
    _require_lights(first, second)
    return _mix(first, second, (_along(first, size, angle, generator) + 1) / 2)


def log_gradient_light(
    first: Tensor,
    second: Tensor,
    size: Sequence[int],
    *,
    angle: float | Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Light whose logarithm turns evenly from one illuminant into another: two (N, C) to (N, C, H, W).

    Each map is `first^(1 - w) second^w` with the `w` of :func:`gradient_light`, whose arguments these are. Its
    logarithm is a plane over the image, a field of order 1 in :mod:`lightfast.fields`.

    >>> white, dim = torch.ones(1, 3), torch.full((1, 3), 1 / 16)
    >>> log_gradient_light(white, dim, (1, 5), angle=0.0)[0, 1]
    tensor([[1.0000, 0.5000, 0.2500, 0.1250, 0.0625]])
    """
    _require_lights(first, second)
    weight = ((_along(first, size, angle, generator) + 1) / 2)[:, None]
    dtype = torch.promote_types(torch.promote_types(first.dtype, second.dtype), weight.dtype)
    start, end = (light.to(dtype)[:, :, None, None] for light in (first, second))
    light = start ** (1 - weight) * end**weight
    # Rounding must not lead beyond the two lights.
    return torch.minimum(torch.maximum(light, torch.minimum(start, end)), torch.maximum(start, end)).to(first.dtype)


def halves_light(
    first: Tensor,
    second: Tensor,
    size: Sequence[int],
    *,
    angle: float | Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Light with a sharp edge through the middle of the image: two (N, C) to (N, C, H, W).

    The arguments are those of :func:`gradient_light`; `w` is 0 up to the middle and 1 beyond it.

    >>> white, red = torch.ones(1, 3), torch.tensor([[1.0, 0.0, 0.0]])
    >>> halves_light(white, red, (1, 4), angle=0.0)[0, 1]
    tensor([[1., 1., 0., 0.]])
    """
    _require_lights(first, second)
    along = _along(first, size, angle, generator)
    return _mix(first, second, (along > 0).to(along.dtype))


def blobs_light(
    first: Tensor,
    second: Tensor,
    size: Sequence[int],
    *,
    count: int = 3,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Soft blobs of one light in another, as of lamps in a dim room: two (N, C) to (N, C, H, W).

    Each map is `(1 - w) first + w second` with `w = 1 - Π_k (1 - exp(-d_k² / 2 r_k²))`, where `d_k` is the
    distance to a random center in the image, and the radius `r_k` is between 1/10 and 3/10 of the longer
    side.

    Args:
        first: illuminants (N, C) between the blobs.
        second: illuminants (N, C) inside of them.
        size: (H, W) of the images.
        count: how many blobs an image has.
        generator: where the random centers and radii come from.

    >>> lights = blobs_light(torch.ones(2, 3), torch.full((2, 3), 0.5), (8, 8))
    >>> lights.shape, bool(((lights >= 0.5) & (lights <= 1)).all())
    (torch.Size([2, 3, 8, 8]), True)
    """
    _require_lights(first, second)
    if count < 1:
        raise ValueError(f"count must be at least 1, not {count}: without a blob the light is uniform")
    return _spots(first, second, size, uniform((3, len(first), count), generator, first.device))


def shadow_light(
    first: Tensor, second: Tensor, size: Sequence[int], *, generator: torch.Generator | None = None
) -> Tensor:
    """A soft shadow across the image, as of a post or the frame of a window: two (N, C) to (N, C, H, W).

    Each map is `(1 - w) first + w second` with `w = 1 / (1 + exp((|d| - r) / s))`, where `d` is the distance to a
    random line through the middle part of the image. Half the width of the shadow, `r`, is between 1/10 and 3/10 of
    the longer side, and the softness of its edge, `s`, between 1/50 and 2/25 of it.

    Args:
        first: illuminants (N, C) of what lies in the light.
        second: illuminants (N, C) that reach into the shadow, from the sky or from walls.
        size: (H, W) of the images.
        generator: where the random lines, widths and edges come from.

    >>> lights = shadow_light(torch.ones(2, 3), torch.full((2, 3), 0.5), (8, 8))
    >>> lights.shape, bool(((lights >= 0.5) & (lights <= 1)).all())
    (torch.Size([2, 3, 8, 8]), True)
    """
    _require_lights(first, second)
    return _shadow(first, second, size, uniform((4, len(first)), generator, first.device))


@dataclass(frozen=True)
class VaryingLight:
    """Light that varies over each of N images, drawn, but not yet seen at any size: what :func:`varying_light` gives.

    Attributes:
        kind: one of :data:`LIGHT_KINDS`.
        first: illuminants (N, 3) of one part of the image.
        second: illuminants (N, 3) of the other.
        shape: (4, N), in [0, 1): direction, place and width of what divides them.
    """

    kind: LightKind
    first: Tensor
    second: Tensor
    shape: Tensor

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, chosen: slice | Tensor) -> VaryingLight:
        """The light of some of the images."""
        return VaryingLight(self.kind, self.first[chosen], self.second[chosen], self.shape[:, chosen])

    def to(self, device: torch.device | str) -> VaryingLight:
        """The same on another device."""
        return VaryingLight(self.kind, self.first.to(device), self.second.to(device), self.shape.to(device))

    def maps(self, size: Sequence[int]) -> Tensor:
        """The illuminant of every pixel, (N, 3, H, W), for :func:`relight`."""
        if self.kind in ("spot", "shadow"):
            if self.kind == "spot":
                return _spots(self.first, self.second, size, self.shape[:3, :, None])
            return _shadow(self.first, self.second, size, self.shape)
        pattern = {"log-gradient": log_gradient_light, "gradient": gradient_light, "halves": halves_light}[self.kind]
        return pattern(self.first, self.second, size, angle=2 * math.pi * self.shape[0])


def varying_light(
    kind: LightKind,
    n: int,
    saturation: float | Tensor,
    *,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> VaryingLight:
    """Light that varies over each of `n` images, between two illuminants of random hue and the given saturation.

    `log-gradient`, `gradient` and `halves` are :func:`log_gradient_light`, :func:`gradient_light` and
    :func:`halves_light` in a random direction; `spot` is :func:`blobs_light` with one blob; `shadow` is
    :func:`shadow_light`, where the light in the shadow is also darker, by half of the saturation. At saturation 0 all
    are white light, 1 everywhere.

    Args:
        kind: one of :data:`LIGHT_KINDS`. From the same generator all kinds have the same illuminants.
        n: how many.
        saturation: as in :func:`random_illuminants`, and so are the others.
        generator: where everything random comes from.
        device: by default the generator's.
        dtype: by default torch's default.

    >>> from lightfast.light import relight
    >>> light = varying_light("shadow", 5, 0.9, generator=torch.Generator().manual_seed(0))
    >>> relight(torch.rand(5, 3, 8, 8), illuminants=light.maps((8, 8))).shape
    torch.Size([5, 3, 8, 8])
    """
    if kind not in LIGHT_KINDS:
        raise ValueError(f"light that varies over the image is of kind {', '.join(LIGHT_KINDS)}, not {kind!r}")
    first, second = (
        random_illuminants(n, saturation, generator=generator, device=device, dtype=dtype) for _ in range(2)
    )
    shape = uniform((4, n), generator, device)
    if kind == "shadow":
        second = second * (1 - saturations(saturation, second[:, 0]) / 2)[:, None]
    return VaryingLight(kind, first, second, shape)


def _spots(first: Tensor, second: Tensor, size: Sequence[int], shape: Tensor) -> Tensor:
    """Soft blobs of the second light in the first; `shape` (3, N, blobs), in [0, 1), says where and how large."""
    y, x = _pixel_grid(size, first.device)
    across, down, radius = shape[..., None, None]
    distance2 = (x - (across - 0.5) * size[1]).square() + (y - (down - 0.5) * size[0]).square()
    outside = -torch.expm1(-distance2 / (2 * ((0.1 + 0.2 * radius) * max(size)).square()))
    return _mix(first, second, 1 - outside.prod(1))


def _shadow(first: Tensor, second: Tensor, size: Sequence[int], shape: Tensor) -> Tensor:
    """A soft band of the second light in the first; `shape` (4, N), in [0, 1), says where, how wide and how soft."""
    y, x = _pixel_grid(size, first.device)
    angle, place, width, softness = shape[..., None, None]
    angle, side = 2 * math.pi * angle, max(size)
    distance = (x * angle.cos() + y * angle.sin() - 0.6 * (place - 0.5) * side).abs()
    inside = ((0.1 + 0.2 * width) * side - distance) / ((0.02 + 0.06 * softness) * side)
    return _mix(first, second, inside.sigmoid())


def _mix(first: Tensor, second: Tensor, weight: Tensor) -> Tensor:
    """`(1 - w) first + w second` for illuminants (N, C) and weights (N, H, W) in [0, 1]."""
    dtype = torch.promote_types(torch.promote_types(first.dtype, second.dtype), weight.dtype)
    first_map, second_map = (light.to(dtype)[:, :, None, None] for light in (first, second))
    return torch.lerp(first_map, second_map, weight.to(dtype)[:, None]).to(first.dtype)


def _along(
    first: Tensor, size: Sequence[int], angle: float | Tensor | None, generator: torch.Generator | None
) -> Tensor:
    """How far each pixel lies along a direction, (N, H, W): from -1 in one corner to 1 in the opposite."""
    n = len(first)
    if angle is None:
        angle = 2 * math.pi * uniform((n,), generator, first.device)
    dtype = torch.promote_types(first.dtype, torch.float32)
    angle = torch.as_tensor(angle, dtype=dtype, device=first.device)
    if angle.shape not in ((), (n,)):
        raise ValueError(f"angle must be one number or of shape ({n},), not {tuple(angle.shape)}")
    angle = angle.expand(n)[:, None, None]
    y, x = _pixel_grid(size, first.device, dtype)
    along = x * angle.cos() + y * angle.sin()
    extent = along.abs().amax((1, 2), keepdim=True)
    return along / extent.clamp(min=torch.finfo(extent.dtype).tiny)


def _pixel_grid(size: Sequence[int], device: torch.device, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Pixel centers in pixels from the middle of the image: y as (H, 1), x as (W,)."""
    if len(size) != 2 or min(size) < 1:
        raise ValueError(f"size must be the height and the width of the images, not {tuple(size)}")
    y, x = (torch.arange(pixels, dtype=dtype, device=device) - (pixels - 1) / 2 for pixels in size)
    return y[:, None], x


def _require_lights(first: Tensor, second: Tensor) -> None:
    if first.ndim != 2 or first.shape != second.shape or not first.is_floating_point():
        raise ValueError(
            "expected two floating point illuminants (N, C) of the same shape, but got "
            f"{first.dtype} of shape {tuple(first.shape)} and {second.dtype} of shape {tuple(second.shape)}"
        )
