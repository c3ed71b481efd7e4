"""How many images a classifier gets wrong, under lights of growing saturation and light that varies over the image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lightfast.light import gradient_light, random_illuminants, relight
from lightfast.tasks.pictures import Images, in_batches

__all__ = ["MIXED_SATURATION", "SATURATIONS", "Evaluation", "evaluate", "evaluation_lights"]

SATURATIONS = tuple(round(0.1 * step, 1) for step in range(11))
"""0, 0.1, ..., 1."""

MIXED_SATURATION = 0.9
"""Saturation of the two lights between which light that varies over the image changes."""


@dataclass(frozen=True)
class Evaluation:
    """Errors in per cent.

    Attributes:
        saturations: of the light.
        errors: under uniform light of each saturation and of a random hue for each image.
        mixed: under light that turns from one random hue into another over the image, both of saturation 0.9.
        images: how many were looked at.
    """

    saturations: tuple[float, ...]
    errors: tuple[float, ...]
    mixed: float
    images: int


@torch.no_grad()
def evaluate(
    classifier: nn.Module,
    images: Images,
    labels: Tensor,
    *,
    saturations: Sequence[float] = SATURATIONS,
    seed: int = 0,
    batch_size: int = 1000,
    device: torch.device | str = "cpu",
) -> Evaluation:
    """Relight the images, classify them, and count the wrong ones.

    An image has the same hue at every saturation. Lights are drawn on the CPU for all images at once, so neither the
    batch size nor the device changes them. Nothing is rounded to 8 bits.

    Args:
        classifier: from sRGB images in [0, 1] to scores; put in evaluation mode and moved to the device.
        images: sRGB, uint8 (N, 3, H, W); read lazily if need be.
        labels: int64 (N,).
        saturations: of the light.
        seed: of the lights.
        batch_size: images at a time.
        device: where to compute.
    """
    classifier = classifier.to(device).eval()
    lights = [light.to(device) for light in evaluation_lights(len(images), saturations, seed)]
    first, second, angles = (tensor.to(device) for tensor in _mixed_lights(len(images), seed + 1))
    wrong = torch.zeros(len(saturations) + 1, device=device)
    for chosen, batch in in_batches(images, batch_size, device):
        truth = labels[chosen].to(device)
        mixed = gradient_light(first[chosen], second[chosen], batch.shape[2:], angle=angles[chosen])
        for place, light in enumerate([*(light[chosen] for light in lights), mixed]):
            scores = classifier(relight(batch, illuminants=light))
            wrong[place] += (scores.argmax(1) != truth).sum()
    *errors, mixed_error = (100 * wrong / len(images)).tolist()
    return Evaluation(tuple(saturations), tuple(errors), mixed_error, len(images))


def evaluation_lights(count: int, saturations: Sequence[float], seed: int) -> list[Tensor]:
    """The illuminants (count, 3) of each saturation; an image's hue is the same in all of them."""
    return [
        random_illuminants(count, saturation, generator=torch.Generator().manual_seed(seed))
        for saturation in saturations
    ]


def _mixed_lights(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """For each image two illuminants (count, 3), and the direction (count,) in which one turns into the other."""
    generator = torch.Generator().manual_seed(seed)
    first = random_illuminants(count, MIXED_SATURATION, generator=generator)
    second = random_illuminants(count, MIXED_SATURATION, generator=generator)
    return first, second, 2 * torch.pi * torch.rand(count, generator=generator)
