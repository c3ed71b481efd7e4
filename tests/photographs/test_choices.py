"""Light that is chosen instead of estimated: by hand, by a spot, by another photograph; and light that differs."""

import numpy as np
import pytest
import torch
from PIL import Image

import lightfast as lf
from lightfast._photographs.files import read_photo
from lightfast._photographs.mixed import light_differences
from lightfast._photographs.photo import PhotoError
from lightfast.color import light_of_temperature, linear_to_srgb

LIGHT = np.array([0.9, 0.6, 0.3])


def _scene(size=(30, 40), seed=0):
    """Linear light (H, W, 3) of colored things, none of them bright."""
    rng = np.random.default_rng(seed)
    return rng.uniform(0.02, 0.6, (size[0] // 5, size[1] // 5, 3)).repeat(5, 0).repeat(5, 1)


def _srgb(linear):
    return linear_to_srgb(torch.from_numpy(linear)).numpy()


def _angle(first, second):
    first, second = np.asarray(first, float), np.asarray(second, float)
    cosine = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
    return np.degrees(np.arccos(min(1.0, cosine)))


@pytest.mark.parametrize(("temperature", "tint"), [(3200, 0.0), (5000, 12.0), (9000, -20.0)])
def test_by_hand_takes_that_light_away(temperature, tint):
    light = light_of_temperature(temperature, tint).numpy()
    found = lf.balance(_scene() * light, temperature=temperature, tint=tint, linear=True)
    assert _angle(found.light, light) < 1e-4
    ratio = found.picture / _scene()
    np.testing.assert_allclose(ratio, ratio[0, 0, 0])
    assert (found.temperature, found.tint) == pytest.approx((temperature, tint), abs=0.01)
    assert found.spread is None and found.done.startswith("set by hand: changed by")


def test_what_was_found_does_the_same_when_it_is_set_by_hand():
    picture = _srgb(_scene() * LIGHT)
    found = lf.balance(picture, "gray-world", prior="none")
    again = lf.balance(picture, temperature=found.temperature, tint=found.tint)
    np.testing.assert_allclose(again.picture, found.picture, atol=1e-6)


def test_the_white_of_a_picture_is_no_change_and_one_of_the_two_is_enough():
    picture = (255 * _srgb(_scene())).round().astype(np.uint8)
    white = lf.balance(picture, lambda images: torch.ones(1, 3) / 3**0.5, prior="none")
    assert (white.picture == picture).all() and white.done == "left as it was"
    assert white.temperature == pytest.approx(6504, abs=4) and white.tint == pytest.approx(9.8, abs=0.3)
    warm = lf.balance(picture, temperature=3000)
    assert warm.tint == pytest.approx(white.tint, abs=0.01) and warm.gains[2] > 1 > warm.gains[0]
    green = lf.balance(picture, tint=40)
    assert green.temperature == pytest.approx(white.temperature, rel=1e-4) and green.gains[1] < min(green.gains[::2])


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_spot_is_in_pixels_of_the_upright_picture(tmp_path, orientation):
    stored = (255 * _srgb(_scene() * LIGHT)).round().astype(np.uint8)
    stored[3:9, 24:32] = (200, 160, 90)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(stored).save(tmp_path / "a.png", exif=exif)
    upright = np.asarray(read_photo(tmp_path / "a.png").upright())
    rows, columns = np.where((upright == (200, 160, 90)).all(-1))
    found = lf.balance(tmp_path / "a.png", pick=(columns.mean(), rows.mean(), 2))
    gray = np.asarray(found.picture.upright())[int(rows.mean()), int(columns.mean())]
    assert np.ptp(gray.astype(int)) <= 1 and found.done == "the spot made gray"


def test_spots_that_tell_nothing():
    picture = (255 * _srgb(_scene())).round().astype(np.uint8)
    picture[:8, :8], picture[20:, 20:] = 0, 255
    for place in ((2, 2), (35, 27)):
        with pytest.raises(PhotoError, match="is black or clipped"):
            lf.balance(picture, pick=place)
    with pytest.raises(PhotoError, match="outside the picture, which is 40 x 30 pixels"):
        lf.balance(picture, pick=(40, 2))


def test_the_same_things_under_another_light_become_the_reference():
    """Whatever the estimator's error is, it is the same in both."""
    reference, light = _scene(), np.array([0.9, 0.7, 0.4])
    found = lf.balance(reference * light, "gray-world", reference=_srgb(reference), linear=True)
    ratio = found.picture / reference
    np.testing.assert_allclose(ratio, ratio[0, 0, 0], rtol=1e-4)
    assert _angle(found.light, light) < 0.01 and found.done.startswith("as the reference: changed by")


def test_one_light_is_followed_exactly_and_several_are_told_apart():
    scene = _scene((60, 80)).astype(np.float32)
    left, right = np.array([1.0, 0.7, 0.4]), np.array([0.6, 0.8, 1.0])
    share = np.linspace(0, 1, 80)[None, :, None]
    lit = (scene * (left * (1 - share) + right * share)).astype(np.float32)

    def map_of(picture):
        return light_differences(lf.constancy.gray_world, np.moveaxis(picture, -1, 0))

    gain = np.array([0.3, 1.0, 2.0], np.float32)
    np.testing.assert_allclose(map_of(lit * gain), map_of(lit), atol=1e-5)
    differences = map_of(lit)
    assert (differences[0, :, 0] - differences[0, :, -1]).min() > 0.1, "red on the left"
    assert (differences[2, :, 0] - differences[2, :, -1]).max() < -0.1, "blue on the right"
    mixed = lf.balance(lit, "gray-world", mixed=True, linear=True)
    one = lf.balance(lit, "gray-world", linear=True)
    assert "light that differs by up to" in mixed.done

    def error(picture):
        cast = (picture / scene).reshape(60, 8, 10, 3).mean((0, 2))
        return np.mean([_angle(color, np.ones(3)) for color in cast])

    assert error(mixed.picture) < 0.7 * error(one.picture)


def test_mixed_light_in_whole_numbers_keeps_clipped_white():
    picture = (255 * _srgb(_scene((60, 80)))).round().astype(np.uint8)
    picture[20:30, 20:30] = 255
    found = lf.balance(picture, "gray-world", mixed=True, prior="none")
    assert found.picture.dtype == np.uint8 and (found.picture[20:30, 20:30] == 255).all()


def test_choices_that_contradict_each_other():
    picture = np.full((4, 4, 3), 100, np.uint8)
    with pytest.raises(ValueError, match="temperature and tint and pick each say what the light is"):
        lf.balance(picture, temperature=5000, pick=(1, 1))
    with pytest.raises(ValueError, match="reference and mixed each say"):
        lf.balance(picture, reference=picture, mixed=True)
    with pytest.raises(ValueError, match="in kelvin, from 2000"):
        lf.balance(picture, temperature=50)
    with pytest.raises(ValueError, match="tint goes from -150"):
        lf.balance(picture, tint=4000)
    with pytest.raises(ValueError, match="a spot is x and y"):
        lf.balance(picture, pick=(1,))
