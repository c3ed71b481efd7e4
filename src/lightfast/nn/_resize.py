"""Layers that change the number of positions: average pooling and pixel shuffle.

Other pooling over positions is equivariant by itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lightfast._groups import Groups, GroupSpec, resolve


class _AvgPool(nn.Module):
    """Refuses the two ways in which an average of torch's is not one."""

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        name = type(self).__name__
        padded = any(padding) if isinstance(padding, tuple | list) else bool(padding)
        if padded and count_include_pad:
            raise ValueError(
                f"{name} would count padded zeros in its averages, and those do not follow an offset: use "
                "count_include_pad=False"
            )
        if divisor_override is not None:
            raise ValueError(f"{name} with divisor_override is no average, so it would scale offsets: leave it out")
        super().__init__(kernel_size, stride, padding, ceil_mode, count_include_pad)


class AvgPool1d(_AvgPool, nn.AvgPool1d):
    """Average pooling, with torch's arguments; refuses zero-counted padding. Shapes: (N, m, L).

    >>> AvgPool1d(2)(torch.tensor([[[1.0, 3.0, 5.0, 9.0]]]))
    tensor([[[2., 7.]]])
    """


class AvgPool2d(_AvgPool, nn.AvgPool2d):
    """Average pooling, with torch's arguments; refuses zero-counted padding and divisors. Shapes: (N, m, H, W).

    >>> AvgPool2d(2)(torch.tensor([[[[1.0, 3.0], [5.0, 9.0]]]]))
    tensor([[[[4.5000]]]])
    """


class AvgPool3d(_AvgPool, nn.AvgPool3d):
    """Average pooling, with torch's arguments; refuses zero-counted padding and divisors. Shapes: (N, m, D, H, W).

    >>> AvgPool3d(2)(torch.rand(1, 3, 4, 4, 4)).shape
    torch.Size([1, 3, 2, 2, 2])
    """


class PixelShuffle(nn.PixelShuffle):
    """Moves every `r²` features of a group to positions: (N, n r², H, W) to (N, n, r H, r W).

    Where the features that torch's layer joins lie in one group already (equal runs of a multiple of `r²`), this is
    torch's layer; otherwise features are first taken in the order of their groups.

    Args:
        upscale_factor: `r`.
        offset_groups: the assignment of the input; the output's is `out_groups(n r²)`.

    >>> layer = PixelShuffle(2)
    >>> layer(torch.rand(1, 12, 4, 4)).shape, layer.out_groups(12)
    (torch.Size([1, 3, 8, 8]), Groups([0, 1, 2]))
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
