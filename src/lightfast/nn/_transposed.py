"""Transposed convolutions, exact up to the border."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from lightfast._backends import applied_weight
from lightfast._groups import check_features
from lightfast.functional import ConstraintKind, add_offset, group_pool, tap_phases
from lightfast.nn._constrained import Constrained, InOutGroups
from lightfast.nn._conv import pad

BORDERS = ("replicate", "mean", "zeros")


def reach(layer: Any, output_padding: Sequence[int]) -> list[int]:
    """How many positions beyond the input the outputs of a transposed convolution look, on each axis."""
    sizes = zip(layer.kernel_size, layer.stride, layer.padding, layer.dilation, output_padding, strict=True)
    return [max(0, (gap * (taps - 1) - cut + more) // step) for taps, step, cut, gap, more in sizes]


class _ConvTranspose(Constrained):
    """What the transposed convolutions share.

    Each phase of taps (those that reach the same outputs modulo the stride) meets `(Σ W) G_m = G_n` by itself. Outputs
    near the border see only some taps of their phase, as if the map went on with zeros; so that they follow an offset
    too, the map goes on with its own values instead:

    - `replicate` (default): the input is replicate-padded by as many positions `r` as the kernel reaches beyond it, and
      `padding` is raised by `r` strides, which leaves the size of the output as it is;
    - `mean`: `Wᵀ *₀ (x - G φ(x)) + b + G φ(x)`, where `*₀` goes on with zeros;
    - `zeros`: refused, unless every output sees all taps of its phase (kernel = stride without padding is such a one,
      and the way to go from 1x1 to 4x4 with a free pattern: `replicate` would make all 16 outputs equal).

    Args:
        in_channels: m.
        out_channels: n.
        kernel_size: as in torch, and so are `stride`, `padding`, `output_padding`, `groups`, `bias`, `dilation`,
            `device`, `dtype`.
        padding_mode: how the map goes on beyond its border.
        offset_groups: a number of equal contiguous runs, an assignment, or a pair (of the input, of the output).
        constraint: what meets the constraint: the `sum` over the taps of a phase, or every `tap` its share.

    Shapes: (N, m, *positions) to (N, n, *positions).
    """

    _positions: ClassVar[int]
    _convolve: ClassVar[Callable[..., Tensor]]
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    output_padding: tuple[int, ...]
    _output_padding: Callable[..., tuple[int, ...]]
    dilation: tuple[int, ...]
    groups: int
    bias: Tensor | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Any = 1,
        padding_mode: str = "replicate",
        device: Any = None,
        dtype: Any = None,
        *,
        offset_groups: InOutGroups = 3,
        constraint: ConstraintKind = "sum",
    ) -> None:
        if padding_mode not in BORDERS:
            raise ValueError(f"the padding_mode of a transposed convolution is one of {BORDERS}, not {padding_mode!r}")
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            output_padding,
            groups,
            bias,
            dilation,
            device=device,
            dtype=dtype,
        )
        self.padding_mode = padding_mode
        geometry = {"transposed": True, "stride": self.stride, "dilation": self.dilation}
        self._constrain(offset_groups, in_channels, out_channels, groups, constraint, **geometry)
        tap_phases(self.kernel_size, self.stride, self.dilation, constraint)
        self._refuse_zero_border(self.reach(self.output_padding))

    def reach(self, output_padding: Sequence[int]) -> list[int]:
        """How many positions beyond the input the outputs look, on each axis."""
        return reach(self, output_padding)

    def _refuse_zero_border(self, beyond: list[int]) -> None:
        if self.padding_mode == "zeros" and any(beyond):
            raise ValueError(
                f"{type(self).__name__} would let the map go on with zeros beyond its border, which do not follow an "
                "offset: use padding_mode 'replicate' or 'mean', or kernel_size = stride without padding"
            )

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        if input.dim() == self._positions + 1:
            return self.forward(input[None], output_size)[0]
        check_features(self.in_groups, input.shape[1])
        more = self._output_padding(
            input, output_size, self.stride, self.padding, self.kernel_size, self._positions, self.dilation
        )
        beyond = self.reach(more)
        self._refuse_zero_border(beyond)
        if not any(beyond):
            return self._apply_weight(input, self.padding, more)
        if self.padding_mode == "mean":
            offset = group_pool(input, self.in_groups)
            y = self._apply_weight(add_offset(input, -offset, self.in_groups), self.padding, more)
            return add_offset(y, offset, self.out_groups)
        padded = pad(input, [amount for r in reversed(beyond) for amount in (r, r)], "replicate")
        cut = tuple(p + r * s for p, r, s in zip(self.padding, beyond, self.stride, strict=True))
        return self._apply_weight(padded, cut, more)

    def _apply_weight(self, x: Tensor, padding: Any, output_padding: Any) -> Tensor:
        convolve = type(self)._convolve
        weight, bias = applied_weight(self), self.bias
        return convolve(x, weight, bias, self.stride, padding, output_padding, self.groups, self.dilation)


class ConvTranspose1d(_ConvTranspose, nn.ConvTranspose1d):
    __doc__ = f"""{_ConvTranspose.__doc__}
    >>> import torch
    >>> from lightfast import equivariance_error
    >>> layer = ConvTranspose1d(3, 6, 4, stride=2, padding=1)
    >>> equivariance_error(layer, torch.randn(2, 3, 5), out_groups=3) < 1e-12
    True
    """
    _positions = 1
    _convolve = staticmethod(F.conv_transpose1d)


class ConvTranspose2d(_ConvTranspose, nn.ConvTranspose2d):
    __doc__ = f"""{_ConvTranspose.__doc__}
    >>> import torch
    >>> from lightfast import equivariance_error
    >>> layer = ConvTranspose2d(3, 6, 4, stride=2, padding=1)
    >>> equivariance_error(layer, torch.randn(2, 3, 5, 5), out_groups=3) < 1e-12
    True
    """
    _positions = 2
    _convolve = staticmethod(F.conv_transpose2d)


class ConvTranspose3d(_ConvTranspose, nn.ConvTranspose3d):
    __doc__ = f"""{_ConvTranspose.__doc__}
    >>> import torch
    >>> from lightfast import equivariance_error
    >>> layer = ConvTranspose3d(3, 6, 4, stride=2, padding=1)
    >>> equivariance_error(layer, torch.randn(2, 3, 3, 3, 3), out_groups=3) < 1e-12
    True
    """
    _positions = 3
    _convolve = staticmethod(F.conv_transpose3d)
