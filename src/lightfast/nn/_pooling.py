"""Pooling over positions. All of it is equivariant by itself, except where zeros are counted in."""

from __future__ import annotations

from typing import Any

from torch import nn

__all__ = ["AvgPool1d", "AvgPool2d", "AvgPool3d"]


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
    """Average pooling, with torch's arguments; refuses zero-counted padding. Shapes: (N, m, L)."""


class AvgPool2d(_AvgPool, nn.AvgPool2d):
    """Average pooling, with torch's arguments; refuses zero-counted padding and divisors. Shapes: (N, m, H, W)."""


class AvgPool3d(_AvgPool, nn.AvgPool3d):
    """Average pooling, with torch's arguments; refuses zero-counted padding and divisors. Shapes: (N, m, D, H, W)."""
