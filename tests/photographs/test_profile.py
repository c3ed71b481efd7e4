"""Color profiles: curves and primaries of wide gamuts, and white balance in them."""

import io
import struct
import warnings

import numpy as np
import pytest
from PIL import Image, ImageCms

import lightfast as lf
from lightfast._photographs.files import read_photo
from lightfast._photographs.photo import Photo
from lightfast._photographs.profile import SRGB, SRGB_SPACE, space_of


def _fixed(*numbers):
    return struct.pack(f">{len(numbers)}i", *(round(65536 * number) for number in numbers))


def _profile(name, curve):
    """A profile of a curve and a matrix, as colour-science has the primaries: version 2, or 4 with parameters."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import colour
    space = colour.RGB_COLOURSPACES[name]
    adapt = colour.adaptation.matrix_chromatic_adaptation_VonKries(
        colour.xy_to_XYZ(space.whitepoint), np.array([0.9642, 1.0, 0.8249]), "Bradford"
    )
    colorants = adapt @ np.asarray(space.matrix_RGB_to_XYZ)
    tags = {f"{c}XYZ".encode(): b"XYZ \0\0\0\0" + _fixed(*colorants[:, n]) for n, c in enumerate("rgb")}
    tags |= {f"{c}TRC".encode(): curve for c in "rgb"}
    tags |= {b"wtpt": b"XYZ \0\0\0\0" + _fixed(0.9642, 1.0, 0.8249), b"cprt": b"text\0\0\0\0none\0"}
    tags |= {b"desc": b"desc\0\0\0\0" + struct.pack(">I", 5) + b"test\0" + bytes(78)}
    start, table, data = 132 + 12 * len(tags), b"", b""
    for key, value in tags.items():
        table += struct.pack(">4sII", key, start + len(data), len(value))
        data += value + bytes(-len(value) % 4)
    head = struct.pack(">I4sI4s4s4s", start + len(data), b"lcms", 0x02400000, b"mntr", b"RGB ", b"XYZ ")
    head += bytes(12) + b"acsp" + bytes(28) + _fixed(0.9642, 1.0, 0.8249)
    return head.ljust(128, b"\0") + struct.pack(">I", len(tags)) + table + data


def _gamma(power):
    return b"curv\0\0\0\0" + struct.pack(">IH", 1, round(256 * power))


P3_CURVE = b"para\0\0\0\0" + struct.pack(">HH", 3, 0) + _fixed(2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045)
PROFILES = {
    "Display P3": ("Display P3", P3_CURVE, None),
    "Adobe RGB": ("Adobe RGB (1998)", _gamma(563 / 256), 563 / 256),
    "ProPhoto": ("ProPhoto RGB", _gamma(461 / 256), 461 / 256),
}


@pytest.fixture(params=PROFILES, scope="module")
def wide(request):
    name, curve, power = PROFILES[request.param]
    return _profile(name, curve), power


def test_profiles_mean_what_little_cms_says(wide):
    """Their colors in linear sRGB, where they are inside it."""
    profile, _ = wide
    levels = np.random.default_rng(0).integers(90, 160, (20, 20, 3)).astype(np.uint8)
    there = ImageCms.profileToProfile(
        Image.fromarray(levels),
        ImageCms.ImageCmsProfile(io.BytesIO(profile)),
        ImageCms.createProfile("sRGB"),
        renderingIntent=ImageCms.Intent.RELATIVE_COLORIMETRIC,
    )
    space = space_of(profile)
    ours = SRGB.encode(np.clip(space.curve.decode(levels / 255) @ space.to_srgb.T, 0, 1))
    inside = (ours > 0.02) & (ours < 0.98)
    assert inside.mean() > 0.5
    np.testing.assert_allclose(255 * ours[inside], np.asarray(there)[inside], atol=1.6)


def test_white_balance_is_in_the_photographs_own_primaries(wide, tmp_path):
    profile, power = wide
    rng = np.random.default_rng(0)
    linear = rng.uniform(0.05, 0.6, (30, 40, 1)) * np.array([0.9, 0.6, 0.4])
    encoded = SRGB.encode(linear) if power is None else linear ** (1 / power)
    Image.fromarray((255 * encoded).round().astype(np.uint8)).save(tmp_path / "a.png", icc_profile=profile)
    found = lf.balance(tmp_path / "a.png", "gray-world", prior="none")
    np.testing.assert_allclose(np.array(found.light) / found.light[0], [1, 0.6 / 0.9, 0.4 / 0.9], rtol=0.01)
    assert np.ptp(found.picture.pixels.astype(int), axis=-1).max() <= 2, "gray, up to steps of 8 bits"
    found.picture.save(tmp_path / "b.png")
    assert read_photo(tmp_path / "b.png").kept["icc_profile"] == profile
    nothing = read_photo(tmp_path / "a.png")
    assert (nothing.balanced(np.ones(3)).pixels == nothing.pixels).all()
    # The same light means another temperature in other primaries.
    srgb = lf.balance(nothing.pixels, "gray-world", prior="none")
    assert found.temperature != pytest.approx(srgb.temperature, rel=1e-3)
    white = lf.balance(tmp_path / "a.png", lambda images: images.new_ones(1, 3) / 3**0.5, prior="none")
    assert white.temperature == pytest.approx(6502, abs=5)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_every_value_survives_the_way_there_and_back(wide, dtype):
    top = 1 if dtype == np.float32 else np.iinfo(dtype).max
    values = np.linspace(0, top, min(top, 65535) + 1 if top > 1 else 999).astype(dtype)
    photo = Photo(np.stack([values] * 3, -1)[None], "TIFF", kept={"icc_profile": wide[0]})
    back = photo.stored(photo.light().astype(np.float64))
    if top > 1:
        assert (back == photo.pixels).all()
    else:
        np.testing.assert_allclose(back, photo.pixels, atol=1e-6)


def test_profiles_of_srgb_are_srgb():
    made = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    assert space_of(made).curve is SRGB and (space_of(made).to_srgb == np.eye(3)).all()
    for other in (None, b"", b"nonsense" * 40, made[:300], bytes(500)):
        assert space_of(other) is SRGB_SPACE


def test_what_is_shown_of_a_wide_gamut_is_srgb():
    profile = _profile("Display P3", P3_CURVE)
    photo = Photo(np.full((8, 8, 3), (200, 60, 60), np.uint8), kept={"icc_profile": profile})
    shown = np.asarray(photo.upright())[0, 0]
    assert shown[0] > 205 and shown[1] < 50, "redder in numbers of sRGB"
    linear = Photo(photo.light().astype(np.float32), "TIFF", linear=True, kept={"icc_profile": profile})
    np.testing.assert_allclose(linear.converted("PNG").pixels[0, 0] / 257, (200, 60, 60), atol=0.01)
