"""Scenes whose light is known: the NUS 8-camera set (Cheng et al. 2014), reduced."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lightfast._experiments.data.error import DataError
from lightfast._experiments.data.same_scene import same_scene

__all__ = ["LitScenes", "load_nus", "read_images", "read_index"]

_COLUMNS = ("file", "camera", "scene", "fold", "r", "g", "b")


@dataclass(frozen=True)
class LitScenes:
    """Linear images of one size and the light in each.

    Attributes:
        name: of the data set.
        images: float32 (N, 3, H, W), camera RGB in [0, 1], linear in light; pixels that are 0 in all channels are
            masked.
        illuminants: float32 (N, 3), of norm 1, in the same camera's RGB.
        camera_names: of the cameras.
        cameras: int64 (N,), which of them took the image.
        scenes: int64 (N,), the number of the scene in the index.
        folds: int64 (N,), from 1 on: the published split, which has the same scenes on both sides.
    """

    name: str
    images: Tensor
    illuminants: Tensor
    camera_names: tuple[str, ...]
    cameras: Tensor
    scenes: Tensor
    folds: Tensor

    def __len__(self) -> int:
        return len(self.images)

    def to(self, device: torch.device | str) -> LitScenes:
        """The same with images and illuminants on the device."""
        return replace(self, images=self.images.to(device), illuminants=self.illuminants.to(device))

    @cached_property
    def shown(self) -> Tensor:
        """int64 (N,): which scene an image shows, found by :func:`~lightfast._experiments.data.same_scene.same_scene`.

        In NUS the numbers of the index count each camera's images. Cameras took different numbers of them, so that the
        same number is mostly another scene, and the same scene has other numbers.
        """
        return same_scene(self.images)

    def subset(self, indices: Tensor | Sequence[int]) -> LitScenes:
        """The scenes at `indices`, in that order."""
        chosen, each = torch.as_tensor(indices), ("images", "illuminants", "cameras", "scenes", "folds")
        return replace(self, **{name: getattr(self, name)[chosen] for name in each})


def load_nus(root: str | os.PathLike[str]) -> LitScenes:
    """Read `root/index.csv`, and the 16-bit PNG files that it names.

    The columns that are used are `file` (relative to `root`), `camera`, `scene`, `fold`, and the illuminant's `r`, `g`,
    `b`. All images have one size.

    Raises:
        DataError: the index or an image is missing, damaged or otherwise; the message names it.
    """
    root = Path(root)
    rows = read_index(root, _COLUMNS)
    images = read_images([root / row["file"] for row in rows])
    names = tuple(sorted({row["camera"] for row in rows}))
    illuminants = torch.tensor([[float(row[channel]) for channel in "rgb"] for row in rows])
    return LitScenes(
        "NUS",
        images,
        torch.nn.functional.normalize(illuminants),
        names,
        torch.tensor([names.index(row["camera"]) for row in rows]),
        torch.tensor([int(row["scene"]) for row in rows]),
        torch.tensor([int(row["fold"]) for row in rows]),
    )


def read_index(root: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """The rows of `root/index.csv`, which must have these columns.

    Raises:
        DataError: it is missing, or otherwise; the message says how.
    """
    path = root / "index.csv"
    if not path.is_file():
        raise DataError(f"there is no file {path}: name the folder that holds the reduced images and their index.csv")
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        missing = [column for column in columns if column not in (reader.fieldnames or ())]
        if missing:
            raise DataError(f"{path} has no column {', '.join(missing)}: it needs {', '.join(columns)}")
        rows = list(reader)
    if not rows:
        raise DataError(f"{path} names no images")
    return rows


def read_images(paths: Sequence[Path]) -> Tensor:
    """16-bit files of one size as float32 (N, 3, H, W) in [0, 1]."""
    first = _read_image(paths[0])
    images = np.empty((len(paths), *first.shape), dtype=np.float32)

    def read(number: int) -> None:
        pixels = _read_image(paths[number])
        if pixels.shape != first.shape:
            raise DataError(f"{paths[number]} has another size than the images before it: reduce all alike")
        images[number] = pixels

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(read, range(len(paths))):
            pass
    return torch.from_numpy(images)


def _read_image(path: Path) -> np.ndarray:
    """(3, H, W) in [0, 1]."""
    from lightfast._photographs.files import read_pixels
    from lightfast._photographs.photo import PhotoError

    try:
        pixels = read_pixels(path)
    except PhotoError as error:
        raise DataError(str(error)) from error
    return pixels.transpose(2, 0, 1).astype(np.float32) / np.iinfo(pixels.dtype).max
