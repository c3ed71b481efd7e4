"""Photographs as files: all bits, EXIF and profile kept, exact correction."""

import sys
import zlib

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image, TiffImagePlugin

from lightfast._photographs.files import read_photo, read_pixels, write_photo
from lightfast._photographs.photo import Photo, PhotoError
from lightfast._photographs.raw import RawPhoto
from lightfast.color import linear_to_srgb, srgb_to_linear

SUFFIXES_AND_TYPES = [
    *((suffix, dtype) for suffix in (".png", ".tif") for dtype in (np.uint8, np.uint16)),
    (".tif", np.float32),
]
PROFILE = b"not a real profile, but kept all the same"


def _pixels(dtype, size=(40, 56), channels=3, seed=0):
    top = np.iinfo(dtype).max
    return np.random.default_rng(seed).integers(0, top + 1, (*size, channels)).astype(dtype)


def _exif():
    exif = Image.Exif()
    exif[0x0110] = "Camera X"
    exif[0x0112] = 6
    exif.get_ifd(0x8769)[0x829A] = TiffImagePlugin.IFDRational(1, 125)
    return exif


def test_sixteen_bit_png_is_read_bit_by_bit(tmp_path):
    pixels = _pixels(np.uint16)
    write_photo(Photo(pixels), tmp_path / "a.png")
    assert np.array_equal(read_pixels(tmp_path / "a.png"), pixels)
    with Image.open(tmp_path / "a.png") as image:
        assert image.size == (56, 40)


def test_filters_of_other_encoders_are_undone(tmp_path):
    """Sub and Paeth filtered rows, as other programs write them."""
    import struct

    pixels = _pixels(np.uint16, (6, 5))
    rows = pixels.astype(">u2").view(np.uint8).reshape(6, -1).astype(int)
    lines = b""
    for y, row in enumerate(rows):
        above = rows[y - 1] if y else np.zeros_like(row)
        left, corner = np.zeros_like(row), np.zeros_like(row)
        left[6:], corner[6:] = row[:-6], above[:-6]
        if y % 2:
            near = np.stack([abs(above - corner), abs(left - corner), abs(left + above - 2 * corner)])
            guess = np.choose(near.argmin(0), [left, above, corner])
            lines += b"\4" + ((row - guess) % 256).astype(np.uint8).tobytes()
        else:
            lines += b"\1" + ((row - left) % 256).astype(np.uint8).tobytes()
    content = b"\x89PNG\r\n\x1a\n"
    header = struct.pack(">IIBBBBB", 5, 6, 16, 2, 0, 0, 0)
    for name, body in ((b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b"")):
        content += struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
    (tmp_path / "a.png").write_bytes(content)
    assert np.array_equal(read_pixels(tmp_path / "a.png"), pixels)


