"""Augmentation of whole batches on their device, different for each image and the same for the same generator.

Images are (N, C, H, W). Random numbers are drawn where the generator lives and then moved. Nothing is read back by the
host, so all of it can be captured in a CUDA graph.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from lightfast.color import hsv_to_rgb
from lightfast.light import relight

_LUMA = (0.299, 0.587, 0.114)


def pad_crop(images: Tensor, pad: int, generator: torch.Generator) -> Tensor:
    """Each image shifted by up to `pad` pixels both ways, with zeros where it left: pad, then crop at random.

    Shapes: (N, C, H, W), unchanged; any type.

    >>> images = torch.ones(2, 3, 8, 8, dtype=torch.uint8)
    >>> pad_crop(images, 4, torch.Generator().manual_seed(0)).shape
    torch.Size([2, 3, 8, 8])
    """
    n, channels, height, width = images.shape
    shift = torch.randint(-pad, pad + 1, (2, n, 1, 1), generator=generator, device=generator.device).to(images.device)
    rows = torch.arange(height, device=images.device)[:, None] + shift[0]
    columns = torch.arange(width, device=images.device) + shift[1]
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    position = rows.clamp(0, height - 1) * width + columns.clamp(0, width - 1)
    index = position.view(n, 1, -1).expand(n, channels, -1)
    moved = images.flatten(2).gather(2, index).view(images.shape)
    return moved.masked_fill(~inside[:, None], 0)


def random_flip(images: Tensor, generator: torch.Generator, probability: float = 0.5) -> Tensor:
    """Each image mirrored left to right with this probability. Shapes: (N, C, H, W), unchanged; any type."""
    chosen = _uniform((len(images), 1, 1, 1), 0, 1, generator, images.device) < probability
    return torch.where(chosen, images.flip(3), images)


def random_affine(images: Tensor, shift: float, turn: float, zoom: float, generator: torch.Generator) -> Tensor:
    """Each image moved, turned and scaled a little, with its border continued where it left.

    Args:
        images: (N, C, H, W), floating point.
        shift: largest, both ways, as a share of the image's height and width.
        turn: largest angle, in degrees.
        zoom: largest factor of its size is 1 + zoom, and smallest 1 / (1 + zoom).
        generator: where the random numbers come from.

    >>> images = torch.rand(2, 3, 8, 8)
    >>> torch.allclose(random_affine(images, 0, 0, 0, torch.Generator()), images, atol=1e-5)
    True
    """
    draw = _uniform((4, len(images)), -1, 1, generator, images.device).to(images.dtype)
    angle, size = draw[0] * math.radians(turn), (draw[1] * math.log1p(zoom)).exp()
    cos, sin = angle.cos() / size, angle.sin() / size
    # From -1 to 1 is the whole extent, so a share of it counts twice.
    rows = [torch.stack([cos, -sin, 2 * shift * draw[2]], 1), torch.stack([sin, cos, 2 * shift * draw[3]], 1)]
    grid = F.affine_grid(torch.stack(rows, 1), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


def random_erasing(
    images: Tensor,
    probability: float,
    generator: torch.Generator,
    scale: tuple[float, float] = (0.02, 0.33),
    ratio: tuple[float, float] = (0.3, 3.3),
    fill: float | Tensor = 0.0,
) -> Tensor:
    """A random rectangle of each image replaced with this probability (Zhong et al. 2020).

    Args:
        images: (N, C, H, W), of any type.
        probability: of an image to lose a rectangle.
        generator: where the random numbers come from.
        scale: smallest and largest share of the image's area.
        ratio: smallest and largest ratio of height to width.
        fill: what takes its place: a number, or a tensor that broadcasts with images, such as a mean (C, 1, 1).
    """
    n, _, height, width = images.shape
    rows, columns = _rectangles(n, (height, width), scale, ratio, generator, images.device)
    chosen = _uniform((n, 1, 1), 0, 1, generator, images.device) < probability
    y = torch.arange(height, device=images.device)[:, None] + 0.5
    x = torch.arange(width, device=images.device) + 0.5
    inside = (y > rows[0]) & (y < rows[1]) & (x > columns[0]) & (x < columns[1]) & chosen
    if isinstance(fill, Tensor):
        return torch.where(inside[:, None], fill.to(images), images)
    return images.masked_fill(inside[:, None], fill)


def random_resized_crop(
    images: Tensor,
    size: int | tuple[int, int],
    generator: torch.Generator,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> Tensor:
    """A random part of each image, resized: (N, C, H, W) to (N, C, *size), of the same type.

    Resized with bilinear interpolation, without smoothing first: meant for parts that grow, or shrink by less than 2.

    Args:
        images: (N, C, H, W), floating point, or uint8, which is rounded.
        size: height and width of the result, or one number for both.
        generator: where the random numbers come from.
        scale: smallest and largest share of the image's area.
        ratio: smallest and largest ratio of width to height. A part that would not fit is cut to the image.
    """
    n, _, height, width = images.shape
    inverse = (1 / ratio[1], 1 / ratio[0])
    rows, columns = _rectangles(n, (height, width), scale, inverse, generator, images.device)
    tall, wide = (size, size) if isinstance(size, int) else size
    down = (torch.arange(tall, device=images.device)[:, None] + 0.5) / tall
    across = (torch.arange(wide, device=images.device) + 0.5) / wide
    # grid_sample counts from -1 at one border of the image to 1 at the other.
    y = torch.lerp(*rows, down) * (2 / height) - 1
    x = torch.lerp(*columns, across) * (2 / width) - 1
    grid = torch.stack([x.expand(n, tall, wide), y.expand(n, tall, wide)], 3)
    values = images if images.is_floating_point() else images.float()
    parts = F.grid_sample(values, grid.to(values.dtype), padding_mode="border", align_corners=False)
    return parts if images.is_floating_point() else parts.round().to(images.dtype)


def color_jitter(
    images: Tensor,
    brightness: float,
    contrast: float,
    saturation: float,
    hue: float,
    generator: torch.Generator,
) -> Tensor:
    """Brightness, contrast, saturation and hue of each image changed at random, in this order.

    As torchvision's ColorJitter, whose order is random: a factor from `[1 - strength, 1 + strength]` scales the image,
    its difference from its mean luma, and its difference from its own luma; hue turns by up to `hue` turns. Each result
    is clipped to [0, 1].

    Images are (N, 3, H, W), sRGB in [0, 1], floating point. A strength of 0 is for none; that of hue is at most 0.5.

    >>> images = torch.rand(2, 3, 4, 4)
    >>> bool((color_jitter(images, 0, 0, 0, 0, torch.Generator()) == images).all())
    True
    """
    for name, strength in (("brightness", brightness), ("contrast", contrast), ("saturation", saturation)):
        if strength < 0:
            raise ValueError(f"{name} must be at least 0, not {strength}")
    if not 0 <= hue <= 0.5:
        raise ValueError(f"hue is in turns, between 0 and 0.5, not {hue}")
    draw = _uniform((4, len(images), 1, 1, 1), -1, 1, generator, images.device).to(images.dtype)
    if brightness:
        images = (images * _factor(brightness, draw[0])).clamp(0, 1)
    if contrast:
        gray = _luma(images).mean((2, 3), keepdim=True)
        images = torch.lerp(gray.expand_as(images), images, _factor(contrast, draw[1])).clamp(0, 1)
    if saturation:
        images = torch.lerp(_luma(images).expand_as(images), images, _factor(saturation, draw[2])).clamp(0, 1)
    if hue:
        images = _turn_hue(images, hue * draw[3]).clamp(0, 1)
    return images


def random_relight(images: Tensor, saturation: float, generator: torch.Generator) -> Tensor:
    """Each image under a random light: any hue, saturation uniform from 0 to this. sRGB (N, 3, H, W), unchanged."""
    each = _uniform((len(images),), 0, saturation, generator, images.device)
    return relight(images, each, generator=generator)


def _factor(strength: float, draw: Tensor) -> Tensor:
    """`draw` from -1 to 1 to the range from `max(0, 1 - strength)` to `1 + strength`."""
    low = max(0.0, 1 - strength)
    return low + (1 + strength - low) * (draw + 1) / 2


def _luma(images: Tensor) -> Tensor:
    red, green, blue = images.split(1, 1)
    return _LUMA[0] * red + _LUMA[1] * green + _LUMA[2] * blue


def _turn_hue(images: Tensor, turns: Tensor) -> Tensor:
    """Add to the hue of HSV, in turns."""
    value, minimum = images.amax(1), images.amin(1)
    chroma = value - minimum
    red, green, blue = images.unbind(1)
    safe = torch.where(chroma > 0, chroma, torch.ones_like(chroma))
    hue = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    saturation = chroma / torch.where(value > 0, value, torch.ones_like(value))
    return hsv_to_rgb(torch.stack([hue / 6 + turns[:, 0], saturation, value], 1))


def _rectangles(
    n: int,
    size: tuple[int, int],
    scale: tuple[float, float],
    ratio: tuple[float, float],
    generator: torch.Generator,
    device: torch.device,
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """(First, last) row and (first, last) column of random rectangles, each (n, 1, 1); `ratio` is height to width."""
    height, width = size
    area = _uniform((n, 1, 1), *scale, generator, device) * (height * width)
    aspect = _uniform((n, 1, 1), math.log(ratio[0]), math.log(ratio[1]), generator, device).exp()
    tall, wide = (area * aspect).sqrt().clamp(max=height), (area / aspect).sqrt().clamp(max=width)
    top = _uniform((n, 1, 1), 0, 1, generator, device) * (height - tall)
    left = _uniform((n, 1, 1), 0, 1, generator, device) * (width - wide)
    return (top, top + tall), (left, left + wide)


def _uniform(
    shape: tuple[int, ...], low: float, high: float, generator: torch.Generator, device: torch.device
) -> Tensor:
    drawn = torch.rand(shape, generator=generator, device=generator.device).to(device)
    return low + (high - low) * drawn
