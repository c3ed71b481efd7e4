"""The small picture inside EXIF data, made anew: with the old colors, it would be what file managers show."""

from __future__ import annotations

import io
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightfast._photographs.photo import Photo

__all__ = ["with_new_thumbnail"]

_OFFSET, _LENGTH, _MARK = 0x0201, 0x0202, b"Exif\0\0"


def with_new_thumbnail(exif: bytes, photo: Photo) -> bytes:
    """EXIF data with its thumbnail, if it has one, drawn from the photograph; of the same size at most, in its place.

    What does not fit, even coded coarsely, is taken out.
    """
    data = bytearray(exif.removeprefix(_MARK))
    mark = exif[: len(exif) - len(data)]
    order = "<" if data[:2] == b"II" else ">"
    try:
        (first,) = struct.unpack_from(f"{order}I", data, 4)
        link = first + 2 + 12 * struct.unpack_from(f"{order}H", data, first)[0]
        (second,) = struct.unpack_from(f"{order}I", data, link)
        if not second:
            return exif
        (count,) = struct.unpack_from(f"{order}H", data, second)
        places = {
            struct.unpack_from(f"{order}H", data, at)[0]: at + 8
            for at in range(second + 2, second + 2 + 12 * count, 12)
        }
        start, length = (struct.unpack_from(f"{order}I", data, places[tag])[0] for tag in (_OFFSET, _LENGTH))
        fresh = _drawn(bytes(data[start : start + length]), photo)
    except (struct.error, KeyError, OSError):
        # Not the layout of a thumbnail that could be told.
        return exif
    if fresh is None:
        struct.pack_into(f"{order}I", data, link, 0)
    else:
        data[start : start + length] = fresh.ljust(length, b"\0")
        struct.pack_into(f"{order}I", data, places[_LENGTH], len(fresh))
    return mark + bytes(data)


def _drawn(old: bytes, photo: Photo) -> bytes | None:
    """A JPEG of the photograph, of the size of another and not longer."""
    from PIL import Image

    with Image.open(io.BytesIO(old)) as image:
        size = image.size
    small = photo.stored_image(max(size)).resize(size).convert("RGB")
    for quality in (85, 70, 50, 30):
        file = io.BytesIO()
        small.save(file, "JPEG", quality=quality)
        if len(file.getvalue()) <= len(old):
            return file.getvalue()
    return None
