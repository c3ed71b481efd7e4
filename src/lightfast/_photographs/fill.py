"""Holes in photographs of any size: a window around each, resampled for the network, and what it fills in put back."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lightfast._photographs.diffuse import diffused, is_thin
from lightfast._photographs.files import kind_named, read_photo, write_photo
from lightfast._photographs.patches import fill_with_texture
from lightfast._photographs.photo import Photo, PhotoError
from lightfast._photographs.pictures import as_photo
from lightfast._pipelines.inpainter import CENTER, OVERLAP, SIZE, Inpainter
from lightfast._pipelines.resample import area_weights
from lightfast.color import linear_to_srgb

__all__ = [
    "DEFAULT_INPAINTER",
    "Box",
    "Filled",
    "Hole",
    "fill",
    "fill_file",
    "find_holes",
    "missing_pixels",
    "parse_box",
    "seamless",
]

DEFAULT_INPAINTER = "context-encoder-slim"

Box = tuple[int, int, int, int]
"""x, y, width and height of a rectangle, from the upper left corner."""

# Holes are brought to the size of those that networks are trained on.
_HOLE = CENTER.stop - CENTER.start - 2 * OVERLAP

# Pixels around thin holes that are looked at; around others, as many as they are large, within these.
_RIM = 8
_NEAR, _FAR = 48, 600

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


@dataclass(frozen=True)
class Filled:
    """A picture whose holes were filled.

    Attributes:
        picture: of the same kind as the one that was given; a :class:`lightfast.Photo` for a file.
        holes: x, y, width and height of each hole; of a file, as it is seen upright.
    """

    picture: Any
    holes: tuple[Box, ...]


@torch.no_grad()
def fill(
    picture: Any,
    mask: Any,
    inpainter: str | os.PathLike[str] | Inpainter = DEFAULT_INPAINTER,
    *,
    blend: bool = True,
    texture: bool = True,
    linear: bool = False,
    progress: Callable[[float], None] | None = None,
) -> Filled:
    """The picture with missing pixels filled in; all others are left as they are, bit by bit.

    Thin holes (scratches, dots) are filled smoothly from what is around them, see
    :func:`lightfast._photographs.diffuse.diffused`. Around each of the others a window is brought to the size that the
    network sees, filled, and put back; with that as a hint, the hole is made of patches from elsewhere in the picture,
    see :func:`lightfast._photographs.patches.fill_with_texture`. Pixels that touch, at a corner too, are of one hole.

    Args:
        picture: a JPEG, PNG or TIFF file; an array (H, W, 3) or a tensor (3, H, W), of uint8, uint16 or floating point
            in [0, 1]; or a Pillow image. Alpha is left alone, and gray pictures stay gray.
        mask: what is missing: an array or a tensor (H, W), nonzero there; an image or its path, white there; or a list
            of rectangles (x, y, width, height). For a file, as it is seen upright.
        inpainter: one, or a name that :func:`lightfast.load` knows.
        blend: let what is filled in meet what is around it, see :func:`seamless`; without it, large holes are what the
            network says and no more.
        texture: make large holes of patches; without it they are smooth.
        linear: whether the numbers of an array or a tensor are linear in light, instead of sRGB.
        progress: called with the part that is done, from 0 to 1.

    Returns:
        The filled picture, of the same kind as the one given, with the holes. For a file it is a
        :class:`lightfast.Photo`, whose `save` writes it with EXIF data and color profile.

    >>> picture = np.full((60, 80, 3), 128, np.uint8)
    >>> filled = fill(picture, [(20, 10, 16, 12)])
    >>> filled.holes, bool((filled.picture[:10] == 128).all())
    (((20, 10, 16, 12),), True)
    """
    photo, back = as_photo(picture, linear)
    if not isinstance(photo, Photo):
        raise PhotoError(f"{photo.path} is a camera raw file: develop it first, and fill the holes of what comes out")
    height, width = photo.pixels.shape[:2]
    upright = missing_pixels((width, height) if photo.orientation >= 5 else (height, width), mask)
    missing = _as_stored(upright, photo.orientation)
    inpainter = inpainter if isinstance(inpainter, Inpainter) else Inpainter.load(inpainter)
    holes, pixels = find_holes(missing), photo.pixels.copy()
    thick = [hole for hole in holes if not is_thin(hole.inside)]
    left = np.zeros_like(missing)
    for hole in thick:
        _part(left, hole)[hole.inside] = True
    _fill_thin(photo, pixels, missing, missing & ~left)
    for number, hole in enumerate(thick):
        now = replace(photo, pixels=pixels)
        if blend and texture:
            light = _fill_textured(now, left, hole, inpainter, _part_of(progress, number, len(thick)))
        else:
            light = _fill_hole(now, left, hole, inpainter, blend)
        _part(pixels, hole)[hole.inside] = photo.stored(light.astype(np.float32))[hole.inside]
    if progress is not None:
        progress(1.0)
    seen = holes if photo.orientation == 1 else find_holes(upright)
    boxes = tuple((hole.left, hole.top, hole.inside.shape[1], hole.inside.shape[0]) for hole in seen)
    return Filled(back(replace(photo, pixels=pixels)), boxes)


def fill_file(source: Path, target: Path, mask: Any, inpainter: Inpainter, **how: Any) -> int:
    """Read a photograph, fill its holes, and write it as the kind that the target's name says; how many there were.

    Args:
        source: the photograph's file.
        target: the file to write.
        mask: as in :func:`fill`.
        inpainter: likewise.
        **how: arguments of :func:`fill`.

    Raises:
        PhotoError: it cannot be read or written; the message names it.
        ValueError: the boxes or the mask do not fit.
    """
    kind, photo = kind_named(target), read_photo(source)
    if target.exists() and target.resolve() == source.resolve():
        raise PhotoError(f"{source} would be overwritten: name another file with --out")
    filled = fill(photo, mask, inpainter, **how)
    write_photo(filled.picture.converted(kind), target)
    return len(filled.holes)


def missing_pixels(size: tuple[int, int], mask: Any) -> np.ndarray:
    """Which pixels of a photograph are missing, boolean (H, W), as seen upright.

    Args:
        size: height and width of the photograph.
        mask: as in :func:`fill`.
    """
    missing = _boxes(mask, size) if isinstance(mask, list | tuple) else _read_mask(mask)
    if missing.shape != size:
        raise ValueError(
            f"the mask {mask if isinstance(mask, str | os.PathLike) else ''} is {_by(missing.shape)}, and the "
            f"photograph {_by(size)}: they must have the same size"
        )
    if not missing.any():
        raise ValueError("no pixel is missing: white pixels of a mask are those to fill in")
    if missing.all():
        raise ValueError("the whole photograph is missing: there is nothing to fill it in from")
    return missing


def parse_box(text: str) -> Box:
    """A rectangle as people write it.

    >>> parse_box("120,80,64,48")
    (120, 80, 64, 48)
    """
    try:
        x, y, width, height = (int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{text!r} is not a box: give x,y,width,height, such as 120,80,64,64") from None
    return x, y, width, height


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


def _part(image: np.ndarray, hole: Hole) -> np.ndarray:
    """The rectangle of a hole in an image (H, W, ...)."""
    rows, columns = hole.inside.shape
    return image[hole.top : hole.top + rows, hole.left : hole.left + columns]


def _fill_thin(photo: Photo, pixels: np.ndarray, missing: np.ndarray, thin: np.ndarray) -> None:
    """Fill thin holes of `pixels`, all at once; no more of the photograph is looked at than they reach over."""
    if not thin.any():
        return
    ends = (np.flatnonzero(thin.any(axis))[[0, -1]] for axis in (1, 0))
    window = tuple(slice(max(0, first - _RIM), last + 1 + _RIM) for first, last in ends)
    if missing[window].all():
        window = (slice(None), slice(None))
    inside = thin[window]
    # Missing pixels of floating point may hold anything.
    light = np.where(missing[window][..., None], 0, photo.light(window))
    pixels[window][inside] = photo.stored(diffused(light, missing[window], inside).astype(np.float32))


def _fill_textured(
    photo: Photo, missing: np.ndarray, hole: Hole, inpainter: Inpainter, progress: Callable[[float], None] | None
) -> np.ndarray:
    """Linear light for the rectangle of a hole, (h, w, C): patches from around it, with the network's hint."""
    size = hole.inside.shape
    around = min(max(_NEAR, *size), _FAR)
    top, left = max(0, hole.top - around), max(0, hole.left - around)
    window = slice(top, hole.top + size[0] + around), slice(left, hole.left + size[1] + around)
    gone = missing[window]
    here = Hole(hole.top - top, hole.left - left, hole.inside)
    inside = np.zeros_like(gone)
    _part(inside, here)[hole.inside] = True
    if gone.all():
        return _fill_hole(photo, missing, hole, inpainter, True)

    def guess(flat: np.ndarray) -> np.ndarray:
        said = flat.copy()
        _part(said, here)[:] = _fill_hole(Photo(flat, linear=True), gone, here, inpainter, True)
        return said

    filled = fill_with_texture(photo.light(window).astype(np.float64), gone, inside, guess, progress)
    return _part(filled, here)


