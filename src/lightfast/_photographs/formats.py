"""The kinds of files, each read and written: JPEG by Pillow, PNG by imagecodecs, TIFF by tifffile, HEIC by pillow-heif.

A new kind of file is a line of :data:`FORMATS`.
"""

from __future__ import annotations

import io
import logging
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from lightfast._photographs.photo import Photo, PhotoError

__all__ = ["FORMATS", "content_kind", "needed", "split_alpha", "tiff_kept"]

# Tags of TIFF that describe the pixels' own layout, resolution and profile: they are written anew.
_LAYOUT = {254, 255, 256, 257, 258, 259, 262, 266, 273, 277, 278, 279, 280, 281, 282, 283, 284, 296, 317, 320}
_LAYOUT |= {322, 323, 324, 325, 330, 338, 339, 347, 530, 532, 34675}

_KEPT = ("exif", "icc_profile", "dpi", "xmp")
_XMP = b"http://ns.adobe.com/xap/1.0/\0"
# Segments of JPEG that hold IPTC, comments, and XMP beyond 64 KiB; those of EXIF and profile are written by Pillow.
_SEGMENTS = {"APP13": (0xED, b"Photoshop 3.0\0"), "COM": (0xFE, b""), "APP1": (0xE1, b"http://ns.adobe.com/xm")}


class Format(NamedTuple):
    """A kind of file: its suffixes, and how it is read and written."""

    suffixes: tuple[str, ...]
    read: Callable[[bytes], Photo]
    write: Callable[[np.ndarray, dict[str, Any]], bytes]


