"""A small library to sweep: a network that converts, and one for each way in which others do not."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class _Decides(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


def _classifier() -> tuple[nn.Module, Tensor]:
    layers = nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5)
    return nn.Sequential(*layers), torch.zeros(1, 3, 8, 8)


def _decides() -> tuple[nn.Module, Tensor]:
    return _Decides(), torch.zeros(1, 3, 8, 8)


def _endless() -> tuple[nn.Module, Tensor]:
    while True:
        pass


def _large() -> tuple[nn.Module, Tensor]:
    return nn.Linear(2**17, 2**17), torch.zeros(1, 3, 2**17)


def _missing() -> tuple[nn.Module, Tensor]:
    raise ImportError("a library that is not there")


NETWORKS = {"good": _classifier, "decides": _decides, "endless": _endless, "large": _large, "missing": _missing}
