"""Convolutions, with padding that keeps offsets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightfast._backends import applied_weight, without_saving
from lightfast._groups import check_features
from lightfast.functional import ConstraintKind, add_offset, group_pool
from lightfast.nn._constrained import Constrained, InOutGroups

PADDING_MODES = ("replicate", "reflect", "circular", "mean")
"""The border repeats, mirrors or wraps the map, or holds the group's mean; it never holds a constant."""


def pad(x: Tensor, amounts: Sequence[int], mode: str) -> Tensor:
    """Pad the last axes by `amounts`, in the order of `torch.nn.functional.pad`: last axis first, before and after."""
    if mode != "replicate" or not torch.compiler.is_compiling():
        return F.pad(x, list(amounts), mode)
    # The replicate padding of torch crashes in the compiled backward pass; an index does not.
    for axis, (before, after) in enumerate(zip(amounts[::2], amounts[1::2], strict=True)):
        if before or after:
            size = x.shape[-1 - axis]
            index = torch.arange(-before, size + after, device=x.device).clamp(0, size - 1)
            x = x.index_select(x.dim() - 1 - axis, index)
    return x


class _Conv(Constrained):
    """What the convolutions share.

    `y = W * x + b` with `(Σ_taps W) G_m = G_n`; the bias is free. Padding follows offsets: `replicate` (default),
    `reflect`, `circular`, or `mean`, which pads each feature with its group's mean over the image:
    `W *₀ (x - G φ(x)) + b + G φ(x)`, where `*₀` is zero-padded.

    Args:
        in_channels: m.
        out_channels: n.
        kernel_size: as in torch, and so are `stride`, `padding`, `dilation`, `groups`, `bias`, `device`, `dtype`.
        padding_mode: `replicate`, `reflect`, `circular` or `mean`.
        offset_groups: a number of equal contiguous runs, an assignment, or a pair (of the input, of the output).
        constraint: what meets the constraint: the `sum` over taps, or every `tap` its share.

    Shapes: (N, m, *positions) to (N, n, *positions).
    """

    _positions: ClassVar[int]
    _convolve: ClassVar[Callable[..., Tensor]]
    stride: Any
    padding: Any
    dilation: Any
    _reversed_padding_repeated_twice: list[int]
    groups: int
    bias: Tensor | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "replicate",
        device: Any = None,
        dtype: Any = None,
        *,
        offset_groups: InOutGroups = 3,
        constraint: ConstraintKind = "sum",
    ) -> None:
        if padding_mode not in (*PADDING_MODES, "zeros"):
            raise ValueError(f"padding_mode is one of {PADDING_MODES}, not {padding_mode!r}")
        theirs = "zeros" if padding_mode == "mean" else padding_mode
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, theirs, device, dtype
        )
        self.padding_mode = padding_mode
        if padding_mode == "zeros" and self._pads():
            raise ValueError(
                f"{type(self).__name__} would pad an equivariant map with zeros, which do not follow an offset: use "
                f"padding_mode {', '.join(map(repr, PADDING_MODES))}"
            )
        self._constrain(offset_groups, in_channels, out_channels, groups, constraint)

    def _pads(self) -> bool:
        return any(self._reversed_padding_repeated_twice)

    def forward(self, input: Tensor) -> Tensor:
        if input.dim() == self._positions + 1:
            return self.forward(input[None])[0]
        check_features(self.in_groups, input.shape[1])
        if not self._pads():
            return self._apply_weight(input, 0)
        if self.padding_mode == "mean":
            offset = group_pool(input, self.in_groups)
            y = self._apply_weight(add_offset(input, -offset, self.in_groups), self.padding)
            return add_offset(y, offset, self.out_groups)
        amounts = self._reversed_padding_repeated_twice
        return self._apply_weight(pad(input, amounts, self.padding_mode), 0)

    def _apply_weight(self, x: Tensor, padding: Any) -> Tensor:
        convolve, weight = type(self)._convolve, applied_weight(self)
        with without_saving(self, weight):
            return convolve(x, weight, self.bias, self.stride, padding, self.dilation, self.groups)


class Conv1d(_Conv, nn.Conv1d):
    __doc__ = f"""{_Conv.__doc__}
    >>> from lightfast import equivariance_error
    >>> layer = Conv1d(3, 6, 3, padding=1)
    >>> equivariance_error(layer, torch.randn(2, 3, 8), out_groups=3) < 1e-12
    True
    """
    _positions = 1
    _convolve = staticmethod(F.conv1d)


class Conv2d(_Conv, nn.Conv2d):
    __doc__ = f"""{_Conv.__doc__}
    >>> from lightfast import equivariance_error
    >>> layer = Conv2d(3, 6, 3, padding=1)
    >>> equivariance_error(layer, torch.randn(2, 3, 8, 8), out_groups=3) < 1e-12
    True
    """
    _positions = 2
    _convolve = staticmethod(F.conv2d)


class Conv3d(_Conv, nn.Conv3d):
    __doc__ = f"""{_Conv.__doc__}
    >>> from lightfast import equivariance_error
    >>> layer = Conv3d(3, 6, 3, padding=1)
    >>> equivariance_error(layer, torch.randn(2, 3, 4, 4, 4), out_groups=3) < 1e-12
    True
    """
    _positions = 3
    _convolve = staticmethod(F.conv3d)