@pytest.mark.parametrize("compression", [None, "deflate", "lzw"])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("planar", [False, True])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_tiff_is_read_bit_by_bit(tmp_path, compression, order, planar, dtype):
    pixels = _pixels(np.uint16) / np.float32(65535) if dtype == np.float32 else _pixels(dtype)
    how = {"photometric": "rgb", "compression": compression, "byteorder": order}
    if planar:
        tifffile.imwrite(tmp_path / "a.tif", pixels.transpose(2, 0, 1), planarconfig="separate", **how)
    else:
        tifffile.imwrite(tmp_path / "a.tif", pixels, **how)
    photo = read_photo(tmp_path / "a.tif")
    assert np.array_equal(photo.pixels, pixels) and photo.pixels.dtype == dtype
    assert photo.linear == (dtype == np.float32) and photo.kind == "TIFF"


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize(("suffix", "dtype"), [*SUFFIXES_AND_TYPES])
def test_round_trips_are_bit_exact(tmp_path, suffix, dtype, channels):
    """Gray and color, with and without alpha, and what goes with them; judged by readers that are not ours, too."""
    values = _pixels(np.uint16, channels=channels) / 65535 if dtype == np.float32 else _pixels(dtype, channels=channels)
    values = values.astype(dtype)
    colors = 1 if channels < 3 else 3
    alpha = values[..., -1] if channels in (2, 4) else None
    kept = {"exif": _exif().tobytes(), "icc_profile": PROFILE, "dpi": (300, 300)}
    photo = Photo(values[..., :colors], {".png": "PNG", ".tif": "TIFF"}[suffix], dtype == np.float32, alpha, 6, kept)
    photo.save(tmp_path / f"a{suffix}")
    again = read_photo(tmp_path / f"a{suffix}")
    assert np.array_equal(again.pixels, photo.pixels) and again.pixels.dtype == dtype and again.linear == photo.linear
    assert (again.alpha is None) == (alpha is None) and (alpha is None or np.array_equal(again.alpha, alpha))
    assert again.orientation == 6 and again.kept["icc_profile"] == PROFILE
    exif = Image.Exif()
    exif.load(again.kept["exif"])
    assert exif[0x0110] == "Camera X" and exif.get_ifd(0x8769)[0x829A] == 0.008
    assert [round(number) for number in again.kept["dpi"]] == [300, 300]
    write_photo(again, tmp_path / f"b{suffix}")
    assert (tmp_path / f"b{suffix}").read_bytes() == (tmp_path / f"a{suffix}").read_bytes()
    if suffix == ".tif":
        assert np.array_equal(tifffile.imread(tmp_path / "a.tif").reshape(values.shape), values)
    elif dtype == np.uint8 or channels == 1:
        assert np.array_equal(np.asarray(Image.open(tmp_path / "a.png")).reshape(values.shape), values)
    elif channels >= 3:
        assert np.array_equal(np.asarray(Image.open(tmp_path / "a.png")), values >> 8), "of 16 bits Pillow reads 8"


def test_large_and_compressed_tiff_of_other_programs(tmp_path):
    pixels = _pixels(np.uint16)
    how = {"photometric": "rgb", "iccprofile": PROFILE, "resolution": (100, 100), "resolutionunit": "CENTIMETER"}
    tifffile.imwrite(tmp_path / "big.tif", pixels, bigtiff=True, extratags=[(274, "H", 1, 8, True)], **how)
    photo = read_photo(tmp_path / "big.tif")
    assert np.array_equal(photo.pixels, pixels) and photo.orientation == 8 and photo.kept["icc_profile"] == PROFILE
    assert photo.kept["dpi"] == (254, 254)
    smooth = np.linspace(0, 255, 64 * 96 * 3).reshape(64, 96, 3).astype(np.uint8)
    for name in ("RGB", "YCbCr"):
        Image.fromarray(smooth).convert(name).save(tmp_path / f"{name}.tif", compression="jpeg")
        assert np.abs(read_pixels(tmp_path / f"{name}.tif").astype(int) - smooth).mean() < 4
    Image.fromarray(smooth).convert("YCbCr").save(tmp_path / "plain.tif")
    with pytest.raises(PhotoError, match=r"plain\.tif .*YCBCR, not red, green and blue"):
        read_photo(tmp_path / "plain.tif")


def test_tiff_of_a_palette_is_refused_and_png_of_one_has_its_colors(tmp_path):
    image = Image.fromarray(_pixels(np.uint8)).quantize(16)
    image.save(tmp_path / "a.png")
    assert np.array_equal(read_pixels(tmp_path / "a.png"), np.asarray(image.convert("RGB")))
    image.save(tmp_path / "a.tif")
    with pytest.raises(PhotoError, match=r"a\.tif .*PALETTE, not red, green and blue"):
        read_photo(tmp_path / "a.tif")


