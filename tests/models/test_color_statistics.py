"""Statistics of colors: what they are, and exact equivariance."""

import pytest
import torch

import lightfast as lf
from lightfast.functional import add_offset
from lightfast.models._color_statistics import ColorStatistics, color_statistics
from lightfast.models._mean_color import about_mean_color


def _network():
    torch.manual_seed(0)
    network = ColorStatistics()
    for parameter in network.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return network.eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_estimates_follow_offsets(dtype):
    network = _network().to(dtype)
    x, offset = torch.randn(3, 3, 24, 32, dtype=dtype), 5 * torch.randn(3, 3, dtype=dtype)
    moved = network(add_offset(x, offset, 3))
    torch.testing.assert_close(moved, network(x) + offset, atol=5e-5 if dtype == torch.float32 else 1e-11, rtol=0)


def test_it_is_proven_equivariant():
    assert lf.certify(_network(), torch.randn(2, 3, 16, 16)).equivariant


def test_statistics_are_the_classical_estimates_about_the_mean_color():
    linear = torch.rand(2, 3, 16, 16, dtype=torch.float64) + 0.01
    found = color_statistics(about_mean_color(-linear.log()).map)
    relative = linear / linear.mean((2, 3), keepdim=True)
    shades = relative.pow(4).mean((2, 3)).pow(1 / 4).log()
    torch.testing.assert_close(found[:, 2:4], shades[:, ::2] - shades[:, 1:2])
    geometric = relative.log().mean((2, 3))
    torch.testing.assert_close(found[:, 14:16], geometric[:, ::2] - geometric[:, 1:2])
    share = (relative.mean(1) > 2).double().mean((1, 2))
    torch.testing.assert_close(found[:, -1], share)


def test_bright_pixels_do_not_overflow():
    x = torch.zeros(1, 3, 64, 64)
    x[0, :, 0, 0] = -20.0
    assert color_statistics(about_mean_color(x).map).isfinite().all()


def test_every_parameter_learns():
    network = ColorStatistics()
    network(torch.randn(4, 3, 32, 32)).square().sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name


def test_what_cannot_be_meant_is_refused():
    with pytest.raises(ValueError, match="3 groups"):
        ColorStatistics(None)
    with pytest.raises(ValueError, match="2 x 2"):
        ColorStatistics()(torch.rand(1, 3, 1, 8))


def test_statistics_that_no_training_image_had_are_bounded():
    """Far from what it knows, the network answers as at the border of it."""
    network = _network()
    with torch.no_grad():
        x = torch.randn(1, 3, 16, 16)
        far, farther = (network(about_mean_color(scale * x).map) for scale in (40.0, 80.0))
        assert (about_mean_color(80 * x).map - about_mean_color(40 * x).map).abs().max() > 10
        relative = [
            answer - about_mean_color(about_mean_color(scale * x).map).offset
            for answer, scale in ((far, 40.0), (farther, 80.0))
        ]
        torch.testing.assert_close(relative[0], relative[1], atol=0.5, rtol=0)
