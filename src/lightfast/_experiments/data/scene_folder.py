"""Folders of linear images with their light: any number of data sets, as PNG files or packed in shards."""

from __future__ import annotations

import csv
import lzma
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from lightfast._experiments.data.error import DataError
from lightfast._experiments.data.lit_scenes import LitScenes, join_scenes

_COLUMNS = ("file", "camera", "scene", "fold", "r", "g", "b")
_PACKED = ("shard", "number", "set", "camera", "image", "fold", "r", "g", "b")
_LEVELS = 511


def load_scenes(root: str | os.PathLike[str]) -> LitScenes:
    """The images of a folder with an `index.csv`, or of all folders in it that have one, together.

    An index names either PNG files of 16 bits and one size, or images in packed shards (:func:`read_shard`):

    - `file` (relative to the folder), `camera`, `scene`, `fold`, and the illuminant's `r`, `g`, `b`. Several data sets
      in one folder are told apart by a column `set`, or, where there is a column `kind`, by `source`. Without either,
      the set is NUS.
    - `shard` (the file `SHARD.xz` beside the index) and `number` in it, `set`, `camera`, `image` (the scene), `fold`,
      and `r`, `g`, `b`. Shards that are not there are left out.

    Folders that have images of different sizes are brought to one by :func:`join_scenes`.

    Raises:
        DataError: an index or an image is missing, damaged or otherwise; the message names it.
    """
    root = Path(root)
    folders = [root] if (root / "index.csv").is_file() else sorted(path.parent for path in root.glob("*/index.csv"))
    if not folders:
        raise DataError(
            f"there is no file {root / 'index.csv'}: name the folder that holds images and their index.csv, or one of "
            "such folders"
        )
    return join_scenes([_load_folder(folder) for folder in folders])


def read_shard(path: str | os.PathLike[str]) -> np.ndarray:
    """Packed images, float32 (N, 3, H, W) in [0, 1], linear in light.

    A shard is an array of numpy, compressed by xz: uint8 (2, N, 3, H, W), the high and the low byte of `c`. Of roots
    `y = round(511 sqrt(x))`, red and blue are relative to green, then every value to its left neighbor; `c` is twice
    the difference `d` for `d >= 0`, and `-2 d - 1` else.
    """
    try:
        with lzma.open(path) as file:
            high, low = np.load(file)
    except (OSError, ValueError, EOFError, lzma.LZMAError) as error:
        raise DataError(f"{path} is not a packed shard of images: {error}") from error
    coded = high.astype(np.int16) << 8 | low
    roots = np.cumsum(coded >> 1 ^ -(coded & 1), axis=3, dtype=np.int16)
    roots[:, 0] += roots[:, 1]
    roots[:, 2] += roots[:, 1]
    return np.square(roots.astype(np.float32) / _LEVELS)


def _load_folder(root: Path) -> LitScenes:
    rows = read_index(root)
    return _scenes(rows, read_images(root, rows))


def _scenes(rows: Sequence[dict[str, str]], images: np.ndarray) -> LitScenes:
    names = tuple(sorted({row["camera"] for row in rows}))
    own = "set" if "set" in rows[0] else "source" if "kind" in rows[0] else None
    of_sets = [row[own] if own else "NUS" for row in rows]
    sets = tuple(dict.fromkeys(of_sets))
    illuminants = torch.tensor([[float(row[channel]) for channel in "rgb"] for row in rows])
    return LitScenes(
        " + ".join(sets),
        torch.from_numpy(images),
        torch.nn.functional.normalize(illuminants),
        names,
        torch.tensor([names.index(row["camera"]) for row in rows]),
        torch.tensor([int(row["scene"] if "scene" in row else row["image"]) for row in rows]),
        torch.tensor([int(row["fold"]) for row in rows]),
        sets,
        torch.tensor([sets.index(name) for name in of_sets]),
    )


def read_images(root: Path, rows: Sequence[dict[str, str]]) -> np.ndarray:
    """The images of the rows of an index, float32 (N, 3, H, W) in [0, 1], from files or from packed shards."""
    if "shard" in rows[0]:
        shards = {name: read_shard(root / f"{name}.xz") for name in dict.fromkeys(row["shard"] for row in rows)}
        return np.stack([shards[row["shard"]][int(row["number"])] for row in rows])
    first = read_image(root / rows[0]["file"])
    images = np.empty((len(rows), *first.shape), dtype=np.float32)

    def read(number: int) -> None:
        pixels = read_image(root / rows[number]["file"])
        if pixels.shape != first.shape:
            raise DataError(
                f"{root / rows[number]['file']} has another size than the images before it: reduce all alike"
            )
        images[number] = pixels

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(read, range(len(rows))):
            pass
    return images


def read_index(root: Path, more: Sequence[str] = ()) -> list[dict[str, str]]:
    """The rows of `root/index.csv`, of files or of packed shards that are there; it must have `more` columns, too."""
    path = root / "index.csv"
    if not path.is_file():
        raise DataError(f"there is no file {path}: name the folder that holds the reduced images and their index.csv")
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        names = reader.fieldnames or ()
        columns = (*(_PACKED if "shard" in names else _COLUMNS), *more)
        missing = [column for column in columns if column not in names]
        if missing:
            raise DataError(f"{path} has no column {', '.join(missing)}: it needs {', '.join(columns)}")
        rows = list(reader)
    if "shard" in names:
        rows = [row for row in rows if (root / f"{row['shard']}.xz").is_file()]
    if not rows:
        raise DataError(f"{path} names no images" + (" that are there" if "shard" in names else ""))
    return rows


def read_image(path: Path) -> np.ndarray:
    """A file as float32 (3, H, W) in [0, 1]."""
    from lightfast._photographs.files import read_pixels
    from lightfast._photographs.photo import PhotoError

    try:
        pixels = read_pixels(path)
    except PhotoError as error:
        raise DataError(str(error)) from error
    return pixels.transpose(2, 0, 1).astype(np.float32) / np.iinfo(pixels.dtype).max
