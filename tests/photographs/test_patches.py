"""Large holes of patches: texture where there was none, and light that is followed to rounding."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightfast._photographs.fill import fill
from lightfast._photographs.patches import fill_with_texture, membrane, textured
from lightfast._pipelines.inpainter import Inpainter


@pytest.fixture(scope="module")
def inpainter():
    torch.manual_seed(0)
    return Inpainter("context-encoder", constrained=False, options={"base": 3, "bottleneck": 9}).eval()


def picture(seed, size=(70, 90), black=0.0):
    """Linear light, float64: smooth, with texture on it, and some pixels black."""
    random = np.random.default_rng(seed)
    rows, columns = np.mgrid[0 : size[0], 0 : size[1]] / 20
    waves = [np.sin(rows * a + columns * b + c) for a, b, c in random.uniform(-2, 2, (3, 3))]
    light = np.exp(0.4 * np.stack(waves, 2) + 0.2 * random.standard_normal((*size, 3)))
    light[random.random(size) < black] = 0
    return light


def hole_of(size, top, left, height, width):
    hole = np.zeros(size, dtype=bool)
    hole[top : top + height, left : left + width] = True
    return hole


@settings(max_examples=5)
@given(seed=st.integers(0, 1000), black=st.sampled_from([0.0, 0.1]), steep=st.floats(0.0, 2.0))
def test_planes_of_light_are_followed_exactly(seed, black, steep):
    light = picture(seed, black=black)
    hole = hole_of(light.shape[:2], 20, 30, 24, 30)
    random = np.random.default_rng(seed)
    rows, columns = (np.linspace(-1, 1, length) for length in light.shape[:2])
    offset, down, across = random.uniform(-2, 2, 3), *(steep * random.uniform(-1, 1, (2, 3)))
    gains = np.exp(offset + down * rows[:, None, None] + across * columns[:, None])

    def guess(flat):
        return np.full_like(flat, 0.3) * flat.mean()

    filled = fill_with_texture(light, hole, hole, guess)
    again = fill_with_texture(light * gains, hole, hole, guess)
    np.testing.assert_allclose(again / gains, filled, rtol=1e-9, atol=1e-12)
    assert (filled[~hole] == light[~hole]).all() and filled[hole].std() > 0.01


def test_what_is_filled_in_follows_planes_through_the_network_too(inpainter):
    """All of `fill`, in float32 as photographs of floating point are read."""
    light = 0.02 * picture(3, (80, 100))
    columns = np.linspace(-1, 1, 100)[:, None]
    gains = np.exp(np.array([0.2, -0.3, 0.5]) * columns + np.array([0.1, 0.4, -0.5]))
    mask = hole_of((80, 100), 20, 30, 30, 40)
    once, again = (fill(pixels, mask, inpainter, linear=True).picture for pixels in (light, light * gains))
    difference = np.abs(np.log(again[mask] / np.broadcast_to(gains, light.shape)[mask]) - np.log(once[mask]))
    # Which of two patches is the better one may turn on the last bit of float32, for a few of them.
    assert np.median(difference) < 1e-4


def test_holes_get_the_texture_around_them(inpainter):
    light = 0.02 * picture(5, (120, 160))
    mask = hole_of((120, 160), 30, 40, 60, 70)

    def rough(pixels):
        return np.abs(np.diff(np.log(pixels), axis=1))[mask[:, :-1] & mask[:, 1:]].mean()

    smooth = fill(light, mask, inpainter, linear=True, texture=False).picture
    filled = fill(light, mask, inpainter, linear=True).picture
    assert rough(smooth) < 0.35 * rough(light)
    assert 0.6 * rough(light) < rough(filled) < 1.2 * rough(light)
    # The same each time.
    assert (fill(light, mask, inpainter, linear=True).picture == filled).all()


def test_texture_in_the_sun_fills_a_hole_in_the_shade():
    """The shade has no whole patch of its own, so that all texture has to come out of the sun."""
    random = np.random.default_rng(0)
    light = np.exp(0.3 * random.standard_normal((80, 120, 3)))
    light[:, 70:] /= 6
    hole = hole_of((80, 120), 10, 76, 60, 44)
    filled = fill_with_texture(light, hole, hole)
    inner = hole_of((80, 120), 16, 82, 48, 32)
    ratio = np.log(filled[inner]).mean() - np.log(light[inner]).mean()
    assert abs(ratio) < 0.15
    assert np.log(filled[inner]).std() > 0.18


def test_patches_come_from_what_is_seen():
    z = np.random.default_rng(0).standard_normal((60, 60, 3)).astype(np.float32)
    missing = hole_of((60, 60), 10, 10, 20, 20) | hole_of((60, 60), 40, 40, 12, 12)
    hole = hole_of((60, 60), 10, 10, 20, 20)
    junk = np.where((missing & ~hole)[..., None], 1e3, z).astype(np.float32)
    filled, places = textured(membrane(junk * ~missing[..., None], missing), missing, hole)
    assert np.abs(filled[hole]).max() < 10
    rows, columns = places[:, hole]
    assert not missing[rows, columns].any()


@pytest.mark.parametrize("size", [(12, 12), (9, 40), (30, 30)])
@pytest.mark.parametrize("channels", [1, 3])
def test_small_and_gray_pictures(inpainter, size, channels):
    pixels = np.random.default_rng(0).integers(0, 255, (*size, channels)).astype(np.uint8)
    mask = hole_of(size, 0, 0, size[0], 10)
    filled = fill(pixels, mask, inpainter).picture
    assert filled.shape == pixels.shape and (filled[~mask] == pixels[~mask]).all()


def test_progress_goes_from_nothing_to_all(inpainter):
    heard = []
    pixels = np.random.default_rng(0).integers(0, 255, (100, 120, 3)).astype(np.uint8)
    mask = hole_of((100, 120), 10, 10, 30, 30) | hole_of((100, 120), 60, 60, 30, 30)
    fill(pixels, mask, inpainter, progress=heard.append)
    assert heard == sorted(heard) and len(heard) > 4 and heard[-1] == 1


def test_a_membrane_is_the_mean_of_its_neighbors_and_keeps_planes():
    rows, columns = np.mgrid[0:40, 0:50].astype(np.float32)
    plane = (0.1 * rows - 0.05 * columns)[..., None]
    missing = hole_of((40, 50), 12, 14, 15, 20)
    spanned = membrane(np.where(missing[..., None], 0, plane), missing)
    assert np.abs(spanned - plane).max() < 0.02
