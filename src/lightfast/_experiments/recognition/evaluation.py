"""How many images a classifier gets wrong, under lights of growing saturation and light that varies over the image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn

from lightfast._experiments.lights import SATURATIONS, Images, evaluation_lights, in_batches
from lightfast.light import LIGHT_KINDS, relight, varying_light

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
        varying: under light of every kind in :data:`lightfast.light.LIGHT_KINDS`, of saturation 0.9; `mixed` is its
            `gradient`.
    """

    saturations: tuple[float, ...]
    errors: tuple[float, ...]
    mixed: float
    images: int
    varying: dict[str, float]


@torch.no_grad()
def evaluate(
    classifier: nn.Module,
    images: Images,
    labels: Tensor,
    *,
    saturations: Sequence[float] = SATURATIONS,
    seed: int = 0,
    batch_size: int | None = None,
    device: torch.device | str = "cpu",
) -> Evaluation:
    """Relight the images, classify them, and count the wrong ones.

    Nothing is rounded to 8 bits.

    Args:
        classifier: from sRGB images in [0, 1] to scores; put in evaluation mode and moved to the device.
        images: sRGB, uint8 (N, 3, H, W); read lazily if need be.
        labels: int64 (N,).
        saturations: of the light.
        seed: of the lights.
        batch_size: images at a time; by default as many as have about 2 million pixels together on a GPU, and a
            sixteenth of that elsewhere.
        device: where to compute.
    """
    classifier, device = classifier.to(device).eval(), torch.device(device)
    if batch_size is None:
        size = images.shape[-1] if isinstance(images, Tensor) else images.size
        batch_size = max(8, (2_000_000 if device.type == "cuda" else 128_000) // size**2)
    lights = [light.to(device) for light in evaluation_lights(len(images), saturations, seed)]
    several = [
        varying_light(kind, len(images), MIXED_SATURATION, generator=torch.Generator().manual_seed(seed + 1)).to(device)
        for kind in LIGHT_KINDS
    ]
    wrong = torch.zeros(len(lights) + len(several), device=device)
    for chosen, batch in in_batches(images, batch_size, device):
        truth = labels[chosen].to(device)
        uniform = (light[chosen] for light in lights)
        varying = (light[chosen].maps(batch.shape[2:]) for light in several)
        for place, light in enumerate(chain(uniform, varying)):
            scores = classifier(relight(batch, illuminants=light))
            wrong[place] += (scores.argmax(1) != truth).sum()
    errors = (100 * wrong / len(images)).tolist()
    by_kind = dict[str, float](zip(LIGHT_KINDS, errors[len(lights) :], strict=True))
    return Evaluation(tuple(saturations), tuple(errors[: len(lights)]), by_kind["gradient"], len(images), by_kind)