@pytest.mark.parametrize(
    ("kind", "suffix", "dtype"),
    [
        ("JPEG", ".jpg", np.uint8),
        ("PNG", ".png", np.uint8),
        ("PNG", ".png", np.uint16),
        ("TIFF", ".tif", np.uint8),
        ("TIFF", ".tif", np.uint16),
    ],
)
def test_exif_and_profile_are_kept(tmp_path, kind, suffix, dtype):
    source, target = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    kept = {"exif": _exif().tobytes(), "icc_profile": PROFILE, "dpi": (300, 300)}
    write_photo(Photo(_pixels(dtype), kind, kept=kept), source)
    photo = read_photo(source)
    assert photo.kind == kind and photo.pixels.dtype == dtype and photo.orientation == 6
    assert photo.pixels.shape == (40, 56, 3)
    write_photo(photo.balanced(np.array([1.0, 1.0, 1.0])), target)
    with Image.open(target) as image:
        assert image.getexif()[0x0110] == "Camera X" and image.getexif().get(0x0112, 1) == 6
        assert image.info["icc_profile"] == PROFILE
        assert round(float(image.info["dpi"][0])) == 300
    if kind != "JPEG":
        assert np.array_equal(read_photo(target).pixels, photo.pixels)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_correction_is_that_of_linear_light(dtype):
    top = np.iinfo(dtype).max
    pixels, gains = (0.9 * _pixels(dtype)).astype(dtype), np.array([0.5, 1.0, 1.7])
    linear = srgb_to_linear(torch.from_numpy(pixels.astype(np.float64) / top)) * torch.from_numpy(gains)
    expected = (linear_to_srgb(linear.clamp(0, 1)) * top).round().numpy()
    found = Photo(pixels, "PNG").balanced(gains).pixels
    assert np.abs(found.astype(int) - expected).max() <= (1 if dtype == np.uint16 else 0)


def test_reduction_is_of_linear_light_and_leaves_saturated_pixels_out():
    pixels = np.full((64, 96, 3), 128, np.uint8)
    pixels[:, ::2] = (255, 255, 200)
    reduced = Photo(pixels, "PNG").reduced(side=48)
    assert reduced.shape == (3, 32, 48)
    np.testing.assert_allclose(reduced, float(srgb_to_linear(torch.tensor(128 / 255))), atol=1e-5)
    assert (Photo(np.full((8, 8, 3), 255, np.uint8), "PNG").reduced() == 0).all()


def test_a_quality_of_jpeg_is_kept(tmp_path):
    smooth = np.linspace(0, 255, 64 * 96 * 3).reshape(64, 96, 3).astype(np.uint8)
    for quality in (60, 95):
        Image.fromarray(smooth).save(tmp_path / "a.jpg", quality=quality)
        write_photo(read_photo(tmp_path / "a.jpg"), tmp_path / "b.jpg")
        with Image.open(tmp_path / "a.jpg") as before, Image.open(tmp_path / "b.jpg") as after:
            assert before.quantization == after.quantization  # type: ignore[attr-defined]


def test_bad_files_are_named(tmp_path):
    with pytest.raises(PhotoError, match="no file"):
        read_photo(tmp_path / "missing.jpg")
    (tmp_path / "bad.jpg").write_bytes(b"nothing")
    with pytest.raises(PhotoError, match=r"bad\.jpg cannot be read as a photograph: it is damaged"):
        read_photo(tmp_path / "bad.jpg")
    Image.fromarray(_pixels(np.uint8, (200, 300))).save(tmp_path / "whole.jpg")
    (tmp_path / "cut.jpg").write_bytes((tmp_path / "whole.jpg").read_bytes()[:9000])
    with pytest.raises(PhotoError, match=r"cut\.jpg"):
        read_photo(tmp_path / "cut.jpg")
    Image.fromarray(_pixels(np.uint8)).save(tmp_path / "a.gif")
    with pytest.raises(PhotoError, match="GIF"):
        read_photo(tmp_path / "a.gif")
    Image.fromarray(_pixels(np.uint8)).convert("CMYK").save(tmp_path / "cmyk.jpg")
    with pytest.raises(PhotoError, match="red, green and blue"):
        read_photo(tmp_path / "cmyk.jpg")
    for suffix in (".png", ".tif"):
        write_photo(Photo(_pixels(np.uint16), {".png": "PNG", ".tif": "TIFF"}[suffix]), tmp_path / f"whole{suffix}")
        (tmp_path / f"cut{suffix}").write_bytes((tmp_path / f"whole{suffix}").read_bytes()[:5000])
        with pytest.raises(PhotoError, match=rf"cut\{suffix} cannot be read"):
            read_photo(tmp_path / f"cut{suffix}")


