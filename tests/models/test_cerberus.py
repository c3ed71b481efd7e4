"""Color Cerberus: the paper's counts, shapes, and exact equivariance."""

import pytest
import torch

from lightfast import models
from lightfast.functional import add_offset
from lightfast.models.cerberus import Cerberus, LocalCerberus


def _count(network):
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize(
    ("offset_groups", "estimates", "parameters"), [(None, 3, 206_345), (None, 1, 203_939), (3, 1, 196_668)]
)
def test_parameters_are_the_papers(offset_groups, estimates, parameters):
    assert _count(models.create("cerberus", offset_groups=offset_groups, estimates=estimates)) == parameters


@pytest.mark.parametrize(
    "network",
    [
        Cerberus(3),
        Cerberus(3, estimates=2, size=32),
        Cerberus(3, dropout=0.3).eval(),
        LocalCerberus(3),
        LocalCerberus(3, norm=True).eval(),
        Cerberus(3, constrained=False),
        LocalCerberus(3, norm=True, constrained=False).eval(),
    ],
    ids=["cerberus", "two estimates", "dropout", "local", "local, normalised", "free", "local, normalised, free"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_estimates_follow_offsets(network, dtype):
    network = network.to(dtype)
    size = getattr(network, "size", 48)
    x, offset = torch.randn(3, 3, size, size, dtype=dtype), 5 * torch.randn(3, 3, dtype=dtype)
    moved = network(add_offset(x, offset, 3))
    expected = network(x) + (offset if moved.ndim == 2 else offset[:, None])
    torch.testing.assert_close(moved, expected, atol=2e-5 if dtype == torch.float32 else 1e-11, rtol=0)


def test_estimates_follow_offsets_after_training_steps():
    network = Cerberus(3, size=16)
    optimizer = torch.optim.Adam(network.parameters(), 0.01)
    for _ in range(5):
        network(torch.randn(4, 3, 16, 16)).square().sum().backward()
        optimizer.step()
    x, offset = torch.randn(2, 3, 16, 16), torch.tensor([1.0, -2.0, 3.0])
    torch.testing.assert_close(network(add_offset(x, offset, 3)), network(x) + offset, atol=1e-4, rtol=0)


@pytest.mark.parametrize("offset_groups", [None, 3])
def test_shapes(offset_groups):
    assert models.create("cerberus", offset_groups=offset_groups)(torch.rand(2, 3, 64, 64)).shape == (2, 3)
    assert Cerberus(offset_groups, estimates=3)(torch.rand(2, 3, 64, 64)).shape == (2, 3, 3)
    assert models.create("cerberus-local", offset_groups=offset_groups)(torch.rand(2, 3, 40, 70)).shape == (2, 3)


def test_a_conventional_network_on_linear_colours_gives_no_negative_light():
    assert (Cerberus(None)(10 * torch.randn(8, 3, 64, 64)) >= 0).all()
    assert (Cerberus(None, rectify=False)(10 * torch.randn(64, 3, 64, 64)) < 0).any()


@pytest.mark.parametrize("network", [Cerberus(3), LocalCerberus(3), LocalCerberus(3, norm=True), LocalCerberus(None)])
def test_every_parameter_learns(network):
    network(torch.randn(4, 3, 64, 64)).square().sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Cerberus(3, size=50), "multiple of 16"),
        (lambda: Cerberus(2), "3 groups"),
        (lambda: LocalCerberus(2), "3 groups"),
        (lambda: Cerberus(3)(torch.rand(1, 3, 32, 32)), "64 x 64"),
        (lambda: LocalCerberus(3)(torch.rand(1, 4, 32, 32)), r"\(N, 3, H, W\)"),
        (lambda: models.create("cerberus", classes=10), "no classes"),
        (lambda: models.create("resnet20", estimates=3), "estimates"),
    ],
)
def test_what_cannot_be_meant_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
