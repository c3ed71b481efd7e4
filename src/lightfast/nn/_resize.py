"""Layers that change the number of positions: interpolation and pixel shuffle."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lightfast._groups import Groups, GroupSpec, resolve

__all__ = ["PixelShuffle"]


class PixelShuffle(nn.PixelShuffle):
    """Moves every `r²` features of a group to positions: (N, n r², H, W) to (N, n, r H, r W).

    Where the features that torch's layer joins lie in one group already (equal runs of a multiple of `r²`), this is
    torch's layer; otherwise features are first taken in the order of their groups.

    Args:
        upscale_factor: `r`.
        offset_groups: the assignment of the input; the output's is `out_groups(n r²)`.
    """

    def __init__(self, upscale_factor: int, offset_groups: GroupSpec = 3) -> None:
        super().__init__(upscale_factor)
        self.offset_groups = offset_groups

    def out_groups(self, features: int) -> Groups:
        """The assignment of the output for an input of `features` features."""
        return resolve(self.offset_groups, features).blocks(self.upscale_factor**2)[1]

    def forward(self, input: Tensor) -> Tensor:
        order, _ = resolve(self.offset_groups, input.shape[1]).blocks(self.upscale_factor**2)
        if order is not None:
            input = input.index_select(1, torch.tensor(order, device=input.device))
        return super().forward(input)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, offset_groups={self.offset_groups}"
