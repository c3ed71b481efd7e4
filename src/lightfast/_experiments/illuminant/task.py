"""Illuminant estimation as a task for the engine: batches made on the device from linear images, and the loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightfast._experiments.data.lit_scenes import LitScenes
from lightfast._pipelines.estimator import SceneEncoding

__all__ = ["IlluminantTask", "SceneAugmentation"]


@dataclass(frozen=True)
class SceneAugmentation:
    """What training does to an image. All of it acts on linear values, and is what a camera or a photographer may do.

    Args:
        smallest_part: of the image's area that a random crop has at least; 1 for no crops.
        aspect: the largest change of a crop's shape, as a factor.
        mirror: flip left to right at random.
        turn: flip upside down and transpose at random, too.
        exposure: stops by which an image is overexposed at most, and clipped.
        black: standard deviation of an error of the black level of each channel, as a share of the channel's mean.
        sensor: standard deviation of the entries beside the diagonal of a random 3x3 matrix that mixes the channels
            of the balanced image, and leaves white as it is: as seen by a camera with other filters.
        mix: probability of pasting a rectangle of another balanced image of the batch.
        erase: probability of losing a rectangle of the image, which is masked.
    """

    smallest_part: float = 0.4
    aspect: float = 1.3
    mirror: bool = True
    turn: bool = True
    exposure: float = 0.0
    black: float = 0.0
    sensor: float = 0.0
    mix: float = 0.0
    erase: float = 0.0


class IlluminantTask:
    """Images and their light, for networks that see linear or log RGB.

    Images are balanced with their true light, which then is white; transforms that leave white alone need no care of
    it. Networks on log RGB see colors relative to their mean, so for them the light never has to be put back. For
    those on linear RGB it is.

    Args:
        scenes: to train on.
        encoding: how networks see images.
        augmentation: what training does to images.
        recovery: share of the loss that is of the recovery angle; the rest is of the reproduction angle.
        chosen: int64 (M,), which scenes; all of them by default. Tasks on parts of the same scenes share their memory.
    """

    def __init__(
        self,
        scenes: LitScenes,
        encoding: SceneEncoding,
        augmentation: SceneAugmentation,
        recovery: float = 0.5,
        chosen: Tensor | None = None,
    ) -> None:
        self.images, self.illuminants = scenes.images, scenes.illuminants
        self.encoding, self.augmentation, self.recovery = encoding, augmentation, recovery
        self.chosen = torch.arange(len(scenes)) if chosen is None else chosen
        self.samples = len(self.chosen)

    def to(self, device: Any) -> None:
        """Move images and illuminants to the device."""
        self.images, self.illuminants = self.images.to(device), self.illuminants.to(device)
        self.chosen = self.chosen.to(device)

    @torch.no_grad()
    def batch(self, indices: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor | None, Tensor]:
        """What the network sees (B, 3, S, S), the log RGB to add to its answer (B, 3), and the true light (B, 3).

        The log RGB is that of the balanced image, None for networks on linear RGB.
        """
        how, places = self.augmentation, self.chosen[indices]
        images, lights = self.images[places], self.illuminants[places]
        # All at once: of a step on small images, most is the launching of kernels.
        exposed, *box, mirrored, upside_down, turned = _uniform(8, images, generator)
        if how.exposure:
            images = (images * 2 ** (how.exposure * (2 * exposed - 1).clamp(min=0))).clamp(max=1)
        images = self._crop(images, box) / lights[:, :, None, None]
        if how.black:
            images = _with_other_black(images, how.black, generator)
        if how.sensor:
            images = _through_sensors(images, how.sensor, generator)
        if how.mix:
            inside = _rectangles(images, how.mix, generator)
            pasted = images.roll(1, 0) * (0.5 * _normal(images, generator)).exp()
            images = torch.where(inside, pasted, images)
        if how.erase:
            inside = _rectangles(images, how.erase, generator)
            kept = (~inside).to(images.dtype)
            mean = (images * kept).sum((2, 3), keepdim=True) / kept.sum((2, 3), keepdim=True).clamp(min=1)
            images = torch.where(inside, mean, images)
        if how.mirror:
            images = torch.where(mirrored < 0.5, images.flip(3), images)
        if how.turn:
            images = torch.where(upside_down < 0.5, images.flip(2), images)
            images = torch.where(turned < 0.5, images.transpose(2, 3), images)
        if self.encoding.color == "linear":
            images = images * lights[:, :, None, None]
        return *self.encoding.encode(images), lights

    def _crop(self, images: Tensor, box: Sequence[Tensor]) -> Tensor:
        """A part of each image, resampled to the network's size and filled where it is masked.

        `box` has four numbers in [0, 1) for each image, (N, 1, 1, 1): area, shape, place down and across.
        """
        how = self.augmentation
        if how.smallest_part >= 1:
            return self.encoding.reduce(images)
        height, width = images.shape[2:]
        area, shape, down, across = (part.flatten() for part in box)
        side = (how.smallest_part + (1 - how.smallest_part) * area).sqrt()
        stretch = ((2 * shape - 1) * (math.log(how.aspect) / 2)).exp()
        tall, wide = (height * side * stretch).clamp(max=height), (width * side / stretch).clamp(max=width)
        top, left = down * (height - tall), across * (width - wide)
        return self.encoding.reduce(images, boxes=torch.stack([top, top + tall, left, left + wide], 1))

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor | None, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """The square root of 1 - cosine, which is in proportion to the angle, and the angles' means in degrees."""
        encoded, offset, lights = batch
        estimate = self.encoding.decode(model(encoded), offset)
        white = torch.ones_like(lights)
        # Relative to the true light: of a balanced image the estimate is that already.
        relative = estimate / lights if offset is None else estimate
        reproduction, recovery = _gap(relative, white), _gap(relative * lights, lights)
        loss = (1 - self.recovery) * reproduction.mean() + self.recovery * recovery.mean()
        return loss, {"reproduction": _degrees(reproduction).mean(), "recovery": _degrees(recovery).mean()}


