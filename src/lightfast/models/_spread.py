"""How sure a network is of the light: a layer that says what error to expect."""

from __future__ import annotations

import math

from torch import nn

_USUAL_ERROR = 2.5


def log_spread_layer(features: int) -> nn.Linear:
    """From invariant features (N, F) to the log of the error to expect, in degrees, (N, 1); the usual one at first."""
    layer = nn.Linear(features, 1)
    _start(layer)
    return layer


def log_spread_conv(features: int) -> nn.Conv2d:
    """The same at each place of a map, (N, F, H, W) to (N, 1, H, W)."""
    layer = nn.Conv2d(features, 1, 1)
    _start(layer)
    return layer


def _start(layer: nn.Linear | nn.Conv2d) -> None:
    nn.init.normal_(layer.weight, std=0.01)
    assert layer.bias is not None
    nn.init.constant_(layer.bias, math.log(_USUAL_ERROR))
