"""What tests of networks do: make images, and train a little."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def images(size: int = 16, count: int = 2) -> Tensor:
    return torch.randn(count, 3, size, size)


def train(net: nn.Module, x: Tensor, steps: int = 3) -> None:
    net.train()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        y = net(x)
        y = y if isinstance(y, Tensor) else next(iter(y.values())) if hasattr(y, "values") else y[0]
        y.square().mean().backward()
        optimizer.step()
