"""Test images of a camera together."""

import torch
from torch.nn import functional as F

from lightfast._experiments.illuminant.camera import WIDTHS, errors_of_widths, groups_by_camera, pulled
from lightfast.metrics import recovery_error


def test_groups_hold_each_image_once_and_no_two_cameras():
    cameras, places = torch.arange(40) % 3, torch.arange(1, 40)
    groups = groups_by_camera(cameras, places, 8)
    assert torch.equal(torch.cat(groups).sort().values, places)
    assert max(len(group) for group in groups) == 8
    assert all(len(cameras[group].unique()) == 1 for group in groups)


def test_two_kinds_of_light_are_found_again_from_blurred_estimates_of_each_camera():
    generator = torch.Generator().manual_seed(0)
    kinds = torch.tensor([[0.3, 0.0, -0.3], [-0.3, 0.0, 0.3]])
    cameras = torch.arange(200) % 2
    truth = kinds[torch.randint(2, (200,), generator=generator)] + cameras[:, None] * torch.tensor([0.0, 0.2, 0.0])
    estimates = F.normalize((truth + 0.1 * torch.randn(200, 3, generator=generator)).exp())
    truth, spread, groups = (
        F.normalize(truth.exp()),
        torch.full((200,), 4.5),
        groups_by_camera(cameras, torch.arange(200)),
    )
    before = recovery_error(estimates, truth)
    assert recovery_error(pulled(estimates, spread, groups, 0.02), truth).mean() < 0.3 * before.mean()
    errors = errors_of_widths(estimates, spread, truth, groups)
    assert errors.shape == (len(WIDTHS),) and errors.argmin() == 0, "lights that come back exactly have no width"
    assert errors.max() < before.sum()
