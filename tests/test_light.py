import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightfast.color import linear_to_log
from lightfast.fields import remove_field
from lightfast.light import (
    LIGHT_KINDS,
    blobs_light,
    gradient_light,
    halves_light,
    log_gradient_light,
    random_illuminants,
    relight,
    shadow_light,
    varying_light,
    von_kries,
)

PATTERNS = [gradient_light, log_gradient_light, halves_light, blobs_light, shadow_light]
FLOATS = [torch.float32, torch.float64]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def numpy_relight(srgb, light):
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4) * light
    return np.where(linear <= 0.0031308, linear * 12.92, 1.055 * np.maximum(linear, 0) ** (1 / 2.4) - 0.055)


def test_von_kries_shapes():
    images = torch.rand(4, 3, 5, 6)
    each = torch.rand(4, 3)
    torch.testing.assert_close(von_kries(images, each), images * each[:, :, None, None])
    torch.testing.assert_close(von_kries(images, each[0]), images * each[0].view(1, 3, 1, 1))
    torch.testing.assert_close(von_kries(images, each[:1]), images * each[0].view(1, 3, 1, 1))
    maps = torch.rand(4, 3, 5, 6)
    torch.testing.assert_close(von_kries(images, maps), images * maps)
    colors = torch.rand(4, 31)
    torch.testing.assert_close(von_kries(colors, colors), colors.square())
    assert von_kries(images, each.double()).dtype == torch.float32


@pytest.mark.parametrize("dtype", FLOATS)
def test_von_kries_is_an_offset_in_log_rgb(dtype):
    images = torch.rand(4, 3, 5, 6, dtype=dtype, generator=seeded()) * 0.9 + 0.1
    gains = random_illuminants(4, 0.9, generator=seeded(), dtype=dtype)
    offset = -gains.log()[:, :, None, None]
    torch.testing.assert_close(linear_to_log(von_kries(images, gains)), linear_to_log(images) + offset)


@settings(deadline=None)
@given(st.floats(0, 1), st.integers(0, 2**32))
def test_illuminants_have_value_1_and_the_saturation(saturation, seed):
    lights = random_illuminants(8, saturation, generator=seeded(seed), dtype=torch.float64)
    assert lights.shape == (8, 3)
    torch.testing.assert_close(lights.amax(1), torch.ones(8, dtype=torch.float64), rtol=0, atol=0)
    smallest = torch.full((8,), 1 - saturation, dtype=torch.float64)
    torch.testing.assert_close(lights.amin(1), smallest, rtol=0, atol=1e-12)


def test_illuminants_of_all_hues():
    lights = random_illuminants(600, 1.0, generator=seeded())
    assert torch.bincount(lights.argmax(1)).min() > 150


def test_one_saturation_for_each_illuminant():
    saturation = torch.tensor([0.0, 0.25, 1.0])
    lights = random_illuminants(3, saturation, generator=seeded())
    torch.testing.assert_close(lights.amin(1), 1 - saturation)
    torch.testing.assert_close(random_illuminants(3, torch.tensor(0.5)).amin(1), torch.full((3,), 0.5))


def test_a_generator_fixes_the_light_in_every_type():
    first = random_illuminants(5, 0.7, generator=seeded(3))
    torch.testing.assert_close(random_illuminants(5, 0.7, generator=seeded(3)), first, rtol=0, atol=0)
    assert not torch.equal(random_illuminants(5, 0.7, generator=seeded(4)), first)
    wide = random_illuminants(5, 0.7, generator=seeded(3), dtype=torch.float64)
    torch.testing.assert_close(wide.float(), first)
    half = random_illuminants(5, 0.7, generator=seeded(3), dtype=torch.bfloat16)
    torch.testing.assert_close(half, first.bfloat16())


def test_a_generator_on_the_cpu_serves_other_devices():
    # The meta device has no values, but refuses what mixes devices.
    assert random_illuminants(2, 0.5, generator=seeded(), device="meta").device.type == "meta"
    images = torch.rand(2, 3, 4, 4, device="meta")
    relit, light = relight(images, 0.5, generator=seeded(), return_illuminants=True)
    assert relit.device.type == light.device.type == "meta"
    for pattern in PATTERNS:
        assert pattern(light, light, (4, 4), generator=seeded()).device.type == "meta"
    assert relight(images, illuminants=torch.ones(3)).device.type == "meta"


