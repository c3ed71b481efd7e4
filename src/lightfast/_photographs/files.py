"""Photographs as files: decoded with all their bits, and written with EXIF and color profile kept.

JPEG files go through Pillow, PNG through imagecodecs, TIFF through tifffile, and camera raw files through rawpy. JPEG,
PNG and TIFF hold values with the gamma of sRGB, 8 or 16 bits each. TIFF may also hold floating point; these values, and
those of raw files, are linear in light.
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from lightfast._atomic import write_whole
from lightfast._photographs.photo import Photo, PhotoError

__all__ = ["RAW_SUFFIXES", "RawPhoto", "kind_named", "read_photo", "read_pixels", "suffix_for", "write_photo"]

RAW_SUFFIXES = frozenset(
    f".{name}"
    for name in (
        *("3fr", "arw", "cr2", "cr3", "dcr", "dng", "erf", "iiq", "kdc", "mef", "mos"),
        *("mrw", "nef", "nrw", "orf", "pef", "raf", "raw", "rw2", "rwl", "srw", "x3f"),
    )
)
"""Camera raw files, which are read with rawpy."""

_SUFFIXES = {"JPEG": (".jpg", ".jpeg"), "PNG": (".png",), "TIFF": (".tif", ".tiff")}

# Tags of TIFF that describe the pixels' own layout, resolution and profile: they are written anew.
_LAYOUT = {254, 255, 256, 257, 258, 259, 262, 266, 273, 277, 278, 279, 280, 281, 282, 283, 284, 296, 317, 320}
_LAYOUT |= {322, 323, 324, 325, 330, 338, 339, 347, 530, 532, 34675}


class RawPhoto:
    """A camera raw file, estimated on in the sensor's own colors and developed with the gains found there.

    Args:
        path: of the file.
    """

    kind = "TIFF"

    def __init__(self, path: Path) -> None:
        self.path, self._rawpy = path, _needed("rawpy", "raw")

    def reduced(self, side: int = 512) -> np.ndarray:
        """As :meth:`Photo.reduced`, in camera RGB."""
        raw_space = self._rawpy.ColorSpace.raw
        return Photo(self._develop([1, 1, 1], raw_space, (1, 1), half_size=True), linear=True).reduced(side)

    def balanced(self, gains: np.ndarray) -> Photo:
        """Developed to sRGB with these gains as its white balance; 16 bits."""
        pixels = self._develop(list(gains), self._rawpy.ColorSpace.sRGB, (2.4, 12.92))
        return Photo(pixels, self.kind, kept=self._kept())

    def upright(self, side: int) -> Any:
        """As :meth:`Photo.upright`, in daylight balance."""
        return Photo(self._develop(None, self._rawpy.ColorSpace.sRGB, (2.4, 12.92), half_size=True)).upright(side)

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
        from PIL import ExifTags, Image

        try:
            with self._rawpy.imread(os.fspath(self.path)) as raw:
                exif = Image.open(io.BytesIO(raw.extract_thumb().data)).getexif()
        except Exception:
            return {}
        if ExifTags.Base.Orientation in exif:
            exif[ExifTags.Base.Orientation] = 1
        return {"exif": exif.tobytes()} if len(exif) else {}


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
    content = path.read_bytes()
    try:
        if content[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
            return _read_tiff(content)
        return _read_png(content) if content[:4] == b"\x89PNG" else _read_jpeg(content)
    except ImportError:
        raise
    except Exception as error:
        # Damaged files raise whatever their decoder stumbles over: OSError, ValueError, struct.error, KeyError.
        raise PhotoError(
            f"{path} cannot be read as a photograph ({error}): it is damaged, or something else"
        ) from error


def write_photo(photo: Photo, path: str | os.PathLike[str]) -> None:
    """Write the whole file or nothing, as the photo's kind, with what was kept: a JPEG file with its own quality."""
    samples = photo.pixels if photo.alpha is None else np.dstack([photo.pixels, photo.alpha])
    content = {"JPEG": _jpeg, "PNG": _png, "TIFF": _tiff}[photo.kind](np.ascontiguousarray(samples), photo.kept)
    try:
        write_whole(Path(path), content)
    except OSError as error:
        raise PhotoError(f"{path} cannot be written ({error})") from error


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
    for kind, suffixes in _SUFFIXES.items():
        if Path(path).suffix.lower() in suffixes:
            return kind
    known = ", ".join(suffix for suffixes in _SUFFIXES.values() for suffix in suffixes)
    raise ValueError(f"{path} is to be written as what? Name a file that ends in {known}")


