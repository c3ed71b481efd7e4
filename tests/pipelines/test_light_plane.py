"""A plane of light through what an estimator says of parts of a picture."""

import pytest
import torch
from torch.nn import functional as F

import lightfast as lf
from lightfast._pipelines.light_plane import Windows
from lightfast.metrics import recovery_error, reproduction_error


def pixels(lights):
    return lights.permute(0, 2, 3, 1).reshape(-1, 3)


def test_windows_cover_the_picture():
    boxes = Windows(3, 0.4).boxes(20, 50)
    assert len(boxes) == 9
    assert boxes[0] == (0, 8, 0, 20) and boxes[-1] == (12, 20, 30, 50)


def test_a_plane_is_found_again_and_the_unsure_are_doubted():
    windows, size = Windows(4, 0.3, stiffness=0.0), (30, 40)
    y, x = torch.meshgrid((torch.arange(30) * 2 + 1) / 30 - 1, (torch.arange(40) * 2 + 1) / 40 - 1, indexing="ij")
    truth = 0.2 + torch.stack([0.1 * y, 0.3 * x, y - x])
    logs = torch.stack([truth[:, a:b, c:d].mean((1, 2)) for a, b, c, d in windows.boxes(*size)])[:, None]
    weights = torch.ones(16, 1)
    torch.testing.assert_close(windows.plane(logs, weights, size)[0], truth)
    logs[3], weights[3] = 5.0, 1e-6
    torch.testing.assert_close(windows.plane(logs, weights, size)[0], truth, atol=1e-3, rtol=0)
    flat = windows._replace(stiffness=1e6).plane(logs, weights, size)
    assert (flat - flat.mean((2, 3), keepdim=True)).abs().max() < 1e-4


@torch.no_grad()
def test_one_light_is_followed_exactly_and_two_are_told_apart():
    estimator = lf.pretrained("illuminant").eval()
    generator = torch.Generator().manual_seed(0)
    walls = 0.1 + torch.rand(2, 1, 12, 16, generator=generator) + 0.2 * torch.rand(2, 3, 12, 16, generator=generator)
    walls = F.interpolate(walls, (48, 64))
    across = torch.linspace(-0.4, 0.4, 64)
    light = torch.stack([across, torch.zeros(64), -across])[None, :, None].exp().expand(2, 3, 48, 64)
    images = walls * light
    plane = estimator.light_plane(images)
    assert plane.shape == images.shape
    gain = torch.tensor([1.0, 0.3, 0.05])[:, None, None]
    assert reproduction_error(pixels(estimator.light_plane(images * gain)), pixels(plane * gain)).max() < 1e-2
    single = estimator(images)[..., None, None].expand_as(light)
    errors = [recovery_error(pixels(each), pixels(light)).mean() for each in (plane, single)]
    assert errors[0] < 0.6 * errors[1]
    mask = torch.ones(2, 1, 48, 64, dtype=torch.bool)
    mask[..., :32] = False
    assert estimator.light_plane(images, mask).isfinite().all(), "windows of which nothing counts"


@torch.no_grad()
def test_lights_of_the_camera_draw_the_plane_to_them():
    estimator, images = lf.pretrained("illuminant").eval(), torch.rand(1, 3, 48, 64)
    met = F.normalize(torch.tensor([[0.6, 0.7, 0.3], [0.62, 0.7, 0.28], [0.58, 0.7, 0.32]]))
    windows = Windows(2, 0.6)
    before, after = (
        pixels(estimator.light_plane(images, windows=windows, prior=prior))
        for prior in (None, lf.constancy.LightPrior(met))
    )
    there = met[:1].expand_as(before)
    assert recovery_error(after, there).mean() < 0.5 * recovery_error(before, there).mean()


@torch.no_grad()
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [(8, 64), (6, 64), (8, 8), (0, 0)])
def test_a_plane_does_not_run_away_from_the_part_that_is_seen(rows, columns, known):
    estimator, light = lf.pretrained("illuminant").eval(), torch.tensor([[0.6, 0.7, 0.3]])
    generator = torch.Generator().manual_seed(0)
    walls = 0.1 + torch.rand(2, 1, 16, 16, generator=generator) + 0.3 * torch.rand(2, 3, 16, 16, generator=generator)
    images = F.interpolate(walls, (64, 64)) * light[..., None, None]
    mask = torch.ones(2, 1, 64, 64, dtype=torch.bool)
    mask[1, :, rows:] = mask[1, :, :, columns:] = False
    prior = lf.constancy.LightPrior(light + 0.03 * torch.randn(20, 3, generator=generator)) if known else None
    plane = estimator.light_plane(images, mask, prior=prior)
    errors = recovery_error(pixels(plane), light.expand(2 * 64 * 64, 3)).unflatten(0, (2, -1))
    assert errors[0].max() < 10
    # Of a picture of which nothing is seen, nothing can be known but that it has one light.
    assert errors[1].max() < 15 if rows else errors[1].max() - errors[1].min() < 0.1