@pytest.mark.gpu
def test_the_gpu_sees_the_same_light():
    images = torch.rand(2, 3, 8, 8)
    here = relight(images, 0.9, generator=seeded())
    torch.testing.assert_close(relight(images.cuda(), 0.9, generator=seeded()).cpu(), here)
    lights = random_illuminants(4, 0.9, generator=seeded())
    for pattern in PATTERNS:
        here = pattern(lights[:2], lights[2:], (8, 9), generator=seeded())
        there = pattern(lights[:2].cuda(), lights[2:].cuda(), (8, 9), generator=seeded())
        torch.testing.assert_close(there.cpu(), here)
    own = torch.Generator("cuda").manual_seed(0)
    assert random_illuminants(2, 0.5, generator=own).device.type == "cuda"


@pytest.mark.parametrize("dtype", FLOATS)
def test_relight_in_the_order_of_the_paper(dtype):
    images = torch.rand(3, 3, 6, 7, dtype=dtype, generator=seeded())
    relit, light = relight(images, 0.9, generator=seeded(1), return_illuminants=True)
    assert light.shape == (3, 3) and light.dtype == relit.dtype == dtype
    expected = numpy_relight(images.double().numpy(), light.double().numpy()[:, :, None, None])
    np.testing.assert_allclose(relit, expected, atol=1e-6)
    torch.testing.assert_close(relight(images, illuminants=light), relit, rtol=0, atol=0)
    linear = relight(images, illuminants=light, space="linear")
    torch.testing.assert_close(linear, von_kries(images, light), rtol=0, atol=0)


def test_relight_does_not_round_to_8_bits():
    images = torch.full((1, 3, 1, 1), 100 / 255)
    levels = relight(images, illuminants=torch.tensor([0.9, 0.8, 0.7])) * 255
    assert ((levels - levels.round()).abs() > 0.01).all()


def test_relight_follows_each_images_saturation():
    images = torch.rand(3, 3, 4, 4) + 0.1
    relit = relight(images, torch.tensor([0.0, 0.5, 1.0]), space="linear")
    darkest = (relit / images).amin((1, 2, 3))
    torch.testing.assert_close(darkest, torch.tensor([1.0, 0.5, 0.0]))


def test_saturation_0_is_the_identity():
    images = torch.rand(4, 3, 5, 5)
    torch.testing.assert_close(relight(images, 0.0), images, rtol=0, atol=1e-6)
    torch.testing.assert_close(relight(images, 0.0, space="linear"), images, rtol=0, atol=0)


def test_relight_lets_gradients_through_black_pixels():
    images = torch.zeros(1, 3, 2, 2, requires_grad=True)
    relight(images, 1.0).sum().backward()
    assert images.grad is not None and images.grad.isfinite().all()


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, *FLOATS])
@pytest.mark.parametrize("size", [(1, 1), (1, 8), (7, 5), (16, 16)])
def test_light_that_varies_stays_between_the_two_lights(pattern, dtype, size):
    lights = random_illuminants(12, 0.9, generator=seeded(), dtype=dtype)
    first, second = lights[:6], lights[6:]
    light = pattern(first, second, size, generator=seeded(1))
    assert light.shape == (6, 3, *size) and light.dtype == dtype
    low, high = torch.minimum(first, second), torch.maximum(first, second)
    assert (light >= low[:, :, None, None]).all() and (light <= high[:, :, None, None]).all()
    assert (light > 0).all() and (light <= 1).all()
    torch.testing.assert_close(pattern(first, second, size, generator=seeded(1)), light, rtol=0, atol=0)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_light_that_varies(pattern):
    first, second = random_illuminants(12, 0.9, generator=seeded()).chunk(2)
    light = pattern(first, second, (9, 12), generator=seeded(1))
    assert (light.amax((2, 3)) > light.amin((2, 3))).any(1).all()
    same = pattern(first, first, (9, 12))
    torch.testing.assert_close(same, first[:, :, None, None].expand(6, 3, 9, 12), rtol=0, atol=0)
    images = torch.rand(6, 3, 9, 12)
    relit, used = relight(images, illuminants=light, return_illuminants=True)
    assert used is light
    np.testing.assert_allclose(relit, numpy_relight(images.numpy(), light.numpy()), atol=1e-6)


