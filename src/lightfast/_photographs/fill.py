"""Holes in photographs of any size: a window around each, resampled for the network, and what it fills in put back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lightfast._photographs.files import Photo, PhotoError, read_photo, write_photo
from lightfast._pipelines.estimator import area_weights
from lightfast._pipelines.inpainter import CENTER, OVERLAP, SIZE, Inpainter
from lightfast.color import linear_to_srgb, srgb_to_linear

__all__ = [
    "DEFAULT_INPAINTER",
    "Hole",
    "choose_inpainter",
    "fill_photo",
    "find_holes",
    "inpaint_photo",
    "missing_pixels",
    "seamless",
]

DEFAULT_INPAINTER = "context-encoder-slim"

_KINDS = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".tif": "TIFF", ".tiff": "TIFF"}

# Holes are brought to the size of those that networks are trained on.
_HOLE = CENTER.stop - CENTER.start - 2 * OVERLAP

# Of the mean of a channel, added before a ratio is taken; and the largest logarithm of a ratio that is believed.
_FLOOR, _LARGEST = 0.02, 1.5


@dataclass(frozen=True)
class Hole:
    """Missing pixels that hang together.

    Attributes:
        top: the first row.
        left: the first column.
        inside: boolean (h, w), true where a pixel of the rectangle belongs to the hole.
    """

    top: int
    left: int
    inside: np.ndarray


def choose_inpainter(name: str | None) -> Inpainter:
    """The inpainter in a folder, or the pretrained one of that name."""
    from lightfast._pipelines.pretrained import pretrained, pretrained_names

    name = name or DEFAULT_INPAINTER
    if Path(name).is_dir():
        return Inpainter.load(name)
    if name not in pretrained_names():
        raise ValueError(
            f"{name!r} is neither a folder with a trained inpainter nor a pretrained model; "
            f"pretrained are: {', '.join(pretrained_names()) or 'none'}"
        )
    inpainter = pretrained(name)
    if not isinstance(inpainter, Inpainter):
        raise ValueError(f"the pretrained model {name!r} is a {type(inpainter).__name__}, and fills no holes")
    return inpainter


def missing_pixels(
    size: tuple[int, int], boxes: Sequence[tuple[int, int, int, int]] = (), mask: Path | None = None
) -> np.ndarray:
    """Which pixels of a photograph are missing, boolean (H, W), as seen upright.

    Args:
        size: height and width of the photograph.
        boxes: x, y, width and height of rectangles, from its upper left corner.
        mask: an image of the same size, white where pixels are missing.
    """
    height, width = size
    missing = np.zeros(size, dtype=bool)
    for x, y, w, h in boxes:
        if w < 1 or h < 1:
            raise ValueError(f"the box {x},{y},{w},{h} is empty: width and height must be at least 1")
        if x < 0 or y < 0 or x + w > width or y + h > height:
            raise ValueError(f"the box {x},{y},{w},{h} reaches outside of the photograph, which is {width} x {height}")
        missing[y : y + h, x : x + w] = True
    if mask is not None:
        missing |= _read_mask(mask, size)
    if not missing.any():
        raise ValueError("no pixel is missing: white pixels of a mask are those to fill in")
    if missing.all():
        raise ValueError("the whole photograph is missing: there is nothing to fill it in from")
    return missing


def find_holes(missing: np.ndarray) -> list[Hole]:
    """The holes of a mask (H, W), from top to bottom; pixels that touch, at a corner too, are of one hole."""
    runs, parents = _touching_runs(missing)
    members: dict[int, list[tuple[int, int, int]]] = {}
    for number, run in enumerate(runs):
        members.setdefault(_root(parents, number), []).append(run)
    holes = []
    for parts in members.values():
        top, bottom = min(row for row, _, _ in parts), max(row for row, _, _ in parts)
        left, right = min(first for _, first, _ in parts), max(last for _, _, last in parts)
        inside = np.zeros((bottom - top + 1, right - left), dtype=bool)
        for row, first, last in parts:
            inside[row - top, first - left : last - left] = True
        holes.append(Hole(top, left, inside))
    return holes


@torch.no_grad()
def fill_photo(photo: Photo, missing: np.ndarray, inpainter: Inpainter, blend: bool = True) -> Photo:
    """The photograph with missing pixels filled in; all others are left alone.

    Args:
        photo: left as it is.
        missing: boolean (H, W), as the file has its pixels.
        inpainter: what fills.
        blend: let what is filled in meet what is around it, see :func:`seamless`.
    """
    pixels = photo.pixels.copy()
    for hole in find_holes(missing):
        srgb = linear_to_srgb(_fill_hole(pixels, missing, hole, inpainter, blend).clamp(0, 1))
        values = (srgb * np.iinfo(pixels.dtype).max).round().permute(1, 2, 0).numpy().astype(pixels.dtype)
        height, width = hole.inside.shape
        region = pixels[hole.top : hole.top + height, hole.left : hole.left + width]
        region[hole.inside] = values[hole.inside]
    return replace(photo, pixels=pixels)


def inpaint_photo(
    source: Path,
    target: Path,
    inpainter: Inpainter,
    boxes: Sequence[tuple[int, int, int, int]] = (),
    mask: Path | None = None,
    blend: bool = True,
) -> int:
    """Read a photograph, fill its holes, and write it as the kind that the target's name says; how many there were.

    Raises:
        PhotoError: it cannot be read or written; the message names it.
        ValueError: the box or the mask does not fit.
    """
    if target.suffix.lower() not in _KINDS:
        raise ValueError(f"{target} is to be written as what? Name a file that ends in {', '.join(_KINDS)}")
    photo = read_photo(source)
    if not isinstance(photo, Photo):
        raise PhotoError(f"{source} is a camera raw file: develop it first, and fill the holes of what comes out")
    if target.exists() and target.resolve() == source.resolve():
        raise PhotoError(f"{source} would be overwritten: name another file with --out")
    turned = photo.orientation >= 5
    height, width = photo.pixels.shape[:2]
    upright = missing_pixels((width, height) if turned else (height, width), boxes, mask)
    missing = _as_stored(upright, photo.orientation)
    filled = fill_photo(photo, missing, inpainter, blend)
    try:
        write_photo(_as_kind(filled, _KINDS[target.suffix.lower()]), target)
    except OSError as error:
        raise PhotoError(f"{target} cannot be written ({error})") from error
    return len(find_holes(missing))


def _fill_hole(pixels: np.ndarray, missing: np.ndarray, hole: Hole, inpainter: Inpainter, blend: bool) -> Tensor:
    """Linear light for the rectangle of a hole, (3, h, w)."""
    height, width = hole.inside.shape
    # Photograph's pixels to one of the network's; small holes are seen as they are.
    scale = max(1.0, max(height, width) / _HOLE)
    top, left = (first + length / 2 - SIZE * scale / 2 for first, length in ((hole.top, height), (hole.left, width)))
    if scale == 1:
        top, left = round(top), round(left)
    rows, columns = (np.arange(int(np.floor(first)), int(np.ceil(first + SIZE * scale))) for first in (top, left))
    window, gone = _reduced(pixels, missing, (rows, columns), (top, left), scale)
    filling = inpainter.cpu().filling(linear_to_srgb(window)[None], gone[None])[0][0]
    filled = torch.where(gone, seamless(filling, window, gone) if blend else filling, window)
    y, x = (
        (torch.arange(length, dtype=torch.float64) + first + 0.5 - start) / scale - 0.5
        for first, length, start in ((hole.top, height, top), (hole.left, width, left))
    )
    return _interpolate(filled, y, x)


def seamless(filling: Tensor, image: Tensor, missing: Tensor) -> Tensor:
    """What is filled in, times its ratio to what is seen at the rim of the hole, spread smoothly over the hole.

    A network is trained to answer for a border that is seen, too. How far it is off there, as the logarithm of a ratio,
    is averaged over larger and larger squares, and each missing pixel takes it from the smallest that knows it. A
    difference instead of a ratio could take more than there is, and leave the complementary color. No channel gets
    brighter than the brightest pixel that is seen. Ratios and brightest pixels follow a change of light as it is.

    Args:
        filling: what the network says of the whole window, linear (3, 128, 128).
        image: what is seen, likewise.
        missing: boolean (1, 128, 128).
    """
    middle = torch.zeros_like(missing)
    middle[:, CENTER, CENTER] = True
    known = (middle & ~missing).to(filling.dtype)[None]
    seen = torch.where(missing, 0.0, image)
    floor = _FLOOR * (seen.sum((1, 2), keepdim=True) / (~missing).sum().clamp(min=1)).clamp(min=1e-12)
    filling = filling.clamp(min=0).minimum(seen.amax((1, 2), keepdim=True)) + floor
    ratio = ((seen + floor) / filling).log().clamp(-_LARGEST, _LARGEST)
    levels = [(known * ratio, known)]
    while levels[-1][0].shape[-1] > 1:
        total, weight = levels[-1]
        levels.append((F.avg_pool2d(total, 2), F.avg_pool2d(weight, 2)))
    total, weight = levels.pop()
    spread = total / weight.clamp(min=1e-12)
    for total, weight in reversed(levels):
        coarse = F.interpolate(spread, scale_factor=2, mode="bilinear", align_corners=False)
        spread = torch.where(weight > 0, total / weight.clamp(min=1e-12), coarse)
    return (filling * spread[0].exp() - floor).clamp(min=0).minimum(seen.amax((1, 2), keepdim=True))


def _reduced(
    pixels: np.ndarray,
    missing: np.ndarray,
    places: tuple[np.ndarray, np.ndarray],
    start: tuple[float, float],
    scale: float,
) -> tuple[Tensor, Tensor]:
    """A window of the photograph averaged to the network's size, linear (3, 128, 128), and which of it is missing.

    Beyond its edges the photograph is mirrored. Missing pixels enter no average; where there is one, all is missing.
    """
    rows, columns = (_mirrored(place, length) for place, length in zip(places, missing.shape, strict=True))
    weights = []
    for place, first in zip(places, start, strict=True):
        begin = torch.tensor([first - place[0]], dtype=torch.float64)
        weights.append(area_weights(begin, begin + SIZE * scale, SIZE, len(place))[0].float())
    down, across = weights
    grid, top = np.ix_(rows, columns), np.float32(np.iinfo(pixels.dtype).max)
    seen = torch.from_numpy(~missing[grid]).float()
    share = down @ seen @ across.T
    window = torch.stack(
        [
            down
            @ (srgb_to_linear(torch.from_numpy(pixels[..., channel][grid].astype(np.float32) / top)) * seen)
            @ across.T
            for channel in range(3)
        ]
    )
    gone = share < scale * scale * (1 - 1e-4)
    return (window / share.clamp(min=1e-6)).clamp(0, 1), gone[None]


def _as_kind(photo: Photo, kind: str) -> Photo:
    """The photograph, to be written as another kind of file: JPEG files have 8 bits, and nothing to see through."""
    if kind == photo.kind:
        return photo
    kept = {name: photo.kept[name] for name in ("exif", "icc_profile", "dpi") if name in photo.kept}
    if hasattr(kept.get("exif"), "tobytes"):
        kept["exif"] = kept["exif"].tobytes()
    if kind != "JPEG":
        return replace(photo, kind=kind, kept=kept)
    pixels = photo.pixels if photo.pixels.dtype == np.uint8 else (photo.pixels >> 8).astype(np.uint8)
    return replace(photo, pixels=pixels, kind=kind, alpha=None, kept=kept | {"quality": 95})


def _interpolate(image: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Values of an image (C, H, W) at rows `y` (h,) and columns `x` (w,), linear between pixels: (C, h, w)."""
    for axis, at in ((1, y), (2, x)):
        last = image.shape[axis] - 1
        at = at.clamp(0, last)
        low = at.floor().long().clamp(max=last - 1)
        part = (at - low).to(image.dtype).unsqueeze(1) if axis == 1 else (at - low).to(image.dtype)
        image = torch.lerp(image.index_select(axis, low), image.index_select(axis, low + 1), part)
    return image


