"""A small library to sweep: a network that converts, and one for each way in which others do not."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class _Draws(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand_like(x)


def _classifier() -> tuple[nn.Module, Tensor]:
    layers = nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5)
    return nn.Sequential(*layers), torch.zeros(1, 3, 8, 8)


def _random() -> tuple[nn.Module, Tensor]:
    return _Draws(), torch.zeros(1, 3, 8, 8)


def _endless() -> tuple[nn.Module, Tensor]:
    while True:
        pass


def _large() -> tuple[nn.Module, Tensor]:
    return nn.Linear(2**17, 2**17), torch.zeros(1, 3, 2**17)


def _missing() -> tuple[nn.Module, Tensor]:
    raise ImportError("a library that is not there")


NETWORKS = {"good": _classifier, "draws": _random, "endless": _endless, "large": _large, "missing": _missing}