def test_gradient_goes_evenly_from_corner_to_corner():
    zero, one = torch.zeros(5, 1), torch.ones(5, 1)
    ramp = gradient_light(zero, one, (6, 9), generator=seeded())[:, 0].double()
    torch.testing.assert_close(ramp.amin((1, 2)), torch.zeros(5).double(), rtol=0, atol=1e-6)
    torch.testing.assert_close(ramp.amax((1, 2)), torch.ones(5).double(), rtol=0, atol=1e-6)
    for dim in (1, 2):
        assert ramp.diff(2, dim).abs().max() < 1e-5
    down = gradient_light(zero, one, (3, 2), angle=math.pi / 2)[0, 0]
    torch.testing.assert_close(down, torch.tensor([[0.0, 0.0], [0.5, 0.5], [1.0, 1.0]]))


def test_directions_are_random_or_given():
    zero, one = torch.zeros(2, 1), torch.ones(2, 1)
    free = gradient_light(zero, one, (6, 6), generator=seeded())
    assert not torch.allclose(free[0], free[1])
    given_each = gradient_light(zero, one, (6, 6), angle=torch.tensor([0.0, math.pi]))
    torch.testing.assert_close(given_each[0], given_each[1].flip(-1))


def test_halves_are_sharp_and_equal():
    zero, one = torch.zeros(20, 1), torch.ones(20, 1)
    halves = halves_light(zero, one, (8, 10), generator=seeded())
    assert set(halves.unique().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(halves.mean((1, 2, 3)), torch.full((20,), 0.5))


def test_more_blobs_cover_more():
    zero, one = torch.zeros(50, 1), torch.ones(50, 1)
    few, many = (blobs_light(zero, one, (12, 12), count=k, generator=seeded()).mean() for k in (1, 6))
    assert 0 < few < many < 1


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", [(1, 1), (5, 9), (32, 32)])
def test_a_gradient_in_log_is_a_plane(dtype, size):
    """Whatever the direction: what is left without the plane is rounding."""
    light = varying_light("log-gradient", 20, 0.95, generator=seeded(), dtype=dtype).maps(size)
    left, _ = remove_field(light.log(), 3, 1)
    assert left.abs().max() < (1e-6 if dtype == torch.float32 else 1e-13)
    linear = varying_light("gradient", 20, 0.95, generator=seeded(), dtype=dtype).maps(size)
    assert size == (1, 1) or remove_field(linear.log(), 3, 1)[0].abs().max() > 0.1


def test_a_channel_that_is_missing_at_one_end():
    light = log_gradient_light(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]]), (3, 3), angle=0.0)
    assert light.isfinite().all() and light.amax() == 1 and light.amin() == 0


@pytest.mark.parametrize("kind", LIGHT_KINDS)
class TestLightOfEveryKind:
    def test_it_depends_on_the_seed_alone(self, kind):
        first, same, other = (varying_light(kind, 6, 0.9, generator=seeded(seed)).maps((9, 12)) for seed in (0, 0, 1))
        assert first.shape == (6, 3, 9, 12) and torch.equal(first, same) and not torch.equal(first, other)
        assert (first > 0).all() and (first <= 1).all()
        assert (first.amax((2, 3)) > first.amin((2, 3)) + 0.02).any(1).all()
        assert not torch.equal(first[0], first[1])

    def test_saturation_0_is_white_everywhere(self, kind):
        light = varying_light(kind, 5, 0.0, generator=seeded()).maps((7, 5))
        assert torch.equal(light, torch.ones(5, 3, 7, 5))

    def test_each_image_has_its_saturation(self, kind):
        saturation = torch.tensor([0.0, 0.5, 0.95])
        light = varying_light(kind, 3, saturation, generator=seeded()).maps((16, 16))
        assert torch.equal(light[0], torch.ones(3, 16, 16))
        darkest = (1 - saturation) * (1 - saturation / 2 if kind == "shadow" else 1)
        assert (light.amin((1, 2, 3)) >= darkest - 1e-6).all()

    def test_a_part_of_the_images_has_the_same_light(self, kind):
        light = varying_light(kind, 6, 0.9, generator=seeded())
        chosen = torch.tensor([4, 1])
        assert torch.equal(light[chosen].maps((8, 8)), light.maps((8, 8))[chosen])
        assert torch.equal(light[2:4].maps((8, 8)), light.maps((8, 8))[2:4]) and len(light[2:]) == 4

    def test_a_generator_on_the_cpu_serves_other_devices(self, kind):
        assert varying_light(kind, 2, 0.5, generator=seeded(), device="meta").maps((4, 4)).device.type == "meta"
        assert varying_light(kind, 2, 0.5, generator=seeded()).to("meta").maps((4, 4)).device.type == "meta"

    def test_a_larger_image_has_the_same_light(self, kind):
        small, large = (varying_light(kind, 8, 0.9, generator=seeded()).maps((n, n)).double() for n in (64, 192))
        difference = (torch.nn.functional.avg_pool2d(large, 3) - small).abs()
        assert difference.mean() < 0.01


