"""Spectral cubes: pictures of many bands, of which each sees another part of the spectrum."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lightfast._experiments.data.error import DataError
from lightfast.light import spectral_gains

_CUBES = ("cubes.npz", "index.csv")
_PINES = ("Indian_pines_corrected.npy", "Indian_pines_gt.npy")
_PINES_CLASSES = (
    *("Alfalfa", "Corn-notill", "Corn-mintill", "Corn", "Grass-pasture", "Grass-trees", "Grass-pasture-mowed"),
    *("Hay-windrowed", "Oats", "Soybean-notill", "Soybean-mintill", "Soybean-clean", "Wheat", "Woods"),
    *("Buildings-Grass-Trees-Drives", "Stone-Steel-Towers"),
)
_BLACK, _FLOOR, _WHITE = 900, 32, 16_000


@dataclass(frozen=True)
class Cubes:
    """Cubes that are linear in light, and what they show.

    Attributes:
        name: of the data set.
        cubes: float32 (N, b, H, W), above 0.
        labels: int64 (N,), or of each pixel (N, H, W), where -1 is for those of which nothing is known.
        classes: names.
        folds: int64, from 0 on, for each label: what is tested together, with nothing in common with the other folds.
    """

    name: str
    cubes: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    folds: Tensor

    @property
    def per_pixel(self) -> bool:
        """Whether there is a label for each pixel."""
        return self.labels.ndim == 3


def holds_pixels(root: Path) -> bool:
    """Whether it is the folder of a picture whose pixels are to be classified."""
    return all((root / name).is_file() for name in _PINES)


def load_cubes(root: str | Path) -> Cubes:
    """Read a folder with `cubes.npz` and `index.csv`, or with the two files of Indian Pines.

    `cubes.npz` has `cubes`, uint16 (N, b, H, W), with a black level of 900; `index.csv` the columns `number`, `class`
    and `name`, where a number at the end of the name counts views of a class. There are three folds, of views that
    follow one another. Of Indian Pines, a single picture of 145 x 145 pixels with 200 bands, the four
    folds are made of squares of 19 x 19 pixels, by turns.

    Raises:
        DataError: a file is missing or is not what it should be; the message names it.
    """
    root = Path(root)
    if holds_pixels(root):
        return _indian_pines(root)
    if all((root / name).is_file() for name in _CUBES):
        return _objects(root)
    raise DataError(f"{root} has neither {' and '.join(_CUBES)} nor {' and '.join(_PINES)}: name a folder that has")


def _objects(root: Path) -> Cubes:
    path = root / _CUBES[0]
    try:
        with np.load(path) as file:
            raw = file["cubes"]
        with (root / _CUBES[1]).open(newline="", encoding="utf-8") as file:
            rows = sorted(csv.DictReader(file), key=lambda row: int(row["number"]))
        names, kinds = [row["name"] for row in rows], [row["class"] for row in rows]
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise DataError(f"{path} and its {_CUBES[1]} cannot be read ({error}): get them again") from error
    if raw.ndim != 4 or len(raw) != len(rows):
        raise DataError(f"{path} has cubes of shape {raw.shape}, but {len(rows)} are named: get them again")
    classes = tuple(sorted(set(kinds)))
    labels = torch.tensor([classes.index(kind) for kind in kinds])
    views = torch.tensor([int(found[0]) if (found := re.search(r"\d+$", name)) else 0 for name in names])
    folds = torch.empty_like(labels)
    for label in range(len(classes)):
        chosen = (labels == label).nonzero()[:, 0]
        chosen = chosen[views[chosen].argsort(stable=True)]
        folds[chosen] = torch.arange(len(chosen)) * 3 // len(chosen)
    cubes = torch.from_numpy(raw.astype(np.float32) - _BLACK).clamp(min=_FLOOR) / _WHITE
    return Cubes(f"{len(cubes)} cubes of {raw.shape[1]} bands", cubes, labels, classes, folds)


def _indian_pines(root: Path) -> Cubes:
    try:
        spectra, truth = (np.load(root / name, allow_pickle=False) for name in _PINES)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{root / _PINES[0]} and {_PINES[1]} cannot be read ({error}): get them again") from error
    if spectra.ndim != 3 or spectra.shape[:2] != truth.shape:
        raise DataError(f"{root / _PINES[0]} has shape {spectra.shape}, but {_PINES[1]} has {truth.shape}")
    cube = torch.from_numpy(spectra.astype(np.float32)).permute(2, 0, 1)[None]
    rows, columns = (torch.arange(side) // 19 for side in truth.shape)
    folds = (rows[:, None] + 2 * columns) % 4
    labels = torch.from_numpy(truth.astype(np.int64))[None] - 1
    return Cubes("Indian Pines", cube / cube.max(), labels, _PINES_CLASSES, folds[None])


@torch.no_grad()
def drawn_cubes(count: int = 96, bands: int = 8, size: int = 16, seed: int = 0) -> Cubes:
    """Cubes that the project draws itself: stripes of two materials, which are the class, in nearly white light."""
    generator = torch.Generator().manual_seed(seed)
    pairs = ((0, 1), (0, 2), (1, 2), (2, 3))
    labels = torch.arange(count) % len(pairs)
    spectra = 0.3 * spectral_gains(4, bands, 0.6, generator=generator)
    angle, phase = (torch.rand(2, count, 1, 1, generator=generator) * 6.283).unbind()
    grid = torch.linspace(-1, 1, size)
    pattern = torch.sigmoid(6 * torch.sin(5 * (grid * angle.cos() + grid[:, None] * angle.sin()) + phase))
    first, second = (spectra[torch.tensor([pair[side] for pair in pairs])[labels]] for side in (0, 1))
    mixed = torch.lerp(first[..., None, None], second[..., None, None], pattern[:, None])
    light = spectral_gains(count, bands, 0.1, generator=generator)[..., None, None]
    noise = 0.05 * torch.randn(mixed.shape, generator=generator)
    names = tuple(f"{a} and {b}" for a, b in (("ABCD"[a], "ABCD"[b]) for a, b in pairs))
    return Cubes("drawn cubes", mixed * light * noise.exp(), labels, names, torch.arange(count) // len(pairs) % 3)
