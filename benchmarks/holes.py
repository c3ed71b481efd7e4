"""Large holes in photographs, filled in several ways and compared with what was there.

    OMP_NUM_THREADS=1 python benchmarks/holes.py PHOTOGRAPHS results/holes

Takes the files kodak-*.jpg of a folder, cuts a square hole of each size into each at a random place, or a scratch as
wide where that is thin, and writes results.json and table.md. The last line is how long a picture of 12 megapixels
takes. Two measures, over the hole:

- PSNR, which a blur of the right colors maximizes.
- Texture: the sliced Wasserstein distance (Rabin et al. 2011; for textures, Karras et al. 2018) between the 7x7 patches
  of what was filled in and of what was there, gray and without their means, at full and at half size, over 128
  directions, in levels of 8 bits. It compares which patterns there are, not where they are: 0 for the same texture.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from PIL import Image
from skimage.restoration import inpaint_biharmonic

import lightfast as lf
from lightfast._atomic import write_json
from lightfast._experiments.provenance import provenance
from lightfast._experiments.report.tables import markdown
from lightfast._photographs.files import read_pixels

SIZES = (6, 64, 128, 200)
# Up to so many pixels a scratch, so many times as long.
THIN, LONG = 16, 40
LARGE, LARGE_HOLE = (4000, 3000), 800
# A border of what is seen is left on every side.
BORDER = 24

Fill = Callable[[np.ndarray, np.ndarray], np.ndarray]


@cache
def ways() -> dict[str, Fill]:
    """From pixels (H, W, 3) and what is missing of them to pixels."""
    inpainter = lf.Inpainter.load("context-encoder-slim")

    def of_opencv(flag: int) -> Fill:
        return lambda pixels, missing: cv2.inpaint(pixels, missing.astype(np.uint8), 3, flag)

    def biharmonic(pixels: np.ndarray, missing: np.ndarray) -> np.ndarray:
        window = tuple(slice(max(0, i.min() - 32), i.max() + 33) for i in np.nonzero(missing))
        found = inpaint_biharmonic(pixels[window], missing[window], channel_axis=-1)
        filled = pixels.copy()
        filled[window] = np.round(255 * found.clip(0, 1)).astype(np.uint8)
        return filled

    return {
        "OpenCV, Telea": of_opencv(cv2.INPAINT_TELEA),
        "OpenCV, Navier-Stokes": of_opencv(cv2.INPAINT_NS),
        "scikit-image, biharmonic": biharmonic,
        "Lightfast, the network alone": lambda p, m: lf.fill(p, m, inpainter, texture=False).picture,
        "Lightfast": lambda p, m: lf.fill(p, m, inpainter).picture,
    }


def holes(path: Path, sizes: Sequence[int]) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Size of the hole, pixels, and which are missing."""
    pixels = read_pixels(path)
    for size in sizes:
        random = np.random.default_rng([int(path.stem[-2:]), size])
        length = LONG * size if size <= THIN else size
        top, left = (int(random.integers(BORDER, side - length - BORDER + 1)) for side in pixels.shape[:2])
        missing = np.zeros(pixels.shape[:2], dtype=bool)
        for step in range(length - size + 1):
            missing[top + step : top + step + size, left + step : left + step + size] = True
        yield size, pixels, missing


def texture_distance(filled: np.ndarray, truth: np.ndarray, missing: np.ndarray) -> float:
    """The distance of the module's docstring."""
    rows, columns = (slice(i.min(), i.max() + 1) for i in np.nonzero(missing))
    directions = np.random.default_rng(0).standard_normal((49, 128))
    directions /= np.linalg.norm(directions, axis=0)
    found = []
    for step in (1, 2):
        sides = []
        for picture in (filled, truth):
            gray = picture[rows, columns].astype(np.float64) @ (0.299, 0.587, 0.114)
            gray = gray[: len(gray) // step * step, : gray.shape[1] // step * step]
            gray = gray.reshape(len(gray) // step, step, -1, step).mean((1, 3))
            patches = sliding_window_view(gray, (7, 7)).reshape(-1, 49)
            sides.append(np.sort((patches - patches.mean(1, keepdims=True)) @ directions, axis=0))
        found.append(np.abs(sides[0] - sides[1]).mean())
    return float(np.mean(found))


def measured(path: Path, sizes: Sequence[int]) -> list[dict]:
    """Every hole of a photograph, filled in every way."""
    torch.set_num_threads(1)
    runs = []
    for size, pixels, missing in holes(path, sizes):
        for way, fill in ways().items():
            started = time.process_time()
            filled = fill(pixels, missing)
            took = time.process_time() - started
            error = np.mean((filled[missing] / 255.0 - pixels[missing] / 255.0) ** 2)
            found = {"psnr": float(-10 * np.log10(error)), "texture": texture_distance(filled, pixels, missing)}
            runs.append({"photograph": path.stem, "size": size, "way": way, "seconds": took, **found})
    return runs


def large(path: Path) -> float:
    """Seconds on the clock for a hole in a large picture, on two cores."""
    torch.set_num_threads(2)
    picture = Image.fromarray(read_pixels(path)).resize(LARGE, Image.Resampling.BICUBIC)
    started = time.perf_counter()
    lf.fill(picture, [(1000, 1000, LARGE_HOLE, LARGE_HOLE)])
    return time.perf_counter() - started


def main() -> None:
    """Fill every hole in every way, and write everything down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photographs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--jobs", type=int, default=2, help="photographs at a time")
    given = parser.parse_args()
    paths = sorted(given.photographs.glob("kodak-[0-9][0-9].jpg"))
    runs = []
    with ProcessPoolExecutor(given.jobs) as pool:
        for found in pool.map(measured, paths, [given.sizes] * len(paths)):
            runs += found
            print(found[0]["photograph"], *(f"{run['psnr']:.2f}/{run['texture']:.1f}" for run in found), flush=True)
    seconds = large(paths[0])
    given.out.mkdir(parents=True, exist_ok=True)
    write_json(given.out / "results.json", {"runs": runs, "large_seconds": seconds, "provenance": provenance()})
    (given.out / "table.md").write_text(table(runs, given.sizes, seconds), encoding="utf-8")


def table(runs: list[dict], sizes: Sequence[int], seconds: float) -> str:
    """Means over photographs, as Markdown, and the seconds that a large one takes."""
    measures = ("psnr", "texture", "seconds")
    numbers = [(name, size) for name in measures for size in sizes if size > THIN or name != "texture"]
    titles = {"psnr": "PSNR", "texture": "texture", "seconds": "seconds"}
    rows = [["Filled by", *(f"{titles[name]}, {size} pixels" for name, size in numbers)]]
    for way in dict.fromkeys(run["way"] for run in runs):
        means = [
            statistics.fmean(run[name] for run in runs if run["way"] == way and run["size"] == size)
            for name, size in numbers
        ]
        rows.append([way, *(f"{mean:.2f}" for mean in means)])
    count = len({run["photograph"] for run in runs})
    return (
        f"Square holes, and scratches of 6 pixels, in {count} photographs: PSNR in dB, the higher the better; texture, "
        "a distance between what was filled in and what was there, the lower the better; seconds of one core. "
        "`benchmarks/holes.py` says how.\n\n"
        f"{markdown(rows)}\n\nA hole of {LARGE_HOLE} x {LARGE_HOLE} pixels in a picture of 12 megapixels takes "
        f"{seconds:.1f} s on two cores.\n"
    )


if __name__ == "__main__":
    main()
