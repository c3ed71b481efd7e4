"""Quasi-unsupervised color constancy (Bianco and Cusano, CVPR 2019), at a small size.

A network sees the image without its colors and says how much each pixel counts; the illuminant is the weighted mean
color. It is trained on ordinary photographs, which are balanced already, to find weights for which they come out
neutral: to look at things that are gray whatever the light. No illuminant is ever measured.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightfast.color import srgb_to_linear
from lightfast.constancy._statistics import check_images, unit
from lightfast.light import random_illuminants, von_kries


class QuasiUnsupervised(nn.Module):
    """An illuminant estimator whose weights come from gray levels alone.

    The gray image is the mean of the channels to the power 1/2.2, divided by its mean, so exposure does not matter. A
    U-Net turns it into a map of weights that sum to 1 (a softmax over the pixels), and the estimate is the weighted
    mean color, brought to norm 1.

    Args:
        width: features at full size; doubled at each level below.
        levels: how often the image is halved. Any image size works: maps are brought to each other's size.

    Shapes: linear images (N, 3, H, W), and a mask (N, 1, H, W), true where a pixel counts, to illuminants (N, 3).

    >>> QuasiUnsupervised(width=4, levels=2).eval()(torch.rand(2, 3, 16, 16)).shape
    torch.Size([2, 3])
    """

    def __init__(self, width: int = 16, levels: int = 3) -> None:
        super().__init__()
        self.width, self.levels = width, levels
        widths = [width * 2**level for level in range(levels + 1)]
        self.first = _Block(1, width)
        self.down = nn.ModuleList(_Block(above, below) for above, below in pairwise(widths))
        self.up = nn.ModuleList(_Block(below + above, above) for above, below in reversed(list(pairwise(widths))))
        self.weigh = nn.Conv2d(width, 1, 1)

    def weights(self, linear_images: Tensor, mask: Tensor | None = None) -> Tensor:
        """How much each pixel counts: (N, 1, H, W), summing to 1 in each image."""
        check_images(linear_images, mask)
        gray = linear_images.clamp(min=0).mean(1, keepdim=True).clamp(min=1e-6) ** (1 / 2.2)
        maps = [self.first(gray / gray.mean((2, 3), keepdim=True) - 1)]
        for block in self.down:
            maps.append(block(F.avg_pool2d(maps[-1], 2, ceil_mode=True)))
        x = maps.pop()
        for block in self.up:
            across = maps.pop()
            x = F.interpolate(x, size=across.shape[2:], mode="bilinear", align_corners=False)
            x = block(torch.cat([x, across], 1))
        votes = self.weigh(x).float()
        if mask is not None:
            votes = votes.masked_fill(~mask.bool(), -1e4)
        return votes.flatten(1).softmax(1).reshape(votes.shape)

    def forward(self, linear_images: Tensor, mask: Tensor | None = None) -> Tensor:
        return unit((linear_images.clamp(min=0) * self.weights(linear_images, mask)).sum((2, 3)))


class _Block(nn.Sequential):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
        )


class NeutralTask:
    """Train a :class:`QuasiUnsupervised` network through the engine: ordinary images should come out neutral.

    The loss is 1 minus the cosine between the estimated illuminant and the one under which the image was shown. That
    one is white for a share of the images and a random light for the others: the estimate is a weighted mean, so light
    on the colors changes nothing that can be learned from them, but it makes the gray image the weights come from as
    it will be under colored light.

    Args:
        images: sRGB photographs, uint8 (N, 3, H, W).
        saturation: lights are as saturated as this at most.
        flip: mirror half of the images.

    >>> task = NeutralTask(torch.randint(0, 256, (4, 3, 16, 16), dtype=torch.uint8))
    >>> images, lights = task.batch(torch.arange(2), torch.Generator().manual_seed(0))
    >>> images.shape, lights.shape
    (torch.Size([2, 3, 16, 16]), torch.Size([2, 3]))
    """

    def __init__(self, images: Tensor, saturation: float = 0.9, flip: bool = True) -> None:
        self.images, self.saturation, self.flip = images, saturation, flip
        self.samples = len(images)

    def to(self, device: Any) -> None:
        """Move the images to the device."""
        self.images = self.images.to(device)

    def batch(self, indices: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Linear images (B, 3, H, W) under random light, and that light (B, 3)."""
        images = srgb_to_linear(self.images[indices].float() / 255)
        n, device = len(images), images.device
        # Drawn so that about a third of the lights are nearly white.
        saturation = self.saturation * (1.5 * torch.rand(n, generator=generator, device=device) - 0.5).clamp(min=0)
        lights = random_illuminants(n, saturation, generator=generator, device=device)
        if self.flip:
            mirrored = torch.rand((n, 1, 1, 1), generator=generator, device=device) < 0.5
            images = torch.where(mirrored, images.flip(3), images)
        return von_kries(images, lights), lights

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """1 - cosine of the reproduction angle, and that angle's mean in degrees as `angle`."""
        images, lights = batch
        neutral = unit(model(images).float() / lights)
        cosine = neutral.sum(1) / math.sqrt(3)
        degrees = torch.rad2deg(torch.acos(cosine.detach().clamp(max=1)))
        return (1 - cosine).mean(), {"angle": degrees.mean()}
