"""Photographs as scenes to train `lightfast train photographs` on, beside those whose light was measured.

    python benchmarks/pictures_as_scenes.py OUT FOLDER [FOLDER ...] --count 3200

Cameras have balanced them, mostly well: they count as scenes in white light, seen by a camera with the usual matrix.
Writes OUT/index.csv and OUT/pictures.xz, packed as :func:`lightfast._experiments.data.scene_folder.read_shard` reads.
"""

from __future__ import annotations

import argparse
import csv
import lzma
import random
from pathlib import Path

import numpy as np
import torch

from lightfast._experiments.data.scene_folder import _LEVELS
from lightfast._experiments.photographs.render import unrendered
from lightfast._photographs.decode import load_image

SIDE = 64


def packed(images: np.ndarray) -> np.ndarray:
    """Linear images (N, 3, H, W) in [0, 1] as a shard holds them."""
    roots = np.round(_LEVELS * np.sqrt(images)).astype(np.int16)
    roots[:, 0] -= roots[:, 1]
    roots[:, 2] -= roots[:, 1]
    steps = np.diff(roots, axis=3, prepend=0)
    coded = np.where(steps >= 0, 2 * steps, -2 * steps - 1).astype(np.uint16)
    return np.stack([coded >> 8, coded & 255]).astype(np.uint8)


def main() -> None:
    """Choose photographs at random, as many of each folder, and pack them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--count", type=int, default=3200)
    given = parser.parse_args()
    chosen = []
    for folder in given.folders:
        paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
        chosen += random.Random(0).sample(paths, min(len(paths), given.count // len(given.folders)))
    pictures = torch.stack([load_image(path, SIDE) for path in chosen]).float() / 255
    # Of pictures without color nothing can be learned.
    pictures = pictures[(pictures[:, 0] - pictures[:, 2]).abs().mean((1, 2)) > 0.004]
    given.out.mkdir(parents=True, exist_ok=True)
    with lzma.open(given.out / "pictures.xz", "wb", preset=6) as file:
        np.save(file, packed(unrendered(pictures).clamp(max=1).numpy()))
    with (given.out / "index.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["shard", "number", "set", "camera", "image", "fold", "r", "g", "b"])
        rows.writerows(["pictures", n, "photographs", "any", n, n % 3 + 1, 1, 1, 1] for n in range(len(pictures)))


if __name__ == "__main__":
    main()
