"""Photographs of streets for inpainting: a set to train on, and sets to test on, as bytes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lightfast._experiments.data.error import DataError
from lightfast._experiments.data.folder import LazyImages, decode_all, images_in


@dataclass(frozen=True)
class HoleImages:
    """Images to cut holes into.

    Args:
        name: what reports call them.
        train: sRGB, uint8 (N, 3, 128, 128).
        tests: by the name that reports give it, likewise.
        photographs: whether they are pictures of others, which stay out of a report if the user says so.
    """

    name: str
    train: Tensor
    tests: dict[str, Tensor]
    photographs: bool = True

    def held_out(self, count: int, seed: int = 0) -> tuple[HoleImages, Tensor]:
        """The images without `count` of those to train on, and those: for choices that must not see the test sets."""
        order = torch.randperm(len(self.train), generator=torch.Generator().manual_seed(seed))
        kept = HoleImages(self.name, self.train[order[count:].sort().values], self.tests, self.photographs)
        return kept, self.train[order[:count]]


def load_street(root: str | Path, size: int = 128) -> HoleImages:
    """Read `root/street128/train`, `root/street128/test` and `root/paris_eval`, each a folder of image files.

    Images of another size are scaled to `size` and their middle is cut out. One of the two test sets may be missing.

    Raises:
        DataError: a folder is missing or has no images, or an image cannot be decoded; the message names it.
    """
    root = Path(root)
    if not root.is_dir():
        raise DataError(f"{root} is not a folder: name one that holds street128/train, street128/test and paris_eval")
    if not (root / "street128" / "train").is_dir():
        raise DataError(f"{root} has no folder street128/train with images to train on")
    places = {"Paris Street View": root / "paris_eval", "street128": root / "street128" / "test"}
    tests = {name: _read(folder, size) for name, folder in places.items() if folder.is_dir()}
    if not tests:
        raise DataError(f"{root} has neither street128/test nor paris_eval, with images to test on")
    return HoleImages("street128", _read(root / "street128" / "train", size), tests)


def _read(folder: Path, size: int) -> Tensor:
    return decode_all(LazyImages(images_in(folder), size))
