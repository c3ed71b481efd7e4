import pytest
import torch
from torch import nn

import lightfast as lf
from lightfast import Groups, assert_equivariant, attach_projection, project_


def plain_network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1, padding_mode="replicate"),
        lf.nn.BatchNorm2d(6),
        lf.nn.ReLU(),
        nn.Conv2d(6, 6, 3, groups=2, padding=1, padding_mode="circular"),
        nn.ConvTranspose2d(6, 6, 2, 2),
        lf.nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(24, 3),
    )


def train(network: nn.Module, steps: int = 3) -> None:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    attach_projection(optimizer, network)
    for _ in range(steps):
        optimizer.zero_grad()
        network(torch.randn(4, 3, 8, 8)).square().mean().backward()
        optimizer.step()


def test_plain_layers_are_equivariant_after_projection_and_stay_so_in_training():
    network = plain_network()
    x = torch.randn(4, 3, 8, 8)
    with pytest.raises(AssertionError):
        assert_equivariant(network, x)
    assert project_(network) is network
    assert_equivariant(network, x, tolerance=1e-6)
    train(network)
    assert_equivariant(network, x, tolerance=1e-6)


def test_both_ways_of_training_take_the_same_first_step():
    """From a feasible weight, the gradient through the projection is the projected gradient."""
    ours, plain = lf.nn.Linear(6, 3, bias=False).double(), nn.Linear(6, 3, bias=False).double()
    plain.load_state_dict(ours.state_dict())
    project_(plain)
    project_(ours)
    x = torch.randn(5, 6, dtype=torch.float64)
    for layer in (ours, plain):
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        attach_projection(optimizer, layer)
        layer(x).square().mean().backward()
        optimizer.step()
    torch.testing.assert_close(ours.weight, plain.weight)


def test_the_hook_can_be_removed():
    layer = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    handle = attach_projection(optimizer, layer)
    handle.remove()
    layer(torch.randn(5, 6)).square().mean().backward()
    optimizer.step()
    assert lf.equivariance_error(layer, torch.randn(2, 6)) > 1e-6


def test_layers_that_cannot_be_projected_are_named_and_nothing_changes():
    network = nn.Sequential()
    network.add_module("good", nn.Conv2d(3, 6, 3))
    network.add_module("padded", nn.Conv2d(6, 6, 3, padding=1))
    network.add_module("odd", nn.Linear(6, 4))
    network.add_module("grown", nn.ConvTranspose2d(6, 6, 4, 2, 1))
    before = network.good.weight.clone()
    with pytest.raises(ValueError, match="cannot project") as refusal:
        project_(network)
    message = str(refusal.value)
    assert "padded (Conv2d): it pads with zeros" in message
    assert "odd (Linear): 4 features do not divide" in message
    assert "grown (ConvTranspose2d): its outputs at the border miss taps" in message
    assert "good" not in message
    assert torch.equal(before, network.good.weight)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_named(value):
    network = nn.Sequential(nn.Linear(6, 6), lf.nn.Linear(6, 6))
    with torch.no_grad():
        network[1].weight[0, 0] = value
    with pytest.raises(ValueError, match=r"1 \(Linear\): its weight holds NaN or Inf, so training has diverged"):
        project_(network)


def test_layers_may_have_their_own_assignments():
    network = nn.Sequential(nn.Conv2d(6, 6, 1), nn.Conv2d(6, 3, 1))
    mixed = Groups.interleaved(6, 3)
    project_(network, assignments={"0": (mixed, mixed), "1": (mixed, Groups.even(3, 3))})
    assert_equivariant(network, torch.randn(2, 6, 4, 4), mixed, out_groups=3, tolerance=1e-6)
    with pytest.raises(ValueError, match="layers that the model does not have: 7"):
        project_(network, assignments={"7": (mixed, mixed)})
