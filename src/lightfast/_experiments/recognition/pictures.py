"""Labeled pictures for recognition, from wherever they come."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lightfast._experiments.data import LazyImages, load_cifar10, load_folder
from lightfast._experiments.data.generated import CLASSES, draw

__all__ = ["Images", "Pictures", "cifar10_pictures", "drawn_pictures", "folder_pictures", "in_batches"]

Images = Tensor | LazyImages
"""sRGB, uint8 (N, 3, H, W): in memory, or decoded when they are needed."""


@dataclass(frozen=True)
class Pictures:
    """A set to train on and a set to test on.

    Args:
        name: what reports call them.
        train_images: N of them.
        train_labels: int64 (N,).
        test_images: M of them.
        test_labels: int64 (M,).
        classes: the names of the classes.
    """

    name: str
    train_images: Images
    train_labels: Tensor
    test_images: Images
    test_labels: Tensor
    classes: tuple[str, ...]

    def held_out(self, share: float = 0.1, seed: int = 0) -> Pictures:
        """Training images alone, a random share of them to test on: for choices that must not see the test set."""
        if not isinstance(self.train_images, Tensor):
            raise ValueError("images that are read lazily cannot be held out; give the value that was to be chosen")
        order = torch.randperm(len(self.train_labels), generator=torch.Generator().manual_seed(seed))
        count = max(1, round(share * len(order)))
        test, train = order[:count], order[count:].sort().values
        return dataclasses.replace(
            self,
            train_images=self.train_images[train],
            train_labels=self.train_labels[train],
            test_images=self.train_images[test],
            test_labels=self.train_labels[test],
        )


def cifar10_pictures(root: str | Path) -> Pictures:
    """CIFAR-10 from the folder that holds its binary version."""
    data = load_cifar10(root)
    return Pictures("CIFAR-10", data.train_images, data.train_labels, data.test_images, data.test_labels, data.classes)


def drawn_pictures(train: int = 4096, test: int = 512, size: int = 16) -> Pictures:
    """The pictures the project draws itself: see :mod:`lightfast._experiments.data.generated`.

    >>> drawn_pictures(8, 4).test_images.shape
    torch.Size([4, 3, 16, 16])
    """
    return Pictures("Drawn pictures", *draw(train, seed=1, size=size), *draw(test, seed=2, size=size), CLASSES)


def folder_pictures(root: str | Path, size: int | None = None, test_share: float = 0.2) -> Pictures:
    """A folder with one sub-folder a class.

    Args:
        root: `root/train/CLASS/*` and `root/val/CLASS/*`, or `root/CLASS/*`, of which a share is set aside to test on.
        size: see :func:`lightfast._experiments.data.load_folder`.
        test_share: of the pictures of a folder that is not divided.
    """
    root = Path(root)
    train = load_folder(root, size)
    if (root / "train").is_dir():
        test = load_folder(root, size, split="val")
        return Pictures(root.name, train.images, train.labels, test.images, test.labels, train.classes)
    whole = Pictures(root.name, train.images, train.labels, train.images, train.labels, train.classes)
    return whole.held_out(test_share)


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
