"""Conversions on lifted maps, and fitted to the features of the model."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import lightfast as lf
from lightfast._convert.blocks import Center, Pool, Shift
from lightfast._convert.describe import describe, restore
from tests.zoo.convolutional import BasicBlock


class Restorer(nn.Module):
    """Convolutions, a residual sum, a concatenation, and an output that follows the light."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.second, self.last = nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(12, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = torch.relu(self.norm(self.first(x)))
        b = torch.tanh(self.second(a) + a)
        return self.last(torch.cat([a, b], 1))


def proof(net: nn.Module) -> lf.Certificate:
    report = net.conversion
    assert isinstance(report, lf.Conversion) and report.certificate is not None
    return report.certificate


def small() -> nn.Module:
    torch.manual_seed(0)
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 5))
    return nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), BasicBlock(12, 12), *head)


@pytest.mark.parametrize("build", [small, Restorer])
def test_a_lifted_network_follows_every_offset(build) -> None:
    x = torch.randn(3, 3, 8, 8, dtype=torch.float64)
    net = lf.convert(build().double(), x[:1], lifted=True)
    plain = lf.convert(build().double(), x[:1])
    assert {name for name, _ in net.named_parameters()} == {name for name, _ in plain.named_parameters()}
    assert proof(net).proved
    shift = 5 * torch.randn(3, 3, 1, 1, dtype=torch.float64)
    for mode in (True, False):
        moved = net.train(mode)(x + shift) - net(x)
        expected = torch.zeros_like(moved) if build is small else shift.expand_as(moved)
        torch.testing.assert_close(moved, expected, atol=1e-9, rtol=0)
    assert lf.certify(net.eval(), x[:2]).proved


def test_offsets_that_nobody_asks_for_are_not_computed() -> None:
    net = lf.convert(small(), torch.zeros(1, 3, 8, 8), lifted=True)
    kinds = [type(module) for module in net.modules()]
    assert Center not in kinds and kinds.count(Pool) == 1, "group means are taken out of the input alone"
    assert all(module.sign < 0 for module in net.modules() if isinstance(module, Shift))


def test_a_lifted_network_is_written_down() -> None:
    net = lf.convert(small(), torch.zeros(1, 3, 8, 8), lifted=True).eval()
    back = restore(describe(net))
    back.load_state_dict(net.state_dict())
    x = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(back.eval()(x), net(x), rtol=0, atol=0)


@pytest.mark.parametrize("lifted", [False, True])
def test_fitting_brings_a_conversion_nearer_to_the_model(lifted: bool) -> None:
    model = small()
    x = torch.randn(64, 3, 8, 8) - torch.randn(64, 3, 1, 1)
    x = x - x.mean((2, 3), keepdim=True)
    model.train()(x)
    model.eval()
    before = copy.deepcopy(model.state_dict())
    wanted = model(x)
    wanted = wanted - wanted.mean(1, keepdim=True)

    def distance(net: nn.Module) -> float:
        return (net.eval()(x) - wanted).square().mean().item()

    projected = lf.convert(model, x[:1], lifted=lifted)
    fitted = lf.convert(model, x[:1], lifted=lifted, images=x)
    assert distance(fitted) < distance(projected) / 2
    assert proof(fitted).invariant
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
