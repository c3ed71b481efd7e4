import copy
import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lightfast.color import (
    EPSILON,
    SRGB_TO_XYZ,
    ChannelNorm,
    FromLog,
    hsv_to_rgb,
    light_of_temperature,
    linear_to_log,
    linear_to_srgb,
    log_to_linear,
    srgb_to_linear,
    srgb_to_log,
    temperature_of_light,
)

SRGB_KNEE, LINEAR_KNEE = 0.04045, 0.0031308
POINTWISE = [srgb_to_linear, linear_to_srgb, linear_to_log, log_to_linear]


@pytest.fixture(scope="module")
def colour():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of the optional packages that it misses
        import colour
    return colour


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_srgb_agrees_with_colour_science(colour, dtype):
    values = np.linspace(0, 1, 4001)
    there = srgb_to_linear(torch.tensor(values, dtype=dtype))
    back = linear_to_srgb(torch.tensor(values, dtype=dtype))
    np.testing.assert_allclose(there, colour.models.eotf_sRGB(values), atol=1e-6)
    np.testing.assert_allclose(back, colour.models.eotf_inverse_sRGB(values), atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_hsv_agrees_with_colour_science(colour, dtype):
    grid = np.stack(np.meshgrid(*[np.linspace(0, 1, 13)] * 3, indexing="ij"), -1)
    rgb = hsv_to_rgb(torch.tensor(grid, dtype=dtype), dim=-1)
    np.testing.assert_allclose(rgb, colour.HSV_to_RGB(grid), atol=1e-6)


@settings(deadline=None)
@given(st.floats(-100, 100))
def test_srgb_round_trip_of_any_real_value(value):
    x = torch.tensor(value, dtype=torch.float64)
    for there, back in ((srgb_to_linear, linear_to_srgb), (linear_to_srgb, srgb_to_linear)):
        torch.testing.assert_close(back(there(x)), x, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(there(-x), -there(x), rtol=0, atol=0)


@settings(deadline=None)
@given(st.floats(EPSILON, 1e6))
def test_log_round_trip(value):
    x = torch.tensor(value, dtype=torch.float64)
    torch.testing.assert_close(log_to_linear(linear_to_log(x)), x, rtol=1e-12, atol=0)


def test_log_is_clipped_from_below():
    clipped = linear_to_log(torch.tensor([-1.0, 0.0, EPSILON / 2, EPSILON]))
    torch.testing.assert_close(clipped, torch.full((4,), math.log(1 / EPSILON)))
    torch.testing.assert_close(linear_to_log(torch.tensor(0.0), epsilon=0.1), torch.tensor(math.log(10)))


@settings(deadline=None)
@given(st.floats(-3, 3), st.floats(0, 1), st.floats(0, 1))
def test_hsv_keeps_value_and_saturation_and_wraps_hue(hue, saturation, value):
    rgb = hsv_to_rgb(torch.tensor([hue, saturation, value], dtype=torch.float64), dim=0)
    assert rgb.max().item() == pytest.approx(value, abs=1e-12)
    assert rgb.min().item() == pytest.approx(value * (1 - saturation), abs=1e-12)
    turned = hsv_to_rgb(torch.tensor([hue + 1, saturation, value], dtype=torch.float64), dim=0)
    torch.testing.assert_close(rgb, turned, rtol=0, atol=1e-12)


def test_hsv_of_images_and_of_single_colors_agree():
    images = torch.rand(2, 3, 4, 5)
    single = hsv_to_rgb(images.movedim(1, -1).reshape(-1, 3)).view(2, 4, 5, 3).movedim(-1, 1)
    torch.testing.assert_close(hsv_to_rgb(images), single, rtol=0, atol=0)


@pytest.mark.parametrize("function", POINTWISE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradient_is_finite_everywhere(function, dtype):
    kinks = [0.0, -0.0, 1e-30, SRGB_KNEE, LINEAR_KNEE, EPSILON, 1.0, -1.0, 2.0, -SRGB_KNEE]
    x = torch.tensor(kinks, dtype=dtype, requires_grad=True)
    function(x).sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()


def test_gradient_at_zero_is_that_of_the_straight_piece():
    for function, slope in ((srgb_to_linear, 1 / 12.92), (linear_to_srgb, 12.92)):
        x = torch.zeros(1, requires_grad=True)
        function(x).sum().backward()
        assert x.grad is not None and x.grad.item() == pytest.approx(slope)


def test_gradcheck():
    x = torch.tensor([-1.5, -0.3, -0.02, 1e-3, 0.02, 0.3, 0.7, 1.5], dtype=torch.float64, requires_grad=True)
    for function in (srgb_to_linear, linear_to_srgb, log_to_linear):
        assert torch.autograd.gradcheck(function, x)
    assert torch.autograd.gradcheck(linear_to_log, x[3:].detach().requires_grad_())
    hsv = (torch.rand(5, 3, dtype=torch.float64) * 0.1 + 0.2).requires_grad_()
    assert torch.autograd.gradcheck(hsv_to_rgb, hsv)


@pytest.mark.parametrize("function", POINTWISE)
def test_integer_images_are_refused(function):
    with pytest.raises(TypeError, match="images / 255"):
        function(torch.zeros(1, 3, 2, 2, dtype=torch.uint8))


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="dim="):
        hsv_to_rgb(torch.zeros(2, 4))
    with pytest.raises(ValueError, match="dim="):
        hsv_to_rgb(torch.zeros(3))
    with pytest.raises(ValueError, match="epsilon must be above 0"):
        linear_to_log(torch.zeros(1), epsilon=0.0)


@pytest.mark.parametrize("channels", [1, 3, 31])
@pytest.mark.parametrize("shape", [(), (4,), (4, 5), (2, 4, 5)])
def test_norm_and_its_inverse(channels, shape):
    norm = ChannelNorm(torch.randn(channels), torch.rand(channels) + 0.5).double()
    x = torch.randn(6, channels, *shape, dtype=torch.float64)
    torch.testing.assert_close(norm.inverse(norm(x)), x, rtol=1e-12, atol=1e-12)
    one = norm(x)[:, channels - 1]
    torch.testing.assert_close(one, (x[:, channels - 1] - norm.mean[-1]) / norm.std[-1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fit_streams_the_statistics_of_the_whole(dtype):
    data = torch.randn(23, 4, 5, 3, dtype=dtype) * torch.tensor([1, 2, 3, 4]).view(1, 4, 1, 1) + 1000
    whole = ChannelNorm.fit(data)
    reference = data.double()
    torch.testing.assert_close(whole.mean.double(), reference.mean((0, 2, 3)), rtol=1e-6, atol=0)
    torch.testing.assert_close(whole.std.double(), reference.std((0, 2, 3), correction=0), rtol=1e-4, atol=0)
    for parts in (ChannelNorm.fit(iter(data.split(7))), ChannelNorm.fit(data, chunk=1)):
        torch.testing.assert_close(parts.mean, whole.mean, rtol=1e-6, atol=0)
        torch.testing.assert_close(parts.std, whole.std, rtol=1e-4, atol=0)


def test_fit_reads_uint8_through_a_transform():
    images = torch.randint(0, 256, (20, 3, 6, 6), dtype=torch.uint8)
    norm = ChannelNorm.fit(images, srgb_to_log, chunk=8)
    normalised = norm(srgb_to_log(images.double() / 255))
    torch.testing.assert_close(normalised.mean((0, 2, 3)), torch.zeros(3).double(), rtol=0, atol=1e-5)
    torch.testing.assert_close(normalised.std((0, 2, 3), correction=0), torch.ones(3).double(), rtol=0, atol=1e-5)


def test_inverse_gives_the_response_back():
    norm = ChannelNorm([1.0, 2.0, 3.0], [0.5, 1.5, 2.5]).double()
    x, offset = torch.randn(2, 3, 4, 4, dtype=torch.float64), torch.randn(1, 3, 1, 1, dtype=torch.float64)
    scale = norm.std.view(1, 3, 1, 1)
    torch.testing.assert_close(norm(x + offset) - norm(x), (offset / scale).expand_as(x))
    # The mean over pixels is equivariant, and stands for a network that answers with light.
    light = [norm.inverse(norm(y).mean((2, 3))) for y in (x, x + offset)]
    torch.testing.assert_close(light[1] - light[0], offset.flatten(1).expand(2, 3))


def test_norm_saves_copies_compiles_and_exports():
    norm = ChannelNorm([1.0, 2.0, 3.0], [0.5, 1.5, 2.5])
    assert list(norm.state_dict()) == ["mean", "std"]
    x = torch.randn(2, 3, 4, 4)
    other = ChannelNorm([0.0] * 3, [1.0] * 3)
    other.load_state_dict(norm.state_dict())
    compiled = torch.compile(norm, fullgraph=True, backend="aot_eager")
    exported = torch.export.export(norm, (x,)).module()
    for same in (other, copy.deepcopy(norm), compiled, exported):
        torch.testing.assert_close(same(x), norm(x), rtol=0, atol=1e-6)
    assert repr(norm) == "ChannelNorm(mean=[1, 2, 3], std=[0.5, 1.5, 2.5])"


def test_norm_keeps_float32_under_autocast():
    norm = ChannelNorm([100.0], [0.5])
    x = torch.full((1, 1), 100.25)
    with torch.autocast("cpu", torch.bfloat16):
        assert norm(x).item() == 0.5
        assert norm.inverse(torch.tensor([[0.5]], dtype=torch.bfloat16)).item() == 100.25


def test_norm_does_not_share_memory_with_its_arguments():
    mean, std = torch.zeros(3), torch.ones(3)
    norm = ChannelNorm(mean, std)
    mean += 1
    assert norm.mean.eq(0).all()


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: ChannelNorm([0.0], [1.0, 1.0]), "give as many of each"),
        (lambda: ChannelNorm([0.0, 0.0], [1.0, 0.0]), r"in channels \[1\]"),
        (lambda: ChannelNorm([0.0], [float("nan")]), r"in channels \[0\]"),
        (lambda: ChannelNorm([[0.0]], [1.0]), "one number per channel"),
        (lambda: ChannelNorm.fit([]), "no statistics without data"),
        (lambda: ChannelNorm.fit(torch.zeros(0, 3, 2, 2)), "no statistics without data"),
        (lambda: ChannelNorm.fit(torch.ones(4, 3)), "constant channel"),
        (lambda: ChannelNorm.fit(torch.ones(4)), r"expected batches of \(N, C, ...\)"),
        (lambda: ChannelNorm.fit([torch.rand(4, 3), torch.rand(4, 1)]), "a batch has 1 channels"),
        (lambda: ChannelNorm([0.0], [1.0])(torch.zeros(2, 3)), r"expected \(N, 1, ...\)"),
    ],
)
def test_norm_refuses_bad_input(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


def test_fit_refuses_integers_other_than_uint8():
    with pytest.raises(TypeError, match="floating point"):
        ChannelNorm.fit(torch.zeros(2, 3, dtype=torch.int64))


def test_srgb_to_log_is_both_steps_and_takes_bytes():
    images = torch.randint(0, 256, (2, 3, 4, 4), dtype=torch.uint8)
    expected = linear_to_log(srgb_to_linear(images / 255))
    torch.testing.assert_close(srgb_to_log(images), expected, rtol=0, atol=0)
    torch.testing.assert_close(srgb_to_log(images / 255), expected, rtol=0, atol=0)
    assert srgb_to_log(torch.zeros(1), epsilon=0.1).item() == pytest.approx(math.log(10))
    with pytest.raises(TypeError, match="floating point"):
        srgb_to_log(images.long())


def test_temperature_and_tint_are_those_of_colour_science(colour):
    lights = torch.rand(500, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 0.8 + 0.2
    temperature, tint = temperature_of_light(lights)
    xyz = lights.numpy() @ np.array(SRGB_TO_XYZ).T
    theirs = colour.temperature.uv_to_CCT_Robertson1968(colour.UCS_to_uv(colour.XYZ_to_UCS(xyz)))
    near = (temperature > 2000) & (temperature < 25000) & (tint.abs() < 150)
    assert near.sum() > 300
    np.testing.assert_allclose(temperature[near], theirs[near, 0], rtol=1e-4)
    np.testing.assert_allclose(tint[near], 3000 * theirs[near, 1], atol=1e-3)
    # The locus itself, from Planck's law by another method.
    planck = colour.temperature.CCT_to_uv_Ohno2013(np.array([[2856.0, 0.0], [4000.0, 0.0], [10000.0, 0.0]]))
    u, v = planck.T
    lights = torch.from_numpy(np.stack([1.5 * u, v, 2 - 0.5 * u - 5 * v], 1) @ np.linalg.inv(SRGB_TO_XYZ).T)
    temperature, tint = temperature_of_light(lights)
    np.testing.assert_allclose(temperature, [2856, 4000, 10000], rtol=2e-3)
    np.testing.assert_allclose(tint, 0, atol=0.5)


@settings(deadline=None)
@given(temperature=st.floats(2000, 50000), tint=st.floats(-60, 60), seed=st.integers(0, 99))
def test_a_light_of_a_temperature_has_it(temperature, tint, seed):
    """Also in other primaries; brightness does not matter."""
    generator = torch.Generator().manual_seed(seed)
    to_xyz = torch.tensor(SRGB_TO_XYZ, dtype=torch.float64) @ (
        torch.eye(3, dtype=torch.float64) + 0.2 * torch.rand(3, 3, dtype=torch.float64, generator=generator)
    )
    light = light_of_temperature(temperature, tint, to_xyz)
    assume(bool((light > 1e-3).all()))
    found, there = temperature_of_light(3 * light, to_xyz)
    assert float(found) == pytest.approx(temperature, rel=1e-6) and float(there) == pytest.approx(tint, abs=1e-4)


def test_temperatures_have_ends_and_shapes():
    temperature, tint = temperature_of_light(torch.eye(3).expand(2, 3, 3))
    assert temperature.shape == tint.shape == (2, 3)
    assert temperature[0, 0] == pytest.approx(1e6 / 600) and temperature[0, 2] == pytest.approx(1e5)
    assert tint[0, 1] > 150, "green"
    assert light_of_temperature(torch.tensor([3000.0, 9000.0]), 5.0).shape == (2, 3)
    assert float(light_of_temperature(1700)[2]) == 0, "outside the gamut of sRGB"


@given(st.integers(0, 2**31), st.floats(-3, 3), st.floats(-3, 3))
def test_a_network_of_srgb_behind_log_rgb_sees_the_same_picture_in_any_light(seed, red, blue):
    torch.manual_seed(seed)
    norm, z = ChannelNorm([0.4, 0.5, 0.6], [0.2, 0.3, 0.25]), torch.rand(2, 3, 5, 6, dtype=torch.float64) * 4
    to_srgb = FromLog(norm).double()
    light = torch.tensor([red, 0.0, blue], dtype=torch.float64).reshape(3, 1, 1)
    torch.testing.assert_close(to_srgb(z + light), to_srgb(z))


def test_in_usual_light_it_is_the_picture_itself():
    norm, picture = ChannelNorm([0.4, 0.5, 0.6], [0.2, 0.3, 0.25]), torch.rand(1, 3, 6, 6, dtype=torch.float64)
    picture = picture * 0.5 + 0.25
    log = srgb_to_log(picture)
    to_srgb = FromLog(norm, log).double()
    torch.testing.assert_close(to_srgb(log - log.mean((2, 3), keepdim=True)), norm.double()(picture))


def test_without_pictures_the_usual_light_is_that_of_the_norm():
    """Of pictures that are as the norm says, the level is found without looking at them."""
    torch.manual_seed(0)
    pictures = (0.45 + 0.2 * torch.randn(64, 3, 32, 32)).clamp(0, 1)
    norm = ChannelNorm([0.45] * 3, [0.2] * 3)
    torch.testing.assert_close(FromLog(norm).usual, FromLog(norm, srgb_to_log(pictures)).usual, atol=0.1, rtol=0)


def test_pictures_from_log_keep_their_type_and_take_any_size():
    to_srgb = FromLog(ChannelNorm([0.4] * 3, [0.2] * 3))
    assert to_srgb(torch.rand(1, 3, 8, 8, dtype=torch.bfloat16)).dtype == torch.bfloat16
    sizes = {"z": {2: torch.export.Dim.AUTO, 3: torch.export.Dim.AUTO}}
    program = torch.export.export(to_srgb, (torch.rand(2, 3, 8, 10),), dynamic_shapes=sizes)
    z = torch.rand(2, 3, 12, 9)
    torch.testing.assert_close(program.module()(z), to_srgb(z))
    assert FromLog(ChannelNorm(torch.zeros(3, device="meta"), [1.0] * 3).to("meta")).usual.device.type == "meta"


def test_pictures_from_log_are_as_exact_under_autocast():
    norm, z = ChannelNorm([0.4] * 3, [0.2] * 3), torch.rand(1, 3, 8, 8) * 8
    with torch.autocast("cpu", torch.bfloat16):
        low = FromLog(norm)(z)
    torch.testing.assert_close(low, FromLog(norm)(z))


def test_from_log_refuses_what_is_not_srgb():
    with pytest.raises(ValueError, match="three channels"):
        FromLog(ChannelNorm([0.5], [0.2]))
    with pytest.raises(ValueError, match="above 0"):
        FromLog(ChannelNorm([0.5] * 3, [0.2] * 3), power=0.0)
