"""Classical estimators: what they should find, masks, equivariance, gradients, and the known figures on NUS."""

import math

import pytest
import torch
from torch.nn import functional as F

from lightfast._experiments.data.scene_folder import load_scenes
from lightfast.constancy import CLASSICAL, gray_edge, max_rgb, principal_color, shades_of_gray, white_patch
from lightfast.metrics import recovery_error, summary

EVERY = pytest.mark.parametrize("name", list(CLASSICAL))
LIGHT = torch.tensor([[0.9, 0.4, 0.2]])


def _gray_scene(n=2):
    """Gray things of all kinds under a light: every estimator should find it."""
    return torch.rand(n, 1, 24, 32).expand(-1, 3, -1, -1) * LIGHT[..., None, None]


@EVERY
def test_the_light_of_a_gray_world_is_found(name):
    torch.testing.assert_close(CLASSICAL[name](_gray_scene()), F.normalize(LIGHT).expand(2, 3), atol=1e-4, rtol=0)


@EVERY
def test_brightness_does_not_matter(name):
    images = torch.rand(2, 3, 20, 20)
    expected = CLASSICAL[name](images)
    torch.testing.assert_close(CLASSICAL[name](images * 1e-3), expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(expected.norm(dim=1), torch.ones(2))


@pytest.mark.parametrize("name", [name for name in CLASSICAL if name != "pca"])
def test_estimates_follow_the_light(name):
    images = torch.rand(2, 3, 20, 20)
    expected = F.normalize(CLASSICAL[name](images) * LIGHT)
    torch.testing.assert_close(CLASSICAL[name](images * LIGHT[..., None, None]), expected, atol=1e-4, rtol=0)


@EVERY
def test_masked_pixels_do_not_count(name):
    images, mask = torch.rand(2, 3, 32, 32), torch.ones(2, 1, 32, 32, dtype=torch.bool)
    mask[:, :, 3:9, 4:20] = False
    spoilt = torch.where(mask, images, 100 * torch.rand_like(images))
    torch.testing.assert_close(CLASSICAL[name](images, mask), CLASSICAL[name](spoilt, mask), atol=1e-5, rtol=0)
    assert not torch.allclose(CLASSICAL[name](images, mask), CLASSICAL[name](spoilt), atol=1e-3)


@EVERY
def test_gradients_are_finite(name):
    images = torch.rand(2, 3, 12, 12)
    images[0, :, :4] = 0
    images[1] = 0.5
    images.requires_grad_()
    (CLASSICAL[name](images) * torch.tensor([1.0, 2.0, -1.0])).sum().backward()
    assert images.grad is not None and images.grad.isfinite().all()


@EVERY
def test_black_images_have_a_finite_answer(name):
    assert CLASSICAL[name](torch.zeros(1, 3, 8, 8)).isfinite().all()
    assert CLASSICAL[name](torch.rand(1, 3, 8, 8), torch.zeros(1, 1, 8, 8, dtype=torch.bool)).isfinite().all()


def test_percentiles_are_those_of_numpy():
    images, mask = torch.rand(1, 3, 9, 9, dtype=torch.float64), torch.rand(1, 1, 9, 9) < 0.7
    for percentile in (50.0, 97.0, 100.0):
        whole = F.normalize(images.flatten(2).quantile(percentile / 100, 2))
        torch.testing.assert_close(max_rgb(images, percentile=percentile), whole)
        part = F.normalize(images[:, :, mask[0, 0]].quantile(percentile / 100, 2))
        torch.testing.assert_close(max_rgb(images, mask, percentile=percentile), part)
    torch.testing.assert_close(white_patch(images), F.normalize(images.amax((2, 3))))


def test_second_derivatives_do_not_see_slopes():
    y = torch.arange(24.0)
    ramp = (y[:, None] + y)[None, None] * torch.tensor([1.0, 0.0, 0.0]).reshape(1, 3, 1, 1)
    curve = (y[:, None] ** 2 + y)[None, None] * torch.tensor([0.0, 1.0, 0.0]).reshape(1, 3, 1, 1)
    inside = torch.zeros(1, 1, 24, 24, dtype=torch.bool)
    inside[..., 8:16, 8:16] = True
    found = gray_edge(ramp + curve + 1, inside, order=2)
    assert found[0, 1] > 0.99


def test_pca_is_the_first_eigenvector():
    images = torch.rand(1, 3, 10, 10, dtype=torch.float64)
    pixels = images.flatten(2)[0]
    along = F.normalize(pixels.mean(1), dim=0) @ pixels
    order = along.argsort()
    chosen = pixels[:, torch.cat([order[:4], order[-4:]])]
    vector = torch.linalg.eigh(chosen @ chosen.T).eigenvectors[:, -1]
    torch.testing.assert_close(principal_color(images)[0], vector * vector.sum().sign(), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: gray_edge(x, order=3), "order 1 or 2"),
        (lambda x: gray_edge(x, sigma=0), "sigma"),
        (lambda x: max_rgb(x, percentile=101), "percentile"),
        (lambda x: principal_color(x, share=0), "share"),
        (lambda x: shades_of_gray(x, p=0.5), "at least 1"),
        (lambda x: white_patch(x[0]), r"\(N, 3, H, W\)"),
    ],
)
def test_what_cannot_be_meant_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(torch.rand(1, 3, 8, 8))


@pytest.mark.data
def test_figures_on_nus(data_folder):
    """Mean and median recovery error, geometric mean over the cameras, against the known ones on full-size images.

    Smaller images have weaker edges, and their brightest pixels are means of many: white patch, which full-size images
    mislead by single saturated pixels (10.62), is far better on them.
    """
    if not (data_folder / "nus8").is_dir():
        pytest.skip("there is no nus8 in the folder of real data sets")
    scenes = load_scenes(data_folder / "nus8")
    mask = (scenes.images > 0).any(1, keepdim=True)
    known = {"gray-world": (4.14, 3.20), "shades-of-gray": (3.40, 2.57), "gray-edge-1": (3.20, 2.22)}
    for name, (mean, median) in known.items():
        errors = recovery_error(CLASSICAL[name](scenes.images, mask), scenes.illuminants)
        found = [summary(errors[scenes.cameras == camera]) for camera in range(8)]
        means = math.exp(sum(math.log(each.mean) for each in found) / 8)
        medians = math.exp(sum(math.log(each.median) for each in found) / 8)
        assert means == pytest.approx(mean, rel=0.07) and medians == pytest.approx(median, rel=0.07), name
    white = recovery_error(white_patch(scenes.images, mask), scenes.illuminants)
    assert 2 < white.median() < 4
