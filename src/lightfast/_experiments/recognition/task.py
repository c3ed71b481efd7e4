"""Image recognition as a task for the engine: batches made on the device from uint8 images, and the loss."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightfast._experiments.classification import ClassificationTask
from lightfast._experiments.data import LazyImages
from lightfast._experiments.data.augment import color_jitter, pad_crop, random_erasing, random_flip, random_resized_crop
from lightfast._pipelines.preparation import Preparation
from lightfast.nn._group_dropout import GroupDropout


@dataclass(frozen=True)
class Augmentation:
    """What training does to an image. Only `jitter` changes its light.

    Everything but `jitter` and `resize` acts on the normalized image, where the value that cropping and erasing fill
    in, 0, is the mean color.

    Args:
        crop: pad by so many pixels, and crop at random to the size of before.
        resize: cut out a part of random size, and bring it to the size of before.
        smallest_part: share of the image's area that such a part has at least.
        flip: mirror half of the images.
        erasing: probability of erasing a random rectangle.
        jitter: strength of the color jitter, from 0 for none to 1: brightness, contrast and saturation change by up
            to 80 % of it, hue by up to half a turn of it.
        group_dropout: probability of dropping each color group.
        drop_at_most: how many groups of an image are dropped at most; all but one by default.
        label_smoothing: share of the target that is spread over all classes.
    """

    crop: int = 0
    resize: bool = False
    smallest_part: float = 0.08
    flip: bool = True
    erasing: float = 0.0
    jitter: float = 0.0
    group_dropout: float = 0.0
    drop_at_most: int | None = None
    label_smoothing: float = 0.0


class RecognitionTask(ClassificationTask):
    """Images in memory and their labels, for one strategy.

    Args:
        images: sRGB, uint8 (N, 3, H, W); color-balanced already if the strategy does that.
        labels: int64 (N,).
        prepare: how the network sees images; only its encoding is used.
        augmentation: what training does to images.
    """

    def __init__(self, images: Tensor, labels: Tensor, prepare: Preparation, augmentation: Augmentation) -> None:
        super().__init__(images, labels, prepare, augmentation)
        self._drop_groups = GroupDropout(augmentation.group_dropout, 3, augmentation.drop_at_most)

    @torch.no_grad()
    def batch(self, indices: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """What the network sees, float32 (B, 3, H, W), and labels (B,)."""
        images, how = self.images[indices].float() / 255, self.augmentation
        if how.resize:
            images = random_resized_crop(images, images.shape[-1], generator=generator, scale=(how.smallest_part, 1.0))
        return self._augment(images, generator), self.labels[indices]

    def _augment(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """From sRGB images in [0, 1], (B, 3, H, W), to the network's input, of the same shape."""
        how = self.augmentation
        if how.jitter:
            strength = 0.8 * how.jitter
            images = color_jitter(images, strength, strength, strength, 0.5 * how.jitter, generator=generator)
        x = self.encode(images)
        if how.crop:
            x = pad_crop(x, how.crop, generator=generator)
        if how.flip:
            x = random_flip(x, generator=generator)
        if how.erasing:
            x = random_erasing(x, probability=how.erasing, generator=generator)
        return self.prepare.fill(self._drop_groups(x, generator))

    def encode(self, images: Tensor) -> Tensor:
        """What is made of sRGB images in [0, 1], (B, 3, H, W), before they are cut and mirrored."""
        return self.prepare.encode(images)


class LazyRecognitionTask(RecognitionTask):
    """Images that are decoded, and cut to a random part of random size, by worker processes while training goes on.

    Args:
        images: where to decode them from.
        labels: int64 (N,).
        prepare: how the network sees images, its color balance included.
        augmentation: what training does to images; `resize` is taken as said.
        workers: how many processes decode; by default one a core.
    """

    def __init__(
        self,
        images: LazyImages,
        labels: Tensor,
        prepare: Preparation,
        augmentation: Augmentation,
        workers: int | None = None,
    ) -> None:
        super().__init__(torch.empty(len(images), 0), labels, prepare, augmentation)
        self.files, self.workers = images, workers

    def read_ahead(self, draws: Iterable[Any], device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of images, uint8 (B, 3, H, W), and their indices (B,), read ahead."""
        scale = (self.augmentation.smallest_part, 1.0)
        return self.files.stream(draws, device=device, workers=self.workers, scale=scale)

    @torch.no_grad()
    def batch(self, indices: tuple[Tensor, Tensor], generator: torch.Generator) -> tuple[Tensor, Tensor]:
        images, places = indices
        return self._augment(self.prepare.correct(images.float() / 255), generator), self.labels[places]
