"""All kinds of layers in a row, on an interleaved assignment."""

import pytest
import torch
from torch import nn

import lightfast as lf
from lightfast import Groups, equivariance_error

THREE = Groups.interleaved(12, 3)


class Tokens(nn.Module):
    """Layers over tokens, on the positions of a map."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = lf.nn.LayerNorm(12, offset_groups=THREE)
        self.attention = lf.nn.MultiheadAttention(12, 2, batch_first=True, offset_groups=THREE)
        self.linear = lf.nn.Linear(12, 12, offset_groups=(THREE, THREE))

    def forward(self, x):
        tokens = self.norm(x.flatten(2).transpose(1, 2))
        tokens = self.linear(self.attention(tokens)[0])
        return tokens.transpose(1, 2).unflatten(2, x.shape[2:])


def every_layer(scope) -> nn.Sequential:
    activations = [
        lf.nn.ReLU,
        lf.nn.LeakyReLU,
        lf.nn.PReLU,
        lf.nn.ELU,
        lf.nn.GELU,
        lf.nn.SiLU,
        lf.nn.Tanh,
        lf.nn.Sigmoid,
        lf.nn.Hardswish,
        lf.nn.Dropout,
        lf.nn.Dropout2d,
    ]
    return nn.Sequential(
        lf.nn.Conv2d(3, 12, 3, padding=1, offset_groups=(3, THREE)),
        lf.nn.BatchNorm2d(12, offset_groups=THREE, scope=scope),
        *[activation(offset_groups=THREE, scope=scope) for activation in activations],
        lf.nn.Conv2d(12, 12, 3, 2, 2, 2, padding_mode="mean", offset_groups=(THREE, THREE)),
        lf.nn.GroupNorm(2, 12, offset_groups=THREE, scope=scope),
        lf.nn.Residual(lf.nn.Adapter(nn.Conv2d(12, 12, 1), THREE, "max", "min", scope), offset_groups=THREE),
        Tokens(),
        lf.nn.AffineCombination([lf.nn.InstanceNorm2d(12, offset_groups=THREE), nn.Identity()], [3.0, -2.0]),
        lf.nn.ConvTranspose2d(12, 24, 4, 2, 1, offset_groups=(THREE, Groups.interleaved(24, 3))),
        lf.nn.Maxout(2, Groups.interleaved(24, 3)),
        lf.nn.MaxPool2d(3, 1, 1),
        lf.nn.AvgPool2d(2),
        lf.nn.Upsample(scale_factor=2, mode="bilinear"),
        lf.nn.Conv2d(12, 24, 1, groups=2, offset_groups=3),
        lf.nn.PixelShuffle(2),
        lf.nn.AdaptiveAvgPool2d(2),
        lf.nn.Flatten(),
        lf.nn.BatchNorm1d(24),
        lf.nn.Linear(24, 6),
    )


@pytest.mark.parametrize("scope", ["image", "pixel"])
@pytest.mark.parametrize("training", [True, False])
def test_a_network_of_every_layer_is_equivariant(scope, training):
    network = every_layer(scope).train(training)
    x = torch.randn(4, 3, 8, 8)
    assert equivariance_error(network, x, 3, offsets=100.0) < 1e-9
    assert equivariance_error(network, x, 3, offsets=100.0, dtype=None) < 1e-4
    assert (network(x) - network(x.flip(0)).flip(0)).abs().max() < 50
    assert network.double()(x.double()).std() > 1e-6


@pytest.mark.parametrize("groups", [1, 4, 31, 200])
def test_any_number_of_groups(groups):
    network = nn.Sequential(
        lf.nn.Conv2d(groups, 2 * groups, 3, padding=1, offset_groups=groups),
        lf.nn.BatchNorm2d(2 * groups, offset_groups=groups),
        lf.nn.ReLU(offset_groups=groups),
        lf.nn.Conv2d(2 * groups, groups, 1, offset_groups=groups),
    )
    assert equivariance_error(network, torch.randn(2, groups, 4, 4), groups, offsets=100.0) < 1e-10