def suffix_for(kind: str, path: Path) -> str:
    """The suffix to write a photo of a kind with: that of the file it came from, if it is one of the kind."""
    known = _SUFFIXES[kind]
    return path.suffix if path.suffix.lower() in known else known[0]


def split_alpha(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Pixels (H, W, 1 or 3) and alpha (H, W), if there is one, of (H, W) or (H, W, 1 to 4)."""
    samples = samples[..., None] if samples.ndim == 2 else samples
    colors = samples.shape[2] - 1 if samples.shape[2] in (2, 4) else samples.shape[2]
    return samples[..., :colors], samples[..., colors] if colors < samples.shape[2] else None


def _read_jpeg(content: bytes) -> Photo:
    from PIL import JpegImagePlugin

    with _needed("PIL.Image").open(io.BytesIO(content)) as image:
        if image.format not in ("JPEG", "MPO"):
            raise ValueError(f"it is {image.format}, not JPEG, PNG, TIFF or camera raw")
        if image.mode not in ("RGB", "L"):
            raise ValueError(f"its colors are {image.mode}, not red, green and blue")
        pixels, _ = split_alpha(np.asarray(image))
        # Subsampling as Pillow numbers it, and 4:4:4 where it is odd.
        coded = {"qtables": image.quantization, "subsampling": max(0, JpegImagePlugin.get_sampling(image))}
        return Photo(pixels, "JPEG", orientation=_orientation(image), kept=_kept(image) | coded)


def _read_png(content: bytes) -> Photo:
    pixels, alpha = split_alpha(_needed("imagecodecs").png_decode(content))
    with _needed("PIL.Image").open(io.BytesIO(content)) as image:
        return Photo(pixels, "PNG", alpha=alpha, orientation=_orientation(image), kept=_kept(image))


def _read_tiff(content: bytes) -> Photo:
    # tifffile asks imagecodecs for most compressions.
    _needed("imagecodecs")
    with _needed("tifffile").TiffFile(io.BytesIO(content)) as file:
        page: Any = file.pages[0]
        samples: Any = np.moveaxis(page.asarray(), 0, -1) if page.axes == "SYX" else page.asarray()
        orientation, kept = int(page.tags.valueof(274, default=1)), _tiff_kept(page.tags.valueof, content)
    # Of luma and chroma, tifffile gives red, green and blue where JPEG is inside.
    known = ("RGB", "MINISBLACK", *(["YCBCR"] if page.compression.name == "JPEG" else []))
    if page.photometric.name not in known or page.samplesperpixel > 4:
        raise ValueError(f"its {page.samplesperpixel} colors are {page.photometric.name}, not red, green and blue")
    if samples.dtype.name not in ("uint8", "uint16", "float16", "float32", "float64"):
        raise ValueError(f"its values are {samples.dtype}, not 8 or 16 bits or floating point")
    pixels, alpha = split_alpha(samples)
    return Photo(np.ascontiguousarray(pixels), "TIFF", samples.dtype.kind == "f", alpha, orientation, kept)


def _tiff_kept(value_of: Callable[[int], Any], content: bytes) -> dict[str, Any]:
    """What is kept of the tags of a TIFF file, which are EXIF data as they are, unless it is a BigTIFF."""
    from PIL import Image

    kept: dict[str, Any] = {"icc_profile": value_of(34675)} if value_of(34675) else {}
    per_inch = {None: 1.0, 2: 1.0, 3: 2.54}.get(value_of(296))
    if per_inch and value_of(282) and value_of(283):
        kept["dpi"] = tuple(per_inch * number / parts for number, parts in (value_of(282), value_of(283)))
    exif = Image.Exif()
    if b"*" in content[2:4]:
        exif.load(content)
    for tag in _LAYOUT & set(exif):
        del exif[tag]
    return kept | ({"exif": exif.tobytes()} if len(exif) else {})


def _kept(image: Any) -> dict[str, Any]:
    return {name: image.info[name] for name in ("exif", "icc_profile", "dpi") if image.info.get(name)}


def _orientation(image: Any) -> int:
    return int(image.getexif().get(0x0112, 1))


def _jpeg(samples: np.ndarray, kept: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    _needed("PIL.Image").fromarray(_flat(samples)).save(file, "JPEG", **kept)
    return file.getvalue()


def _flat(samples: np.ndarray) -> np.ndarray:
    """Gray as (H, W)."""
    return np.ascontiguousarray(samples[..., 0]) if samples.shape[2] == 1 else samples


def _png(samples: np.ndarray, kept: dict[str, Any]) -> bytes:
    import zlib

    from PIL.PngImagePlugin import putchunk

    content = _needed("imagecodecs").png_encode(_flat(samples), level=4)
    # What is kept goes behind the signature and the header, which have always this length.
    file = io.BytesIO(content[:33])
    file.seek(33)
    if profile := kept.get("icc_profile"):
        putchunk(file, b"iCCP", b"ICC Profile\0\0" + zlib.compress(profile))
    if exif := kept.get("exif"):
        putchunk(file, b"eXIf", exif.removeprefix(b"Exif\0\0"))
    if dpi := kept.get("dpi"):
        putchunk(file, b"pHYs", struct.pack(">IIB", *(round(float(number) / 0.0254) for number in dpi), 1))
    file.write(content[33:])
    return file.getvalue()


def _tiff(samples: np.ndarray, kept: dict[str, Any]) -> bytes:
    """Uncompressed, in one strip, behind the tags; Pillow's directory writes these, with EXIF data and all."""
    from PIL import ExifTags, Image, TiffImagePlugin

    exif, name = Image.Exif(), ExifTags.Base
    if kept.get("exif"):
        exif.load(kept["exif"])
    tags = TiffImagePlugin.ImageFileDirectory_v2()
    for tag, value in exif.items():
        tags[tag] = dict(exif.get_ifd(tag)) if tag in (ExifTags.IFD.Exif, ExifTags.IFD.GPSInfo) else value
    height, width, channels = samples.shape
    tags[name.ImageWidth], tags[name.ImageLength], tags[name.RowsPerStrip] = width, height, height
    tags[name.SamplesPerPixel], tags[name.BitsPerSample] = channels, (8 * samples.itemsize,) * channels
    tags[name.SampleFormat] = (3 if samples.dtype.kind == "f" else 1,) * channels
    tags[name.Compression], tags[name.PhotometricInterpretation] = 1, 2 if channels >= 3 else 1
    if channels in (2, 4):
        tags[name.ExtraSamples] = 2
    if profile := kept.get("icc_profile"):
        tags.tagtype[name.InterColorProfile], tags[name.InterColorProfile] = 7, profile
    if dpi := kept.get("dpi"):
        tags[name.ResolutionUnit], (tags[name.XResolution], tags[name.YResolution]) = 2, map(float, dpi)
    content = samples.astype(samples.dtype.newbyteorder("<")).tobytes()
    # The directory counts the strip's place from its own end.
    tags[name.StripOffsets], tags[name.StripByteCounts] = 0, len(content)
    file = io.BytesIO()
    tags.save(file)
    return file.getvalue() + content


def _needed(module: str, extra: str = "photo") -> Any:
    """A package that reads photographs; a sentence if it is not installed."""
    try:
        return import_module(module)
    except ImportError:
        package = {"PIL.Image": "Pillow"}.get(module, module)
        raise ImportError(
            f"{package} is needed for this kind of photograph, and not installed: pip install lightfast[{extra}]"
        ) from None
