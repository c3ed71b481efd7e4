"""Labeled pictures for recognition, from wherever they come."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lightfast._experiments.data import load_cifar10, load_folder
from lightfast._experiments.data.generated import CLASSES, draw
from lightfast._experiments.lights import Images


@dataclass(frozen=True)
class Pictures:
    """A set to train on and a set to test on, N and M images with labels, int64 (N,) and (M,), and their classes."""

    name: str
    train_images: Images
    train_labels: Tensor
    test_images: Images
    test_labels: Tensor
    classes: tuple[str, ...]

    def to_train_on(self, device: torch.device) -> Pictures:
        """The same, with what is trained on and in memory on the device."""
        images = self.train_images
        return dataclasses.replace(
            self,
            train_images=images.to(device) if isinstance(images, Tensor) else images,
            train_labels=self.train_labels.to(device),
        )

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


def drawn_pictures(train: int = 4096, test: int = 512, size: int = 16) -> Pictures:
    """The pictures the project draws itself: see :mod:`lightfast._experiments.data.generated`.

    >>> drawn_pictures(8, 4).test_images.shape
    torch.Size([4, 3, 16, 16])
    """
    return Pictures("Drawn pictures", *draw(train, seed=1, size=size), *draw(test, seed=2, size=size), CLASSES)


def holds_cifar10(data: Path) -> bool:
    """Whether a folder holds the binary version of CIFAR-10."""
    return (data / "data_batch_1.bin").exists() or (data / "cifar-10-batches-bin").exists()


def load_pictures(root: Path, size: int | None = None, test_share: float = 0.2) -> Pictures:
    """CIFAR-10 if that is what the folder holds, else a folder with one sub-folder a class.

    Args:
        root: `root/train/CLASS/*` and `root/val/CLASS/*`, or `root/CLASS/*`, of which a share is set aside to test on.
        size: see :func:`lightfast._experiments.data.load_folder`.
        test_share: of the pictures of a folder that is not divided.
    """
    if holds_cifar10(root):
        data = load_cifar10(root)
        return Pictures(
            "CIFAR-10", data.train_images, data.train_labels, data.test_images, data.test_labels, data.classes
        )
    train = load_folder(root, size)
    if (root / "train").is_dir():
        test = load_folder(root, size, split="val")
        return Pictures(root.name, train.images, train.labels, test.images, test.labels, train.classes)
    whole = Pictures(root.name, train.images, train.labels, train.images, train.labels, train.classes)
    return whole.held_out(test_share)


def load_test_images(data: Path | None, size: int | None) -> tuple[Images, Tensor, tuple[str, ...]]:
    """Images to test on, their labels, and the names of the classes; of an undivided folder, all of it."""
    if data is not None and not holds_cifar10(data):
        folder = load_folder(data, size, split="val" if (data / "train").is_dir() else "train")
        return folder.images, folder.labels, folder.classes
    pictures = drawn_pictures(train=0) if data is None else load_pictures(data)
    return pictures.test_images, pictures.test_labels, pictures.classes