def _part_of(progress: Callable[[float], None] | None, number: int, count: int) -> Callable[[float], None] | None:
    return None if progress is None else lambda part: progress((number + part) / count)


def _fill_hole(photo: Photo, missing: np.ndarray, hole: Hole, inpainter: Inpainter, blend: bool) -> np.ndarray:
    """Linear light for the rectangle of a hole, (h, w, C), by the network alone."""
    height, width = hole.inside.shape
    # Photograph's pixels to one of the network's; small holes are seen as they are.
    scale = max(1.0, max(height, width) / _HOLE)
    top, left = (first + length / 2 - SIZE * scale / 2 for first, length in ((hole.top, height), (hole.left, width)))
    if scale == 1:
        top, left = round(top), round(left)
    rows, columns = (np.arange(int(np.floor(first)), int(np.ceil(first + SIZE * scale))) for first in (top, left))
    window, gone = _reduced(photo, missing, (rows, columns), (top, left), scale)
    filling = inpainter.cpu().filling(linear_to_srgb(window)[None], gone[None])[0][0]
    filled = torch.where(gone, seamless(filling, window, gone) if blend else filling, window)
    y, x = (
        (torch.arange(length, dtype=torch.float64) + first + 0.5 - start) / scale - 0.5
        for first, length, start in ((hole.top, height, top), (hole.left, width, left))
    )
    light = _interpolate(filled, y, x).permute(1, 2, 0).numpy()
    return light if photo.pixels.shape[2] == 3 else light.mean(2, keepdims=True)


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
    photo: Photo,
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
    grid = np.ix_(rows, columns)
    seen = torch.from_numpy(~missing[grid]).float()
    share = down @ seen @ across.T
    # Missing pixels of floating point may hold anything.
    light = np.where(missing[grid][..., None], 0, photo.light(grid)).transpose(2, 0, 1)
    window = (down @ torch.from_numpy(np.ascontiguousarray(light)) @ across.T).expand(3, -1, -1)
    gone = share < scale * scale * (1 - 1e-4)
    return (window / share.clamp(min=1e-6)).clamp(0, 1), gone[None]


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


