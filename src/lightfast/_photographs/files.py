"""Photographs as files: decoded with all their bits, and written with EXIF, XMP, IPTC and color profile kept.

What a file holds is told from its first bytes, and :mod:`lightfast._photographs.formats` has each kind. JPEG, PNG,
WebP, HEIC and AVIF hold values with the gamma of sRGB, as does TIFF of 8 or 16 bits; floating point, and the values of
raw files, are linear in light.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np

from lightfast._atomic import DiskFull, write_whole
from lightfast._photographs.formats import FORMATS, content_kind
from lightfast._photographs.photo import Photo, PhotoError
from lightfast._photographs.raw import RAW_SUFFIXES, RawPhoto
from lightfast._photographs.thumbnail import with_new_thumbnail

__all__ = [
    "PHOTO_SUFFIXES",
    "check_file",
    "kind_named",
    "read_content",
    "read_photo",
    "read_pixels",
    "suffix_for",
    "write_photo",
]

PHOTO_SUFFIXES = RAW_SUFFIXES | {suffix for format in FORMATS.values() for suffix in format.suffixes}
"""Of all files that are read."""


def check_file(path: Path) -> Path:
    """The path itself; a folder, or a pipe that would never end, is refused with a sentence."""
    if path.is_dir():
        raise PhotoError(f"{path} is a folder: name the photographs in it, such as {path / '*.jpg'}")
    if not path.is_file():
        what = f"{path} is not a file" if path.exists() else f"there is no file {path}"
        raise PhotoError(f"{what}: name a photograph")
    return path


def read_content(path: Path) -> bytes:
    """The bytes of a file; a sentence if there are none to be had."""
    try:
        return check_file(path).read_bytes()
    except OSError as error:
        raise PhotoError(f"{path} cannot be read ({error.strerror}): see who may read it") from error


def read_photo(path: str | os.PathLike[str]) -> Photo | RawPhoto:
    """Decode a photograph, by what the file holds and not by its name; camera raw files by their suffix.

    Raises:
        PhotoError: it is missing, damaged, too large, or of another kind; the message says which.
    """
    path = Path(path)
    content = read_content(path)
    if path.suffix.lower() in RAW_SUFFIXES:
        return RawPhoto(path, content)
    try:
        return FORMATS[content_kind(content)].read(content)
    except (ImportError, PhotoError) as error:
        raise type(error)(f"{path}: {error}") from error
    except Exception as error:
        # Damaged files raise whatever their decoder stumbles over: OSError, ValueError, struct.error, KeyError.
        # Where Pillow knows no name, it says where in memory the content lies.
        what = re.sub(r" <_io\.BytesIO.*?>", "", str(error))
        raise PhotoError(f"{path} cannot be read as a photograph ({what}): it is damaged, or something else") from error


def write_photo(photo: Photo, path: str | os.PathLike[str]) -> None:
    """Write the whole file or nothing, as the photo's kind, with what was kept: a JPEG file with its own quality."""
    samples = photo.pixels if photo.alpha is None else np.dstack([photo.pixels, photo.alpha])
    kept = photo.kept
    if kept.get("exif"):
        kept = kept | {"exif": with_new_thumbnail(kept["exif"], photo)}
    content = FORMATS[photo.kind].write(np.ascontiguousarray(samples), kept)
    try:
        write_whole(Path(path), content)
    except DiskFull as error:
        raise PhotoError(str(error)) from error
    except OSError as error:
        raise PhotoError(f"{path} cannot be written ({error.strerror})") from error


def read_pixels(path: str | os.PathLike[str]) -> np.ndarray:
    """The colors of an image file as it holds them: (H, W, 3), or (H, W, 1) for gray."""
    photo = read_photo(path)
    if not isinstance(photo, Photo):
        raise PhotoError(f"{path} is a camera raw file, and has to be developed first")
    return photo.pixels


def kind_named(path: str | os.PathLike[str]) -> str:
    """The kind of file that a name asks for.

    >>> kind_named("holiday.jpeg")
    'JPEG'
    """
    for kind, format in FORMATS.items():
        if Path(path).suffix.lower() in format.suffixes:
            return kind
    known = ", ".join(suffix for format in FORMATS.values() for suffix in format.suffixes)
    raise ValueError(f"{path} is to be written as what? Name a file that ends in {known}")


def suffix_for(kind: str, path: Path) -> str:
    """The suffix to write a photo of a kind with: that of the file it came from, if it is one of the kind."""
    known = FORMATS[kind].suffixes
    return path.suffix if path.suffix.lower() in known else known[0]
