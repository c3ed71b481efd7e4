"""One adapter around a whole network."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lightfast._certify import certify
from lightfast._equivariance import equivariance_error
from lightfast._groups import Groups
from lightfast._wrap import wrap
from lightfast.fields import Cosines, add_field, field_mean, project_field


def dense() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3, padding=1))


def classifier() -> nn.Module:
    return nn.Sequential(dense(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5))


@pytest.mark.parametrize("pool", ["mean", "max", "min"])
@pytest.mark.parametrize("training", [False, True])
def test_invariant_output(pool: str, training: bool) -> None:
    net = wrap(classifier(), pool=pool).train(training)
    assert equivariance_error(net, torch.randn(3, 3, 8, 8), offsets=100.0, expect="invariant") < 1e-10
    assert certify(net, torch.zeros(2, 3, 8, 8)).invariant


@pytest.mark.parametrize("training", [False, True])
def test_equivariant_output(training: bool) -> None:
    net = wrap(dense(), output="equivariant").train(training)
    assert equivariance_error(net, torch.randn(3, 3, 8, 8), offsets=100.0) < 1e-10
    assert certify(net, torch.zeros(2, 3, 8, 8)).equivariant


def test_equivariant_output_without_positions() -> None:
    net = wrap(nn.Sequential(dense(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3)), output="equivariant")
    assert equivariance_error(net.eval(), torch.randn(3, 3, 8, 8)) < 1e-12


def test_other_assignments() -> None:
    groups, out = Groups([0, 1, 0]), Groups([1, 0, 0, 1, 1, 1])
    net = wrap(dense(), groups, "equivariant", out_groups=out).eval()
    assert equivariance_error(net, torch.randn(2, 3, 8, 8), groups, out_groups=out) < 1e-12
    assert certify(net, torch.zeros(2, 3, 8, 8), groups, out_groups=out).equivariant


FIELDS = [0, 1, 2, Cosines(1)]


def random_field(x: Tensor, field) -> Tensor:
    """Coefficients of a field over maps like `x`, of sizes around 10."""
    return 10 * torch.randn_like(project_field(x, 3, field))


@pytest.mark.parametrize("field", FIELDS)
def test_no_field_changes_scores(field) -> None:
    net, x = wrap(classifier(), field=field).eval().double(), torch.randn(3, 3, 9, 8, dtype=torch.float64)
    torch.testing.assert_close(net(add_field(x, random_field(x, field), 3, field)), net(x), rtol=0, atol=1e-10)


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("stride", [1, 2])
def test_maps_follow_a_field_at_their_own_positions(field, stride: int) -> None:
    net = wrap(nn.Sequential(dense(), nn.AvgPool2d(stride)), output="equivariant", field=field).eval().double()
    x = torch.randn(3, 3, 8, 8, dtype=torch.float64)
    light = random_field(x, field)
    wanted = add_field(net(x), light, 3, field)
    torch.testing.assert_close(net(add_field(x, light, 3, field)), wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("field", FIELDS)
def test_an_output_without_positions_follows_the_mean_of_a_field(field) -> None:
    pooled = nn.Sequential(dense(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))
    net = wrap(pooled, output="equivariant", field=field).eval().double()
    x = torch.randn(3, 3, 8, 8, dtype=torch.float64)
    light = random_field(x, field)
    wanted = net(x) + field_mean(light, field, (8, 8))
    torch.testing.assert_close(net(add_field(x, light, 3, field)), wanted, rtol=0, atol=1e-10)


def test_channels_last() -> None:
    class Last(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.relu()

    net, x = wrap(Last(), output="equivariant", dim=-1, field=1), torch.randn(2, 5, 6, 3, dtype=torch.float64)
    light = 10 * torch.randn(2, 3, 3, dtype=torch.float64)
    wanted = add_field(net(x), light, 3, 1, dim=3)
    torch.testing.assert_close(net(add_field(x, light, 3, 1, dim=3)), wanted, rtol=0, atol=1e-10)


def test_a_plane_is_not_followed_without_a_field() -> None:
    net, x = wrap(classifier()).eval(), torch.randn(1, 3, 8, 8)
    assert (net(x + torch.linspace(-2, 2, 8)) - net(x)).abs().max() > 1e-3
    assert "field" not in repr(net) and "field=1" in repr(wrap(classifier(), field=1))


def test_further_inputs_pass_through() -> None:
    class Masked(nn.Module):
        def forward(self, x: Tensor, mask: Tensor, scale: float = 1.0) -> Tensor:
            return x.relu() * mask * scale

    net = wrap(Masked())
    x, mask = torch.randn(2, 3, 4, 4), torch.ones(2, 1, 4, 4)
    assert torch.equal(net(x, mask, scale=2.0), 2 * net(x, mask))


def test_wrapped_network_is_the_same_and_trains() -> None:
    net = classifier()
    wrapped = wrap(net)
    assert wrapped.model is net
    wrapped(torch.randn(2, 3, 8, 8)).sum().backward()
    assert all(p.grad is not None for p in net.parameters())


def test_wrong_use_is_explained() -> None:
    with pytest.raises(ValueError, match="invariant or equivariant"):
        wrap(dense(), output="other")
    with pytest.raises(ValueError, match="no coefficients"):
        wrap(dense(), pool="linear")
    with pytest.raises(ValueError, match="a projection of group means"):
        wrap(dense(), pool="max", field=1)
    with pytest.raises(ValueError, match="the order of a field"):
        wrap(dense(), field=-1)
    with pytest.raises(ValueError, match="to maps with other axes"):
        wrap(nn.Flatten(2), output="equivariant", field=1)(torch.randn(1, 3, 4, 4))

    class Pair(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x, x

    with pytest.raises(TypeError, match="must be one tensor"):
        wrap(Pair(), output="equivariant")(torch.randn(1, 3, 4, 4))