def _boxes(boxes: Sequence[Box], size: tuple[int, int]) -> np.ndarray:
    missing = np.zeros(size, dtype=bool)
    for x, y, width, height in boxes:
        box = f"the box {x},{y},{width},{height}"
        if width < 1 or height < 1:
            raise ValueError(f"{box} is empty: width and height must be at least 1")
        if x < 0 or y < 0 or x + width > size[1] or y + height > size[0]:
            raise ValueError(f"{box} reaches outside of the photograph, which is {_by(size)}")
        missing[y : y + height, x : x + width] = True
    return missing


def _read_mask(mask: Any) -> np.ndarray:
    if isinstance(mask, np.ndarray | Tensor):
        return np.asarray(torch.as_tensor(mask).cpu()).astype(bool)
    from PIL import Image, ImageOps

    if isinstance(mask, Image.Image):
        return np.asarray(mask.convert("L")) > 127
    if not Path(mask).is_file():
        raise PhotoError(f"there is no file {mask}")
    try:
        with Image.open(mask) as image:
            return np.asarray(ImageOps.exif_transpose(image).convert("L")) > 127
    except (OSError, SyntaxError, ValueError) as error:
        raise PhotoError(f"{mask} cannot be read as an image ({error})") from error


def _by(size: tuple[int, ...]) -> str:
    """Width x height, as people say it."""
    return " x ".join(str(length) for length in reversed(size))


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
