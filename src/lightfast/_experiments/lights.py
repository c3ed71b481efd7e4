"""What experiments measure under: lights of growing saturation, the same for every network, and images in batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from lightfast._experiments.data import LazyImages
from lightfast.light import random_illuminants

Images = Tensor | LazyImages
"""sRGB, uint8 (N, 3, H, W): in memory, or decoded when they are needed."""

VARYING: dict[str, str] = {
    "log-gradient": "gradient in log",
    "gradient": "gradient",
    "spot": "spot",
    "shadow": "soft shadow",
    "halves": "hard edge",
}
"""What tables call the kinds of light that varies over the image."""

SATURATIONS = tuple(round(0.1 * step, 1) for step in range(11))
"""0, 0.1, ..., 1."""


def evaluation_lights(count: int, saturations: Sequence[float], seed: int) -> list[Tensor]:
    """The illuminants (count, 3) of each saturation; an image's hue is the same in all of them.

    They are drawn on the CPU for all images at once, so neither the batch size nor the device changes them.
    """
    return [
        random_illuminants(count, saturation, generator=torch.Generator().manual_seed(seed))
        for saturation in saturations
    ]


def in_batches(images: Images, batch_size: int, device: torch.device | str) -> Iterator[tuple[slice, Tensor]]:
    """The images in order, as floating point in [0, 1] on the device, each batch with its place."""
    places = [slice(first, min(first + batch_size, len(images))) for first in range(0, len(images), batch_size)]
    if isinstance(images, Tensor):
        batches = (images[place].to(device) for place in places)
    else:
        requests = ((torch.arange(place.start, place.stop), None) for place in places)
        batches = (batch for batch, _ in images.stream(requests, device=device))
    for place, batch in zip(places, batches, strict=True):
        yield place, batch.float() / 255
