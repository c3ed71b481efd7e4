"""Printed photographs under real lamps: those of INTEL-TAU (Laakom et al. 2021), reduced; and drawn ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from lightfast._experiments.data.error import DataError
from lightfast._experiments.data.generated_textures import draw_textures
from lightfast._experiments.data.scene_folder import read_images, read_index
from lightfast.color import srgb_to_linear
from lightfast.light import random_illuminants

_COLUMNS = ("kind", "print", "light")
_KIND = "lab_printouts"


@dataclass(frozen=True)
class Prints:
    """Photographs of prints, each under several lamps.

    Attributes:
        name: of the data set.
        images: float32 (N, 3, S, S), camera RGB in [0, 1], linear in light.
        cameras: (N) names of the cameras.
        lamps: (N) names of the lamps, of each camera its own.
        prints: int64 (N,), which print of its camera an image shows.
        illuminants: float32 (N, 3), the light in each image, of norm 1.
    """

    name: str
    images: Tensor
    cameras: tuple[str, ...]
    lamps: tuple[str, ...]
    prints: Tensor
    illuminants: Tensor

    def of(self, camera: str, lamp: str | None = None) -> Tensor:
        """The indices of a camera's images, under a lamp or under all of them."""
        pairs = zip(self.cameras, self.lamps, strict=True)
        found = [place for place, (c, at) in enumerate(pairs) if c == camera and lamp in (None, at)]
        return torch.tensor(found, dtype=torch.int64)

    def lamps_of(self, camera: str) -> list[str]:
        """The names of a camera's lamps."""
        return sorted({lamp for c, lamp in zip(self.cameras, self.lamps, strict=True) if c == camera})


def load_prints(root: str | Path, size: int = 32) -> Prints:
    """Read the images of kind `lab_printouts` in a folder as :func:`~.scene_folder.load_scenes` takes it.

    Its index has the columns `kind`, `print` and `light`, too. Pixels that are 0 in all channels are
    masked: each image is cut to the print, masked pixels in it get the mean color of the others, and it is brought to
    `size` x `size` pixels.

    Raises:
        DataError: the index or an image is missing, damaged or otherwise; the message names it.
    """
    root = Path(root)
    rows = [row for row in read_index(root, _COLUMNS) if row["kind"] == _KIND]
    if not rows:
        raise DataError(f"{root / 'index.csv'} names no images of the kind {_KIND}: they are a part of INTEL-TAU")
    images = torch.from_numpy(read_images(root, rows))
    return Prints(
        "INTEL-TAU",
        torch.stack([_cut(image, size) for image in images]),
        tuple(row["camera"] for row in rows),
        tuple(row["light"] for row in rows),
        torch.tensor([int(row["print"]) for row in rows]),
        F.normalize(torch.tensor([[float(row[channel]) for channel in "rgb"] for row in rows])),
    )


def _cut(image: Tensor, size: int) -> Tensor:
    """(3, H, W) to (3, size, size): the part that is not masked, less a pixel of its margin."""
    seen = image.amax(0) > 0
    ranges = []
    for axis in (1, 0):
        lines = (seen.float().mean(axis) > 0.3).nonzero()[:, 0].tolist()
        masked = lines and (lines[0] > 0 or lines[-1] < seen.shape[1 - axis] - 1)
        ranges.append(slice(lines[0] + 1, lines[-1]) if masked else slice(None))
    part, inside = image[:, ranges[0], ranges[1]], seen[ranges[0], ranges[1]]
    mean = (part * inside).sum((1, 2), keepdim=True) / inside.sum().clamp(min=1)
    part = torch.where(inside, part, mean)
    return F.interpolate(part[None], (size, size), mode="bilinear", antialias=True, align_corners=False)[0].clamp(0, 1)


@torch.no_grad()
def drawn_prints(count: int = 12, lamps: int = 3, size: int = 32, seed: int = 0) -> Prints:
    """Textures that the project draws itself, under lamps that stand to one side, as two cameras would take them."""
    generator = torch.Generator().manual_seed(seed)
    surface = srgb_to_linear(draw_textures(count, seed, size).float() / 255)
    grid = (torch.arange(size) + 0.5) / size * 2 - 1
    images, cameras, names, lights = [], [], [], []
    for camera in ("First", "Second"):
        for lamp in range(lamps):
            light = random_illuminants(1, 0.3 + 0.5 * lamp / max(lamps - 1, 1), generator=generator)[0]
            slopes = 0.4 * torch.randn(2, generator=generator)
            falloff = (slopes[0] * grid + slopes[1] * grid[:, None]).exp()
            noise = 0.03 * torch.randn(surface.shape, generator=generator)
            lit = surface * light[:, None, None] * falloff * noise.exp()
            images.append(lit / lit.amax((1, 2, 3), keepdim=True))
            cameras += [camera] * count
            names += [str(lamp + 1)] * count
            lights.append(light.expand(count, 3))
    prints = torch.arange(1, count + 1).repeat(2 * lamps)
    return Prints(
        "drawn prints", torch.cat(images), tuple(cameras), tuple(names), prints, F.normalize(torch.cat(lights))
    )