@pytest.mark.parametrize("package", ["imagecodecs", "tifffile", "PIL.Image"])
def test_missing_packages_are_named(tmp_path, monkeypatch, package):
    suffix = {"imagecodecs": ".png", "tifffile": ".tif", "PIL.Image": ".jpg"}[package]
    Photo(_pixels(np.uint8)).save(tmp_path / f"a{suffix}")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=r"(imagecodecs|tifffile|Pillow) is needed .* pip install lightfast\[photo\]"):
        read_photo(tmp_path / f"a{suffix}")


def test_floating_point_becomes_whole_numbers_where_a_file_needs_them(tmp_path):
    light = _pixels(np.uint16).astype(np.float32) / 65535
    photo = Photo(light, "TIFF", linear=True)
    expected = 65535 * linear_to_srgb(torch.from_numpy(light).double()).numpy()
    photo.save(tmp_path / "a.png")
    assert np.abs(read_pixels(tmp_path / "a.png") - expected).max() <= 1
    photo.save(tmp_path / "a.jpg")
    assert read_pixels(tmp_path / "a.jpg").dtype == np.uint8
    assert np.abs(np.asarray(photo.upright()) - expected / 257).max() < 1.5
    with pytest.raises(ValueError, match=r"Name a file that ends in \.jpg"):
        photo.save(tmp_path / "a.gif")


def test_raw_files_need_rawpy(tmp_path, monkeypatch):
    (tmp_path / "a.CR2").write_bytes(b"nothing")
    monkeypatch.setitem(sys.modules, "rawpy", None)
    with pytest.raises(ImportError, match=r"pip install lightfast\[raw\]"):
        read_photo(tmp_path / "a.CR2")


def test_bad_raw_files_are_named(tmp_path):
    pytest.importorskip("rawpy")
    (tmp_path / "a.CR2").write_bytes(b"nothing")
    with pytest.raises(PhotoError, match=r"a\.CR2"):
        read_photo(tmp_path / "a.CR2").reduced()


def test_raw_files_are_developed_with_the_gains(tmp_path, monkeypatch):
    """With a stand-in for rawpy: a sensor whose green sees twice as much as the others."""

    class Raw:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def postprocess(self, user_wb=(1, 1, 1, 1), output_color=None, gamma=None, **_):
            sensor = np.full((8, 12, 3), (0.1, 0.2, 0.1)) * np.array(user_wb)[:3]
            return np.round(np.clip(sensor, 0, 1) ** (1 / gamma[0]) * 65535).astype(np.uint16)

        def extract_thumb(self):
            raise ValueError("there is none")

    class Rawpy:
        LibRawError = RuntimeError

        class ColorSpace:
            raw, sRGB = "raw", "sRGB"

        @staticmethod
        def imread(_path):
            return Raw()

    monkeypatch.setitem(sys.modules, "rawpy", Rawpy)
    (tmp_path / "a.NEF").write_bytes(b"")
    photo = read_photo(tmp_path / "a.NEF")
    assert isinstance(photo, RawPhoto)
    np.testing.assert_allclose(photo.reduced()[:, 0, 0], [0.1, 0.2, 0.1], atol=1e-4)
    balanced = photo.balanced(np.array([2.0, 1.0, 2.0]))
    assert balanced.pixels.dtype == np.uint16 and len(np.unique(balanced.pixels)) == 1 and balanced.kind == "TIFF"
