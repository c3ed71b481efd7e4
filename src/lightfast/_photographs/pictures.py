"""Pictures of any kind (arrays, tensors, Pillow images, files) as photographs, and back to the same kind."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightfast._photographs.files import read_photo
from lightfast._photographs.formats import split_alpha
from lightfast._photographs.photo import Photo
from lightfast._photographs.raw import RawPhoto

__all__ = ["as_photo"]


def as_photo(picture: Any, linear: bool = False) -> tuple[Photo | RawPhoto, Callable[[Photo], Any]]:
    """The picture as a photograph, and the way back: from a photograph to what the picture was.

    Args:
        picture: a path, a :class:`Photo`, an array (H, W) or (H, W, C), a tensor (C, H, W), or a Pillow image.
        linear: whether the numbers of arrays and tensors are linear in light, instead of sRGB.
    """
    if isinstance(picture, str | os.PathLike):
        return read_photo(picture), lambda photo: photo
    if isinstance(picture, Photo | RawPhoto):
        return picture, lambda photo: photo
    if isinstance(picture, Tensor):
        # Numpy has no bfloat16.
        wide = picture.float() if picture.is_floating_point() and picture.dtype != torch.float64 else picture
        if picture.ndim != 3:
            raise ValueError(f"expected one picture, a tensor (3, H, W), but the shape is {tuple(picture.shape)}")
        photo = _from_array(wide.detach().cpu().permute(1, 2, 0).numpy(), linear)
        return photo, lambda photo: torch.from_numpy(_joined(photo)).permute(2, 0, 1).to(picture.device, picture.dtype)
    if isinstance(picture, np.ndarray):
        return _from_array(picture, linear), lambda photo: _joined(photo).reshape(picture.shape)
    if hasattr(picture, "getbands"):
        return _from_pillow(picture)
    raise TypeError(
        f"a picture is a path, an array (H, W, 3), a tensor (3, H, W) or a Pillow image, not {type(picture).__name__}"
    )


def _from_array(values: np.ndarray, linear: bool) -> Photo:
    if values.dtype not in (np.uint8, np.uint16) and values.dtype.kind != "f":
        raise TypeError(f"pictures hold uint8, uint16 or floating point in [0, 1], not {values.dtype}")
    if values.ndim not in (2, 3) or (values.ndim == 3 and values.shape[2] not in (1, 2, 3, 4)):
        raise ValueError(
            f"expected one picture, an array (H, W, 3) or a tensor (3, H, W), but the shape is {values.shape} with "
            "the colors last"
        )
    pixels, alpha = split_alpha(values)
    return Photo(pixels, linear=linear, alpha=alpha)


def _from_pillow(image: Any) -> tuple[Photo, Callable[[Photo], Any]]:
    if image.mode not in ("RGB", "RGBA", "L", "LA", "I;16"):
        raise ValueError(f"the colors of this image are {image.mode}: convert it first, image.convert('RGB')")
    photo = _from_array(np.asarray(image), False)

    def back(photo: Photo) -> Any:
        from PIL import Image

        made = Image.fromarray(np.squeeze(_joined(photo), -1) if image.mode in ("L", "I;16") else _joined(photo))
        made.info = dict(image.info)
        return made

    return photo, back


def _joined(photo: Photo) -> np.ndarray:
    samples = photo.pixels if photo.alpha is None else np.dstack([photo.pixels, photo.alpha])
    return np.ascontiguousarray(samples)
