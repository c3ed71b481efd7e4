"""Images per second that folders of JPEGs deliver: random parts of them, resized to 224 x 224.

    OMP_NUM_THREADS=1 python benchmarks/loader.py --out results/speed/loader

Photographs of scikit-image are stored as JPEGs of quality 90 in two sizes; 500 x 375 is that of most of ImageNet. Parts
of them are read in three ways, which take turns:

- `whole` decodes all of the image, and resizes the part, with Pillow;
- `reduced` has Pillow decode at a half, a quarter or an eighth where that is enough, and resizes the part with torch;
- `simplejpeg` is the same with that decoder: what the package does where it is installed.

First image by image on one core, by the processor's time; then by the loader, `LazyImages.stream`, in batches of 256
with growing numbers of workers, by the wall clock and by the processor's time of all processes together. On a machine
that others use too, only the processor's time says something.

Training ResNet-50 takes 4,300 images per second in bfloat16 on one H200, which is 270 for each of 16 cores.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from PIL import Image
from skimage import data
from torch import Tensor

from lightfast._atomic import write_json
from lightfast._experiments.data import LazyImages
from lightfast._experiments.engine import Draw
from lightfast._experiments.provenance import provenance
from lightfast._experiments.report.tables import markdown
from lightfast._photographs import decode

SIZES = ((500, 375), (2000, 1500))
PHOTOGRAPHS = ("astronaut", "coffee", "chelsea", "rocket", "stereo_motorcycle")
FILES, PART, BATCH, REPEATS = 64, 224, 256, 5


def write_photographs(folder: Path, size: tuple[int, int]) -> list[Path]:
    """JPEGs of one size: each photograph several times, mirrored and shifted a little, so that no two are the same."""
    folder.mkdir()
    paths, randomness = [], np.random.default_rng(0)
    for number in range(FILES):
        found = getattr(data, PHOTOGRAPHS[number % len(PHOTOGRAPHS)])()
        image = Image.fromarray(found[0] if isinstance(found, tuple) else found)
        wide = min(image.width, image.height * size[0] / size[1]) * randomness.uniform(0.95, 1)
        tall = wide * size[1] / size[0]
        left, top = randomness.uniform(0, image.width - wide), randomness.uniform(0, image.height - tall)
        image = image.resize(size, Image.Resampling.BICUBIC, box=(left, top, left + wide, top + tall))
        if number % 2:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        paths.append(folder / f"{number}.jpg")
        image.save(paths[-1], quality=90)
    return paths


def read_with_pillow(path: Path, size: int, choose: Callable[[int, int], decode.Box]) -> Tensor:
    """What `decode.read_square` does, the plain way."""
    with Image.open(path) as opened:
        image = opened.convert("RGB")
    part = image.resize((size, size), Image.Resampling.BILINEAR, box=choose(*image.size))
    return torch.from_numpy(np.array(part)).permute(2, 0, 1).contiguous()


WAYS = {
    "whole": lambda: mock.patch("lightfast._experiments.data.folder.read_square", read_with_pillow),
    "reduced": lambda: mock.patch.object(decode, "simplejpeg", None),
    "simplejpeg": lambda: mock.patch.object(decode, "simplejpeg", decode.simplejpeg),
}


def per_core(images: LazyImages, ways: list[str]) -> dict[str, float]:
    """Random parts per second of the processor's time in this process, at the quickest of several repeats."""
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(REPEATS):
        for way in ways:
            with WAYS[way]():
                start = time.process_time()
                for number in range(len(images)):
                    images.random_crop(number, seed=number)
                best[way] = min(best[way], time.process_time() - start)
    return {way: round(len(images) / seconds, 1) for way, seconds in best.items()}


def delivered(images: LazyImages, workers: int, batches: int) -> dict[str, float]:
    """Random parts per second that the loader delivers: of the wall clock, and of all processes' time."""
    generator = torch.Generator().manual_seed(0)
    # At both ends some workers have nothing to do, which is not to be timed.
    idle, before, arrived = 2 * workers, processor_time(), []
    draws = [Draw(torch.randint(len(images), (BATCH,), generator=generator), n) for n in range(batches + 2 * idle)]
    for _ in images.stream(draws, workers=workers):
        arrived.append(time.perf_counter())
    return {
        "wall clock": round(BATCH * batches / (arrived[-idle] - arrived[idle]), 1),
        "processor": round(BATCH * len(draws) / (processor_time() - before), 1),
    }


def processor_time() -> float:
    """Seconds that this process and those of its children that have ended had a core."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def main() -> None:
    """Measure all ways, print tables, and write the numbers down if a folder is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a folder for the numbers")
    parser.add_argument("--batches", type=int, default=16, help="per worker, for each measurement of the loader")
    given = parser.parse_args()
    torch.set_num_threads(1)
    ways = [name for name in WAYS if name != "simplejpeg" or decode.simplejpeg is not None]
    counts = [workers for workers in (1, 2, 4, 8, 16, 32, 64) if workers <= (os.cpu_count() or 1)]
    one_core, kilobytes = {}, {}
    loader: dict[str, dict[str, Any]] = {way: {} for way in ways}
    with tempfile.TemporaryDirectory() as folder:
        for size in SIZES:
            name = f"{size[0]} x {size[1]}"
            images = LazyImages(write_photographs(Path(folder) / name, size), PART)
            kilobytes[name] = round(sum(path.stat().st_size for path in images.paths) / FILES / 1000, 1)
            one_core[name] = per_core(images, ways)
            for workers in counts if size == SIZES[0] else ():
                for way in ways:
                    with WAYS[way]():
                        loader[way][str(workers)] = delivered(images, workers, given.batches * workers)
    tables = [markdown([["One core", *ways], *([name, *map(str, row.values())] for name, row in one_core.items())])]
    for clock in ("wall clock", "processor"):
        rows = [[way, *(str(row[clock]) for row in found.values())] for way, found in loader.items()]
        tables.append(markdown([[f"Loader by the {clock}, workers", *map(str, counts)], *rows]))
    print("\n\n".join(tables))
    if given.out is not None:
        made = provenance()
        for package in ("pillow", *ways[2:]):
            made["versions"][package] = importlib.metadata.version(package)
        record = {
            **made,
            "kilobytes_per_file": kilobytes,
            "images_per_second_on_one_core": one_core,
            "images_per_second_of_the_loader_by_workers": loader,
        }
        given.out.mkdir(parents=True, exist_ok=True)
        write_json(given.out / "results.json", record)
        (given.out / "table.md").write_text("# Images per second\n\n" + "\n\n".join(tables) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
