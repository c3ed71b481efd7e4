"""Fused networks compute the same function with plain layers."""

import pytest
import torch
from cases import LINEAR
from torch import nn

import lightfast as lf
from lightfast import Groups, models
from lightfast.deploy import fuse
from lightfast.nn._constrained import Constrained
from lightfast.nn._lifted import ConvNormAct2d, Lift

GROUPS = Groups.interleaved(6, 3)


def settled(model: nn.Module, x: torch.Tensor) -> nn.Module:
    """With running statistics that are not those of a fresh layer, and scales and shifts too."""
    for _ in range(3):
        model(x)
    for layer in model.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.weight.data.mul_(0.5 + torch.rand_like(layer.weight))
            layer.bias.data.add_(0.1 * torch.randn_like(layer.bias))
    return model.eval()


def assert_same(model: nn.Module, x: torch.Tensor) -> nn.Module:
    fused = fuse(model)
    torch.testing.assert_close(fused(x), model(x), atol=1e-5, rtol=1e-5)
    assert not any(isinstance(module, Constrained | ConvNormAct2d) for module in fused.modules())
    return fused


@pytest.mark.parametrize("case", LINEAR, ids=lambda case: case.name)
def test_every_constrained_layer(case):
    assert_same(case.build(GROUPS).eval(), case.input(GROUPS, torch.float32))


@pytest.mark.parametrize("name", ["resnet20", "resnet18"])
@pytest.mark.parametrize("scope", ["image", "pixel"])
def test_networks(name, scope):
    x = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    network = settled(models.create(name, 3, classes=5, scope=scope).double(), x)
    fused = assert_same(network, x)
    assert lf.equivariance_error(fused, x, expect="invariant", offsets=100.0) < 1e-9


@pytest.mark.parametrize("padding_mode", ["replicate", "mean"])
def test_a_norm_goes_into_the_convolution_before_it(padding_mode):
    x = torch.randn(3, 3, 8, 8)
    network = settled(
        nn.Sequential(lf.nn.Conv2d(3, 6, 3, padding=1, padding_mode=padding_mode), lf.nn.BatchNorm2d(6), lf.nn.ReLU()),
        x,
    )
    fused = assert_same(network, x)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in fused.modules())


def test_a_scale_of_zero_is_left_outside():
    x = torch.randn(3, 3, 8, 8)
    network = nn.Sequential(lf.nn.Conv2d(3, 6, 3), lf.nn.BatchNorm2d(6))
    settled(network, x)
    with torch.no_grad():
        network[1].weight[2] = 0
    assert_same(network, x)


@pytest.mark.parametrize("slope", [0.0, 0.2, 1.0])
def test_a_unit_with_shortcut_and_offset(slope):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.lift, self.first = Lift(3), ConvNormAct2d(3, 6, 3, padding=1)
            self.second = ConvNormAct2d(6, 6, 3, padding=1, slope=slope)

        def forward(self, x):
            y = self.first(self.lift(x))
            return lf.nn.lower(self.second(y, y))

    x = torch.randn(3, 3, 8, 8)
    assert_same(settled(Two(), x), x)


def test_the_given_model_is_left_as_it_is():
    model = nn.Sequential(lf.nn.Conv2d(3, 6, 3), lf.nn.BatchNorm2d(6)).train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    fuse(model)
    assert model.training
    assert isinstance(model[0], lf.nn.Conv2d)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_pretrained_pipelines():
    classifier = lf.pretrained("resnet20-cifar10")
    assert_same(classifier, torch.rand(2, 3, 32, 32))