def test_all_kinds_have_the_same_illuminants():
    lights = [varying_light(kind, 3, 0.9, generator=seeded()) for kind in LIGHT_KINDS]
    assert all(torch.equal(light.first, lights[0].first) for light in lights)


IMAGES = torch.rand(2, 3, 4, 4)
LIGHTS = torch.rand(2, 3)


@pytest.mark.parametrize(
    ("make", "error", "sentence"),
    [
        (lambda: random_illuminants(2, 1.1), ValueError, r"saturation must lie in \[0, 1\], but is 1.1"),
        (lambda: random_illuminants(2, float("nan")), ValueError, "saturation must lie in"),
        (lambda: random_illuminants(2, torch.tensor([0.5, -0.1])), ValueError, "goes from -0.1 to 0.5"),
        (lambda: random_illuminants(2, torch.zeros(3)), ValueError, r"shape \(2,\)"),
        (lambda: relight(IMAGES, 2.0), ValueError, "saturation must lie in"),
        (lambda: relight(IMAGES), ValueError, "give either a saturation"),
        (lambda: relight(IMAGES, 0.5, illuminants=LIGHTS), ValueError, "give either a saturation"),
        (lambda: relight((IMAGES * 255).byte(), 0.5), TypeError, "images / 255"),
        (lambda: relight(torch.rand(2, 4, 4, 4), 0.5), ValueError, r"expected \(N, 3, H, W\)"),
        (lambda: relight(torch.rand(3), 0.5), ValueError, "expected a batch"),
        (lambda: relight(IMAGES, 0.5, space="log"), ValueError, 'space must be "srgb" or "linear"'),
        (lambda: relight(IMAGES, illuminants=torch.rand(3, 3)), ValueError, "illuminants of shape"),
        (lambda: von_kries(IMAGES, torch.rand(2, 4)), ValueError, "gains of shape"),
        (lambda: von_kries(IMAGES, torch.rand(2, 1)), ValueError, "gains of shape"),
        (lambda: von_kries(IMAGES, torch.rand(2, 3, 4)), ValueError, "gains of shape"),
        (lambda: von_kries(IMAGES, torch.tensor(0.5)), ValueError, "gains of shape"),
        (lambda: von_kries(IMAGES.int(), LIGHTS), TypeError, "images / 255"),
        (lambda: gradient_light(LIGHTS, LIGHTS[:1], (4, 4)), ValueError, "of the same shape"),
        (lambda: halves_light(LIGHTS[0], LIGHTS[0], (4, 4)), ValueError, "of the same shape"),
        (lambda: halves_light(LIGHTS, LIGHTS, (4,)), ValueError, "size must be the height and the width"),
        (lambda: gradient_light(LIGHTS, LIGHTS, (4, 4), angle=torch.zeros(3)), ValueError, "angle must be"),
        (lambda: blobs_light(LIGHTS, LIGHTS, (0, 4)), ValueError, "size must be the height and the width"),
        (lambda: blobs_light(LIGHTS, LIGHTS, (4, 4), count=0), ValueError, "count must be at least 1"),
        (lambda: varying_light("lamp", 2, 0.5), ValueError, "of kind log-gradient, gradient, spot"),
        (lambda: varying_light("spot", 2, 1.5), ValueError, "saturation must lie in"),
        (lambda: blobs_light(LIGHTS.int(), LIGHTS.int(), (4, 4)), ValueError, "floating point illuminants"),
    ],
)
def test_bad_input_is_refused(make, error, sentence):
    with pytest.raises(error, match=sentence):
        make()
