"""Modules of one operation, for tests of proofs."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Function(nn.Module):
    """A module that does what a function says, with any parameters that it is given."""

    def __init__(self, function, **tensors: Tensor) -> None:
        super().__init__()
        self.function = function
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    def forward(self, *inputs: Tensor):
        return self.function(self, *inputs)


class Mixing(nn.Module):
    """Ways in which images of a batch meet."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.register_buffer("order", torch.tensor([1, 0]))

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "swap":
            return x[self.order]
        if self.how == "reshape":
            return x.reshape(x.shape[1], x.shape[0], *x.shape[2:]).transpose(0, 1)
        if self.how == "broadcast":
            return x[:1].expand_as(x)
        if self.how == "roll":
            return x.roll(1, 0)
        if self.how == "flip":
            return x.flip(0)
        return x + x.mean(0, keepdim=True) - x.mean((0, 2, 3), keepdim=True)
