"""Photographs as files: decoded with all their bits, corrected, and written with EXIF and color profile kept.

JPEG, PNG and TIFF hold values with the gamma of sRGB, 8 or 16 bits each; camera raw files hold the sensor's own, linear
in light. White balance in linear light multiplies each channel by a gain, so on encoded values it is a table a channel:
exact, and as fast as looking things up.
"""

from __future__ import annotations

import io
import os
import struct
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from lightfast._atomic import write_whole

__all__ = ["RAW_SUFFIXES", "Photo", "PhotoError", "read_photo", "read_pixels", "write_photo", "write_png"]

RAW_SUFFIXES = frozenset(
    f".{name}"
    for name in (
        *("3fr", "arw", "cr2", "cr3", "dcr", "dng", "erf", "iiq", "kdc", "mef", "mos"),
        *("mrw", "nef", "nrw", "orf", "pef", "raf", "raw", "rw2", "rwl", "srw", "x3f"),
    )
)
"""Camera raw files, which are read with rawpy."""

_ORIENTATION = 0x0112
_SUFFIXES = {"JPEG": (".jpg", ".jpeg"), "PNG": (".png",), "TIFF": (".tif", ".tiff")}


class PhotoError(ValueError):
    """A photograph cannot be read or written; the message names the file."""


