"""Image files, or squares cut out of them, as tensors. No more of a file is decoded than is wanted.

JPEGs are decoded at a half, a quarter or an eighth of their size where that is enough, which their format makes cheap:
by simplejpeg where it is installed, else by Pillow. Both are libjpeg-turbo, and give the same pixels.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.nn import functional as F

from lightfast._photographs.files import check_file, read_content
from lightfast._photographs.photo import PhotoError, complaint

try:
    import simplejpeg  # pyright: ignore[reportMissingImports]
except ImportError:
    simplejpeg = None

__all__ = ["Box", "image_size", "load_image", "read_image", "read_square"]

Box = tuple[int, int, int, int]
"""Left, top, right and bottom of a part of an image, in pixels."""

_ORIENTATION = 0x0112


def image_size(path: Path) -> tuple[int, int]:
    """Width and height of an image file, which is not decoded."""
    with _sentences(path), Image.open(check_file(path)) as image:
        return image.size


def read_image(path: Path) -> Tensor:
    """An image file as (3, H, W) uint8 sRGB, upright.

    Raises:
        PhotoError: the file is missing, damaged or no image.
    """
    with _sentences(path):
        content = read_content(path)
        pixels = _pixels(content, _upright(content))
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def read_square(path: Path, size: int, choose: Callable[[int, int], Box]) -> Tensor:
    """A part of an image, resized to (3, S, S) uint8 sRGB by bilinear interpolation that smooths what it shrinks.

    Args:
        path: of the file.
        size: S.
        choose: the part, from width and height of the image, upright.

    Raises:
        PhotoError: the file is missing, damaged or no image.
    """
    with _sentences(path):
        content = read_content(path)
        image = _upright(content)
        height, box = image.height, choose(image.width, image.height)
        side = min(box[2] - box[0], box[3] - box[1])
        pixels = _pixels(content, image, max(factor for factor in (1, 2, 4, 8) if factor == 1 or factor * size <= side))
    shrunk = round(height / len(pixels))
    left, top, right, bottom = (round(edge / shrunk) for edge in box)
    part = torch.from_numpy(pixels[top:bottom, left:right]).permute(2, 0, 1)
    if part.shape[1:] == (size, size):
        return part.contiguous()
    return F.interpolate(part[None], (size, size), mode="bilinear", antialias=True)[0]


def load_image(path: str | Path, size: int | None = None) -> Tensor:
    """An image file as (3, H, W) uint8 sRGB, upright; with `size`, scaled so that its middle (3, S, S) is cut out.

    Raises:
        PhotoError: the file is missing, damaged or no image.
    """
    return read_image(Path(path)) if size is None else read_square(Path(path), size, _middle)


def _middle(width: int, height: int) -> Box:
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return left, top, left + side, top + side


@contextmanager
def _sentences(path: Path) -> Iterator[None]:
    """What decoders complain about becomes a sentence that names the file."""
    try:
        yield
    except PhotoError:
        raise
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise PhotoError(f"{path} cannot be read as an image{complaint(error)}: replace it, or delete it") from error


def _upright(content: bytes) -> Image.Image:
    """The image, decoded only if it is stored otherwise than it is to be seen: cameras say which way is up."""
    image = Image.open(io.BytesIO(content))
    return ImageOps.exif_transpose(image) if image.getexif().get(_ORIENTATION, 1) != 1 else image


def _pixels(content: bytes, image: Image.Image, shrink: int = 1) -> np.ndarray:
    """(H, W, 3) uint8 of an image file, at `1 / shrink` of its size if its format offers that."""
    least = image.width // shrink, image.height // shrink
    if simplejpeg is not None and image.format == "JPEG" and image.mode in ("RGB", "L"):
        return simplejpeg.decode_jpeg(content, "RGB", min_width=least[0], min_height=least[1])
    image.draft(None, least)
    return np.array(image.convert("RGB"))