def _mirrored(places: np.ndarray, length: int) -> np.ndarray:
    """Places along an axis that goes on beyond both ends as in a mirror."""
    around = np.mod(places, 2 * length)
    return np.where(around < length, around, 2 * length - 1 - around)


def _as_stored(upright: np.ndarray, orientation: int) -> np.ndarray:
    """A mask as the file has its pixels, from one of the upright picture; `orientation` as EXIF numbers it."""
    back = {
        2: np.fliplr,
        3: lambda m: np.rot90(m, 2),
        4: np.flipud,
        5: np.transpose,
        6: lambda m: np.rot90(m, 1),
        7: lambda m: np.rot90(m, 2).T,
        8: lambda m: np.rot90(m, -1),
    }
    return np.ascontiguousarray(back[orientation](upright)) if orientation in back else upright


def _read_mask(path: Path, size: tuple[int, int]) -> np.ndarray:
    from PIL import Image, ImageOps

    if not path.is_file():
        raise PhotoError(f"there is no file {path}")
    try:
        with Image.open(path) as image:
            values = np.asarray(ImageOps.exif_transpose(image).convert("L"))
    except (OSError, SyntaxError, ValueError) as error:
        raise PhotoError(f"{path} cannot be read as an image ({error})") from error
    if values.shape != size:
        raise ValueError(
            f"the mask {path} is {values.shape[1]} x {values.shape[0]}, and the photograph {size[1]} x {size[0]}: "
            "they must have the same size"
        )
    return values > 127


def _touching_runs(missing: np.ndarray) -> tuple[list[tuple[int, int, int]], list[int]]:
    """Runs of missing pixels (row, first, last + 1), and for each the number of one that it belongs with."""
    runs: list[tuple[int, int, int]] = []
    parents: list[int] = []
    above: range = range(0)
    for row in np.flatnonzero(missing.any(1)):
        edges = np.flatnonzero(np.diff(missing[row].astype(np.int8), prepend=0, append=0))
        start = len(runs)
        if above and runs[above[0]][0] != row - 1:
            above = range(0)
        for first, last in zip(edges[::2], edges[1::2], strict=True):
            runs.append((int(row), int(first), int(last)))
            parents.append(len(parents))
            for other in above:
                if runs[other][1] <= last and first <= runs[other][2]:
                    parents[_root(parents, other)] = _root(parents, len(parents) - 1)
        above = range(start, len(runs))
    return runs, parents


def _root(parents: list[int], number: int) -> int:
    while parents[number] != number:
        parents[number] = parents[parents[number]]
        number = parents[number]
    return number