def _gap(a: Tensor, b: Tensor) -> Tensor:
    """`sqrt(1 - cos)` of the angle between colors (N, 3): `|a - b| / sqrt(2)` of unit vectors, smooth at 0."""
    difference = F.normalize(a, dim=1) - F.normalize(b, dim=1)
    return (difference.square().sum(1) / 2 + 1e-6).sqrt()


def _degrees(gap: Tensor) -> Tensor:
    return torch.rad2deg(2 * torch.asin((gap.detach() / math.sqrt(2)).clamp(max=1)))


def _with_other_black(images: Tensor, spread: float, generator: torch.Generator) -> Tensor:
    """Images whose black level is off by about `spread` times each channel's mean; no light is less than none."""
    error = spread * torch.randn((*images.shape[:2], 1, 1), generator=generator, device=generator.device).to(images)
    return (images + error * images.mean((2, 3), keepdim=True)).clamp(min=0)


def _through_sensors(balanced: Tensor, spread: float, generator: torch.Generator) -> Tensor:
    """Balanced images seen by other sensors: times a matrix a image whose rows sum to 1, so that white stays white."""
    n = len(balanced)
    mixing = spread * torch.randn((n, 3, 3), generator=generator, device=generator.device).to(balanced)
    away = mixing - torch.diag_embed(mixing.diagonal(dim1=1, dim2=2))
    matrix = torch.eye(3, device=balanced.device) + away - torch.diag_embed(away.sum(2))
    seen = (matrix @ balanced.flatten(2)).reshape(balanced.shape)
    # A real sensor answers no color with less than nothing.
    return torch.maximum(seen, 0.02 * balanced)


def _rectangles(images: Tensor, probability: float, generator: torch.Generator) -> Tensor:
    """True inside a random rectangle of each image, (N, 1, H, W); with this probability, else nowhere."""
    height, width = images.shape[2:]
    chosen, down, across, tall, wide = _uniform(5, images, generator)
    tall, wide = 0.2 + 0.6 * tall, 0.2 + 0.6 * wide
    top, left = down * (1 - tall), across * (1 - wide)
    y = ((torch.arange(height, device=images.device) + 0.5) / height)[:, None]
    x = (torch.arange(width, device=images.device) + 0.5) / width
    return (y > top) & (y < top + tall) & (x > left) & (x < left + wide) & (chosen < probability)


def _uniform(count: int, images: Tensor, generator: torch.Generator) -> tuple[Tensor, ...]:
    """So many times a number in [0, 1) for each image, (N, 1, 1, 1)."""
    numbers = torch.rand((count, len(images), 1, 1, 1), generator=generator, device=generator.device)
    return numbers.to(images).unbind()


def _normal(images: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn((len(images), 1, 1, 1), generator=generator, device=generator.device).to(images)