@dataclass(frozen=True)
class Photo:
    """A decoded photograph.

    Attributes:
        pixels: (H, W, 3), uint8 or uint16, as the file has them.
        kind: JPEG, PNG or TIFF: what to write it as.
        linear: whether values are linear in light, or have the gamma of sRGB.
        alpha: (H, W), of the pixels' type; None if there is none.
        kept: what Pillow is given to write, as `exif`, `icc_profile` and `dpi`.
        orientation: how the picture is to be turned, as EXIF numbers it; 1 for upright.
    """

    pixels: np.ndarray
    kind: str
    linear: bool = False
    alpha: np.ndarray | None = None
    kept: dict[str, Any] = field(default_factory=dict)
    orientation: int = 1

    def reduced(self, side: int = 512) -> np.ndarray:
        """Linear values (3, h, w), float32 in [0, 1], averaged over blocks so that the longer side is about `side`.

        Pixels with a channel at the top of the range are left out of the averages, as they say nothing of the light; a
        block of nothing else is 0, which estimators leave out too.
        """
        step = max(1, max(self.pixels.shape[:2]) // side)
        height, width = (length // step * step for length in self.pixels.shape[:2])
        blocks = self.pixels[:height, :width].reshape(height // step, step, width // step, step, 3)
        # Every block is sampled, and a few of its pixels are enough for a mean.
        blocks = blocks[:, :: max(1, step // 2), :, :: max(1, step // 2)]
        values = _decoding(self.pixels.dtype, self.linear).astype(np.float32)[blocks]
        whole = (blocks < _clipped(self.pixels.dtype)).all(-1, keepdims=True)
        mean = (values * whole).sum((1, 3)) / np.maximum(whole.sum((1, 3)), 1)
        return np.ascontiguousarray(mean.transpose(2, 0, 1), dtype=np.float32)

    def balanced(self, gains: np.ndarray) -> Photo:
        """The photograph with each channel's linear light multiplied by its gain (3,), clipped and rounded once."""
        top = np.iinfo(self.pixels.dtype).max
        linear = _decoding(self.pixels.dtype, self.linear)
        changed = np.clip(linear * np.asarray(gains, dtype=np.float64)[:, None], 0, 1)
        tables = np.round((changed if self.linear else _encode_srgb(changed)) * top).astype(self.pixels.dtype)
        return replace(self, pixels=_look_up(self.pixels, tables))

    def upright(self, side: int) -> Any:
        """A small Pillow image to look at, turned as the EXIF orientation says, with the longer side of `side`."""
        from PIL import Image, ImageOps

        step = max(1, max(self.pixels.shape[:2]) // (2 * side))
        values = self.pixels[::step, ::step]
        if self.pixels.dtype == np.uint16:
            values = (values >> 8).astype(np.uint8)
        image = Image.fromarray(np.ascontiguousarray(values))
        image.getexif()[_ORIENTATION] = self.orientation
        image = ImageOps.exif_transpose(image)
        image.thumbnail((side, side))
        return image


class RawPhoto:
    """A camera raw file, estimated on in the sensor's own colors and developed with the gains found there.

    Args:
        path: of the file.
    """

    kind = "TIFF"

    def __init__(self, path: Path) -> None:
        self.path, self._rawpy = path, _rawpy(path)

    def reduced(self, side: int = 512) -> np.ndarray:
        """As :meth:`Photo.reduced`, in camera RGB."""
        raw_space = self._rawpy.ColorSpace.raw
        return Photo(self._develop([1, 1, 1], raw_space, (1, 1), half_size=True), "TIFF", linear=True).reduced(side)

    def balanced(self, gains: np.ndarray) -> Photo:
        """Developed to sRGB with these gains as its white balance; 16 bits."""
        pixels = self._develop(list(gains), self._rawpy.ColorSpace.sRGB, (2.4, 12.92))
        return Photo(pixels, self.kind, kept=self._kept())

    def upright(self, side: int) -> Any:
        """As :meth:`Photo.upright`, in daylight balance."""
        pixels = self._develop(None, self._rawpy.ColorSpace.sRGB, (2.4, 12.92), half_size=True)
        return Photo(pixels, self.kind).upright(side)

    def _develop(self, gains: Sequence[float] | None, space: Any, gamma: tuple[float, float], **how: Any) -> np.ndarray:
        balance = {} if gains is None else {"user_wb": [float(gains[place]) for place in (0, 1, 2, 1)]}
        try:
            with self._rawpy.imread(os.fspath(self.path)) as raw:
                return raw.postprocess(
                    **balance, **how, output_color=space, gamma=gamma, output_bps=16, no_auto_bright=True
                )
        except (self._rawpy.LibRawError, OSError) as error:
            raise PhotoError(f"{self.path} cannot be read as a camera raw file ({error})") from error

    def _kept(self) -> dict[str, Any]:
        """The EXIF data of the preview inside the file, if it has one; developing has turned it upright."""
        from PIL import Image

        try:
            with self._rawpy.imread(os.fspath(self.path)) as raw:
                exif = Image.open(io.BytesIO(raw.extract_thumb().data)).getexif()
        except Exception:
            return {}
        if _ORIENTATION in exif:
            exif[_ORIENTATION] = 1
        return {"exif": exif} if len(exif) else {}


def read_photo(path: str | os.PathLike[str]) -> Photo | RawPhoto:
    """Decode a JPEG, PNG, TIFF or camera raw file, by what it holds and not by its name; raw files by their suffix.

    Raises:
        PhotoError: it is missing, damaged, or of another kind; the message says which.
    """
    path = Path(path)
    if not path.is_file():
        raise PhotoError(f"there is no file {path}")
    if path.suffix.lower() in RAW_SUFFIXES:
        return RawPhoto(path)
    from PIL import Image

    try:
        opened: Any = Image.open(path)
        with opened as image:
            kind = "JPEG" if image.format == "MPO" else image.format
            if kind not in _SUFFIXES:
                raise PhotoError(
                    f"{path} is {image.format}, and only JPEG, PNG, TIFF and camera raw files are balanced"
                )
            if image.mode not in ("RGB", "RGBA", "P"):
                raise PhotoError(f"{path} has no red, green and blue to balance: its colors are {image.mode}")
            # Pillow turns TIFF files upright when it decodes them, so the orientation is asked for after that.
            pixels, alpha = pixels_of(image), _alpha_of(image)
            kept = {name: image.info[name] for name in ("exif", "icc_profile", "dpi") if image.info.get(name)}
            if kind == "TIFF" and (exif := _tiff_exif(image)):
                kept["exif"] = exif
            if kind == "JPEG":
                kept |= {"qtables": image.quantization, "subsampling": _subsampling(image)}
            orientation = int(image.getexif().get(_ORIENTATION, 1))
            return Photo(pixels, kind, alpha=alpha, kept=kept, orientation=orientation)
    except PhotoError:
        raise
    except (OSError, SyntaxError, ValueError, EOFError, struct.error) as error:
        raise PhotoError(
            f"{path} cannot be read as a photograph ({error}): it is damaged, or something else"
        ) from error


def write_photo(photo: Photo, path: str | os.PathLike[str]) -> None:
    """Write the whole file or nothing, as the photo's kind, with what was kept: a JPEG file with its own quality."""
    from PIL import Image

    file = io.BytesIO()
    if photo.pixels.dtype == np.uint16:
        content = _png16(photo) if photo.kind == "PNG" else _tiff16(photo)
    else:
        pixels = photo.pixels if photo.alpha is None else np.dstack([photo.pixels, photo.alpha])
        how = {"compress_level": 4} if photo.kind == "PNG" else {}
        Image.fromarray(pixels).save(file, photo.kind, **how, **photo.kept)
        content = file.getvalue()
    write_whole(Path(path), content)


def suffix_for(kind: str, path: Path) -> str:
    """The suffix to write a photo of a kind with: that of the file it came from, if it is one of the kind."""
    known = _SUFFIXES[kind]
    return path.suffix if path.suffix.lower() in known else known[0]


def read_pixels(path: str | os.PathLike[str]) -> np.ndarray:
    """The colors of an image file as it holds them: (H, W, 3), uint8 or uint16."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            return pixels_of(image)
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        raise PhotoError(f"{path} cannot be read as an image ({error}): replace it, or leave it out") from error


def pixels_of(image: Any) -> np.ndarray:
    """(H, W, 3) of an opened image, uint8, or uint16 where the file has 16 bits a channel."""
    low = _rawmode_of_low_bytes(image)
    if low is None:
        return np.asarray(image.convert("RGB"))
    high = np.asarray(image)[..., :3]
    return (high.astype(np.uint16) << 8) | _low_bytes(image, low)[..., :3]


def _alpha_of(image: Any) -> np.ndarray | None:
    if "A" not in image.getbands():
        return None
    low = _rawmode_of_low_bytes(image)
    alpha = np.asarray(image.getchannel("A"))
    return alpha if low is None else (alpha.astype(np.uint16) << 8) | _low_bytes(image, low)[..., 3]


def _low_bytes(image: Any, rawmode: str) -> np.ndarray:
    """The low byte of each 16-bit value.

    Pillow has no 16-bit color: it keeps the high byte. Told that the bytes lie the other way around, it keeps the low
    one.
    """
    from PIL import Image

    with Image.open(image.filename) as again:
        again.tile = [_with_rawmode(tile, rawmode) for tile in again.tile]
        return np.asarray(again)


def _rawmode_of_low_bytes(image: Any) -> str | None:
    """The name of the pixel layout with bytes swapped, for a file with 16 bits a channel; None for any other."""
    rawmode = _opened_rawmode(image)
    layout, _, order = rawmode.partition(";16")
    if not layout.startswith("RGB") or order not in ("B", "L", "N"):
        return None
    order = order.replace("N", "L" if sys.byteorder == "little" else "B")
    return f"{layout};16{'L' if order == 'B' else 'B'}"


def _opened_rawmode(image: Any) -> str:
    """The layout of the pixels in the file; a loaded image has forgotten it, so the file is asked again."""
    from PIL import Image

    if image.tile:
        return _rawmode(image.tile[0])
    if not getattr(image, "filename", None):
        return ""
    with Image.open(image.filename) as again:
        return _rawmode(again.tile[0]) if again.tile else ""


def _rawmode(tile: Any) -> str:
    arguments = tile[3]
    if isinstance(arguments, str):
        return arguments
    return str(arguments[0]) if isinstance(arguments, tuple) and arguments else ""


def _with_rawmode(tile: Any, rawmode: str) -> Any:
    codec, extents, offset, arguments = tile
    swapped: Any = rawmode if isinstance(arguments, str) else (rawmode, *arguments[1:])
    parts = (codec, extents, offset, swapped)
    return type(tile)(*parts) if hasattr(tile, "_fields") else parts


def _tiff_exif(image: Any) -> Any:
    exif = image.getexif()
    # What describes the pixels' own layout is written anew.
    for tag in (254, 256, 257, 258, 259, 262, 273, 277, 278, 279, 284, 317, 322, 323, 324, 325, 338, 339, 34675):
        if tag in exif:
            del exif[tag]
    return exif if len(exif) else None


def _subsampling(image: Any) -> int:
    """How the colors of a JPEG file are stored beside its brightness, as Pillow numbers it; 4:4:4 where it is odd."""
    from PIL import JpegImagePlugin

    return max(0, JpegImagePlugin.get_sampling(image))


def _rawpy(path: Path) -> Any:
    try:
        import rawpy
    except ImportError:
        raise PhotoError(f"{path} is a camera raw file, which needs rawpy: pip install lightfast[raw]") from None
    return rawpy


def _look_up(pixels: np.ndarray, tables: np.ndarray) -> np.ndarray:
    """Each channel of (H, W, 3) through its row of tables (3, values)."""
    if pixels.dtype == np.uint8:
        from PIL import Image

        return np.asarray(Image.fromarray(pixels).point(tables.flatten().tolist()))
    looked_up = np.empty_like(pixels)
    for channel, table in enumerate(tables):
        looked_up[..., channel] = table[pixels[..., channel]]
    return looked_up


def _decoding(dtype: Any, linear: bool) -> np.ndarray:
    """Linear light in [0, 1] of every value of a type."""
    values = np.arange(np.iinfo(dtype).max + 1) / np.iinfo(dtype).max
    if not linear:
        values = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    return values


def _encode_srgb(linear: np.ndarray) -> np.ndarray:
    return np.where(linear <= 0.0031308, linear * 12.92, 1.055 * np.maximum(linear, 1e-9) ** (1 / 2.4) - 0.055)


def _clipped(dtype: Any) -> int:
    """The value from which on a channel counts as saturated: 99 % of the range."""
    return int(np.iinfo(dtype).max * 0.99)


def write_png(path: str | os.PathLike[str], pixels: np.ndarray) -> None:
    """Write (H, W, 3) or (H, W, 4), uint16, as a 16-bit PNG file."""
    Path(path).write_bytes(_png16_bytes(pixels, []))


def _png16(photo: Photo) -> bytes:
    chunks: list[tuple[bytes, bytes]] = []
    if profile := photo.kept.get("icc_profile"):
        chunks.append((b"iCCP", b"ICC Profile\0\0" + zlib.compress(profile)))
    if exif := photo.kept.get("exif"):
        chunks.append((b"eXIf", exif.removeprefix(b"Exif\0\0")))
    if dpi := photo.kept.get("dpi"):
        across, down = (round(float(number) / 0.0254) for number in dpi)
        chunks.append((b"pHYs", struct.pack(">IIB", across, down, 1)))
    pixels = photo.pixels if photo.alpha is None else np.dstack([photo.pixels, photo.alpha])
    return _png16_bytes(pixels, chunks)


def _png16_bytes(pixels: np.ndarray, chunks: list[tuple[bytes, bytes]]) -> bytes:
    """A PNG file (ISO/IEC 15948) of 16-bit RGB or RGBA, every row filtered by the one above."""
    height, width, channels = pixels.shape
    rows = np.ascontiguousarray(pixels, dtype=">u2").view(np.uint8).reshape(height, -1)
    filtered = np.full((height, rows.shape[1] + 1), 2, dtype=np.uint8)
    filtered[0, 1:] = rows[0]
    np.subtract(rows[1:], rows[:-1], out=filtered[1:, 1:])
    header = struct.pack(">IIBBBBB", width, height, 16, {3: 2, 4: 6}[channels], 0, 0, 0)
    body = (b"IDAT", zlib.compress(filtered.tobytes(), 4))
    parts = [b"\x89PNG\r\n\x1a\n"]
    for name, content in [(b"IHDR", header), *chunks, body, (b"IEND", b"")]:
        parts += [struct.pack(">I", len(content)), name, content, struct.pack(">I", zlib.crc32(name + content))]
    return b"".join(parts)


def _tiff16(photo: Photo) -> bytes:
    """A TIFF file of 16-bit RGB or RGBA.

    Pillow writes one of 8 bits that is twice as wide, which has the same bytes; then the two entries that say how wide
    it is, and of how many bits, are set right.
    """
    from PIL import Image

    pixels = photo.pixels if photo.alpha is None else np.dstack([photo.pixels, photo.alpha])
    height, width, channels = pixels.shape
    as_bytes = np.ascontiguousarray(pixels, dtype="<u2").view(np.uint8).reshape(height, 2 * width, channels)
    file = io.BytesIO()
    Image.fromarray(as_bytes).save(file, "TIFF", **photo.kept)
    content = bytearray(file.getvalue())
    order = "<" if content[:2] == b"II" else ">"
    (start,) = struct.unpack_from(f"{order}I", content, 4)
    (entries,) = struct.unpack_from(f"{order}H", content, start)
    for place in range(start + 2, start + 2 + 12 * entries, 12):
        tag, kind, count = struct.unpack_from(f"{order}HHI", content, place)
        if tag == 256:
            struct.pack_into(f"{order}{'H' if kind == 3 else 'I'}", content, place + 8, width)
        elif tag == 258:
            (where,) = struct.unpack_from(f"{order}I", content, place + 8)
            struct.pack_into(f"{order}{count}H", content, where, *[16] * count)
    return bytes(content)