def content_kind(content: bytes) -> str:
    """Which of :data:`FORMATS` a file is, by its first bytes; JPEG, whose decoder then complains, if none is known."""
    if content[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        return "TIFF"
    if content[:4] == b"\x89PNG":
        return "PNG"
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "WEBP"
    if content[4:8] == b"ftyp":
        return "AVIF" if content[8:12] in (b"avif", b"avis") else "HEIF"
    return "JPEG"


def split_alpha(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Pixels (H, W, 1 or 3) and alpha (H, W), if there is one, of (H, W) or (H, W, 1 to 4)."""
    samples = samples[..., None] if samples.ndim == 2 else samples
    colors = samples.shape[2] - 1 if samples.shape[2] in (2, 4) else samples.shape[2]
    return samples[..., :colors], samples[..., colors] if colors < samples.shape[2] else None


# What it finds damaged is said in a sentence of ours, or does not matter.
logging.getLogger("tifffile").addHandler(logging.NullHandler())


@contextmanager
def _opened(content: bytes) -> Iterator[Any]:
    """A Pillow image, of which only the header is read; larger than photographs are, it is refused.

    Pillow warns of what is half as large, which is a photograph still.
    """
    pillow = needed("PIL.Image")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pillow.DecompressionBombWarning)
        try:
            image = pillow.open(io.BytesIO(content))
        except pillow.DecompressionBombError:
            raise PhotoError(f"it has more than {_most_pixels() // 10**6} megapixels: reduce it first") from None
        with image:
            yield image


def _most_pixels() -> int:
    return 2 * (needed("PIL.Image").MAX_IMAGE_PIXELS or 2**40)


def _one_frame(count: int) -> None:
    if count > 1:
        raise PhotoError(f"it has {count} pages or frames, of which only one could be kept: split it first")


def _exif(image: Any) -> Any:
    """What a camera has written about it; nothing where that is damaged, which is no reason not to read the picture."""
    try:
        return image.getexif()
    except Exception:
        return {}


def _kept(image: Any) -> dict[str, Any]:
    damaged = {"exif"} if not _exif(image) else set()
    return {name: image.info[name] for name in _KEPT if image.info.get(name) and name not in damaged}


def orientation_in(value: Any) -> int:
    """As EXIF numbers it, 1 to 8; cameras write other numbers too, which mean nothing."""
    return int(value) if value in range(1, 9) else 1


def _orientation(image: Any) -> int:
    return orientation_in(_exif(image).get(0x0112, 1))


def _read_jpeg(content: bytes) -> Photo:
    from PIL import JpegImagePlugin

    with _opened(content) as image:
        if image.format not in ("JPEG", "MPO"):
            raise PhotoError(f"it is {image.format}, not {', '.join(FORMATS)} or camera raw: convert it first")
        if image.mode not in ("RGB", "L"):
            raise ValueError(f"its colors are {image.mode}, not red, green and blue")
        further = getattr(image, "n_frames", 1) - 1
        pixels, _ = split_alpha(np.asarray(image))
        # Subsampling as Pillow numbers it, and 4:4:4 where it is odd.
        coded = {"qtables": image.quantization, "subsampling": max(0, JpegImagePlugin.get_sampling(image))}
        segments = [(name, data) for name, data in image.applist if data.startswith(_SEGMENTS.get(name, (0, b"-"))[1])]
        extra = b"".join(b"\xff" + struct.pack(">BH", _SEGMENTS[n][0], len(data) + 2) + data for n, data in segments)
        kept = _kept(image) | coded | ({"extra": extra} if extra else {})
        xmp = next((data.removeprefix(_XMP) for _, data in image.applist if data.startswith(_XMP)), None)
        # Phones add a preview or a map of brightness behind the picture, which would have the old colors.
        note = f"{further} further picture{'s' * (further > 1)} in the file left out" if further else ""
        return Photo(
            pixels, "JPEG", orientation=_orientation(image), kept=kept | ({"xmp": xmp} if xmp else {}), note=note
        )


def _read_png(content: bytes) -> Photo:
    with _opened(content) as image:
        _one_frame(getattr(image, "n_frames", 1))
        kept, orientation = _kept(image), _orientation(image)
        pixels, alpha = split_alpha(needed("imagecodecs").png_decode(content))
        key = image.info.get("transparency")
        if alpha is None and key is not None:
            alpha = _alpha_of_key(image, content, pixels, key)
    return Photo(pixels, "PNG", alpha=alpha, orientation=orientation, kept=kept)


def _alpha_of_key(image: Any, content: bytes, pixels: np.ndarray, key: Any) -> np.ndarray:
    """What a tRNS chunk means: of a palette, an alpha for each color; else one color that is not seen."""
    if image.mode == "P":
        return np.asarray(image.convert("RGBA"))[..., 3]
    top, depth = np.iinfo(pixels.dtype).max, content[24]
    key = np.atleast_1d(key) * (255 // (2**depth - 1) if depth < 8 else 1)
    return np.where((pixels == key).all(-1), 0, top).astype(pixels.dtype)


def _read_tiff(content: bytes) -> Photo:
    # tifffile asks imagecodecs for most compressions.
    needed("imagecodecs")
    with needed("tifffile").TiffFile(io.BytesIO(content)) as file:
        page: Any = file.pages[0]
        # Smaller copies of the first page say so.
        _one_frame(
            sum(not other.tags.valueof(254, default=0) & 1 for other in map(file.pages.get, range(len(file.pages))))
        )
        if page.imagewidth * page.imagelength > _most_pixels():
            raise PhotoError(f"it has more than {_most_pixels() // 10**6} megapixels: reduce it first")
        samples: Any = np.moveaxis(page.asarray(), 0, -1) if page.axes == "SYX" else page.asarray()
        orientation, kept = orientation_in(page.tags.valueof(274, default=1)), tiff_kept(page.tags.valueof, content)
    # Of luma and chroma, tifffile gives red, green and blue where JPEG is inside.
    known = ("RGB", "MINISBLACK", *(["YCBCR"] if page.compression.name == "JPEG" else []))
    if page.photometric.name not in known or page.samplesperpixel > 4:
        raise ValueError(f"its {page.samplesperpixel} colors are {page.photometric.name}, not red, green and blue")
    if samples.dtype.name not in ("uint8", "uint16", "float16", "float32", "float64"):
        raise ValueError(f"its values are {samples.dtype}, not 8 or 16 bits or floating point")
    pixels, alpha = split_alpha(samples)
    return Photo(np.ascontiguousarray(pixels), "TIFF", samples.dtype.kind == "f", alpha, orientation, kept)


def tiff_kept(value_of: Callable[[int], Any], content: bytes) -> dict[str, Any]:
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


def _read_by_pillow(kind: str) -> Callable[[bytes], Photo]:
    """WebP, HEIC and AVIF: 8 bits, in red, green and blue."""

    def read(content: bytes) -> Photo:
        if kind == "HEIF":
            needed("pillow_heif", "heic").register_heif_opener()
        with _opened(content) as image:
            _one_frame(getattr(image, "n_frames", 1) if kind != "HEIF" else 1)
            if image.mode not in ("RGB", "RGBA", "L"):
                image = image.convert("RGBA" if "A" in image.mode else "RGB")
            pixels, alpha = split_alpha(np.asarray(image))
            orientation = _orientation(image)
            lossless = {"lossless": True} if b"VP8L" in content[:64] else {"quality": 95}
            return Photo(pixels, kind, alpha=alpha, orientation=orientation, kept=_kept(image) | lossless)

    return read


def _by_pillow(kind: str) -> Callable[[np.ndarray, dict[str, Any]], bytes]:
    def write(samples: np.ndarray, kept: dict[str, Any]) -> bytes:
        if kind == "HEIF":
            needed("pillow_heif", "heic").register_heif_opener()
        file = io.BytesIO()
        needed("PIL.Image").fromarray(_flat(samples)).save(file, kind, **({"quality": 95} | kept))
        return file.getvalue()

    return write


def _jpeg(samples: np.ndarray, kept: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    needed("PIL.Image").fromarray(_flat(samples)).save(file, "JPEG", **kept)
    return file.getvalue()


def _flat(samples: np.ndarray) -> np.ndarray:
    """Gray as (H, W)."""
    return np.ascontiguousarray(samples[..., 0]) if samples.shape[2] == 1 else samples


def _png(samples: np.ndarray, kept: dict[str, Any]) -> bytes:
    from PIL.PngImagePlugin import putchunk

    content = needed("imagecodecs").png_encode(_flat(samples), level=4)
    # What is kept goes behind the signature and the header, which have always this length.
    file = io.BytesIO(content[:33])
    file.seek(33)
    if profile := kept.get("icc_profile"):
        putchunk(file, b"iCCP", b"ICC Profile\0\0" + zlib.compress(profile))
    if exif := kept.get("exif"):
        putchunk(file, b"eXIf", exif.removeprefix(b"Exif\0\0"))
    if dpi := kept.get("dpi"):
        putchunk(file, b"pHYs", struct.pack(">IIB", *(round(float(number) / 0.0254) for number in dpi), 1))
    if xmp := kept.get("xmp"):
        putchunk(file, b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + (xmp.encode() if isinstance(xmp, str) else xmp))
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
    if (xmp := kept.get("xmp")) and 700 not in tags:
        tags.tagtype[700], tags[700] = 1, xmp.encode() if isinstance(xmp, str) else xmp
    if dpi := kept.get("dpi"):
        tags[name.ResolutionUnit], (tags[name.XResolution], tags[name.YResolution]) = 2, map(float, dpi)
    content = samples.astype(samples.dtype.newbyteorder("<")).tobytes()
    # The directory counts the strip's place from its own end.
    tags[name.StripOffsets], tags[name.StripByteCounts] = 0, len(content)
    file = io.BytesIO()
    tags.save(file)
    return file.getvalue() + content


def needed(module: str, extra: str = "photo") -> Any:
    """A package that reads photographs; a sentence if it is not installed."""
    try:
        return import_module(module)
    except ImportError:
        package = {"PIL.Image": "Pillow", "pillow_heif": "pillow-heif"}.get(module, module)
        raise ImportError(
            f"{package} is needed for this kind of photograph, and not installed: pip install lightfast[{extra}]"
        ) from None


FORMATS: dict[str, Format] = {
    "JPEG": Format((".jpg", ".jpeg"), _read_jpeg, _jpeg),
    "PNG": Format((".png",), _read_png, _png),
    "TIFF": Format((".tif", ".tiff"), _read_tiff, _tiff),
    "WEBP": Format((".webp",), _read_by_pillow("WEBP"), _by_pillow("WEBP")),
    "HEIF": Format((".heic", ".heif"), _read_by_pillow("HEIF"), _by_pillow("HEIF")),
    "AVIF": Format((".avif",), _read_by_pillow("AVIF"), _by_pillow("AVIF")),
}
"""By the names that Pillow has for them."""
