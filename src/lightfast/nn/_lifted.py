"""Lifted maps: an equivariant map held as an invariant map and the offset of each group, `x = z + G o`.

Where groups are pooled over the whole image, offsets pass through every layer by themselves: convolution, normalization
and activation act on `z` alone, and change `o` by what they take out of `z`. So `z` is an ordinary map, which may be
padded with zeros (that is padding `x` with the offset) and computed in low precision whatever the offset, and nothing
is spent on carrying the offset through it. A network of these layers is the network of the ordinary ones, computed
faster.

With a field (see :mod:`lightfast.fields`) the offset varies over the image, `o(p) = Σ_k c_k B_k(p)`, and the map holds
its coefficients. The functions are those of the position in the image, so whatever changes the size of `z` only changes
where they are sampled; everything else is as before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from lightfast._backends import UnitPlans, conv_norm_act
from lightfast.fields import FieldSpec, add_field, remove_field
from lightfast.fields._bases import check_field
from lightfast.functional import add_offset, group_pool
from lightfast.nn._conv import Conv2d
from lightfast.nn._norm import BatchNorm2d
from lightfast.nn._transposed import ConvTranspose2d


class LiftedMap(NamedTuple):
    """An equivariant map `x = z + G o`: `z` (N, m, *positions) does not answer to offsets, `o` (N, g) takes them all.

    `o` is None where nobody will ask for it: in a network whose output is invariant. After its first `features`
    channels, if that is not None, `z` has idle ones, all zero, which the hardware is faster with. With a `field` other
    than 0, `o` (N, g, K) has the coefficients of its functions, of which the first is the constant 1.

    >>> import torch
    >>> lifted = Lift(1)(torch.tensor([[1.0, 2.0, 6.0]]))
    >>> lifted.map, lifted.offset
    (tensor([[-2., -1.,  3.]]), tensor([[3.]]))
    """

    map: Tensor
    offset: Tensor | None
    features: int | None = None
    field: FieldSpec = 0

    @classmethod
    def of(cls, z: Tensor, offset: Tensor | None, features: int, field: FieldSpec = 0) -> LiftedMap:
        """A map of so many features; what channels there are after them are idle."""
        return cls(z, offset, features if z.shape[1] > features else None, field)

    def map_of(self, features: int) -> Tensor:
        """The map, which must have so many features: idle channels would hide that it has others."""
        own = self.map.shape[1] if self.features is None else self.features
        if own != features:
            raise ValueError(f"expected a map of {features} features, but got one of {own}")
        return self.map

    def moved(self, z: Tensor, offset: Tensor, features: int) -> LiftedMap:
        """What a unit makes of this: `z` with so many features, and perhaps idle channels; the offset is added."""
        if self.offset is None:
            return LiftedMap.of(z, None, features, self.field)
        if self.offset.dim() == 3:
            offset = F.pad(offset.unsqueeze(-1), (0, self.offset.shape[2] - 1))
        return LiftedMap.of(z, self.offset + offset, features, self.field)


class Lift(nn.Module):
    """(N, m, *positions) to the lifted map `z = x - G φ(x)`, `o = φ(x)`, in at least float32.

    Args:
        offset_groups: a number of equal contiguous runs.
        keep_offset: whether anybody will ask for the offset.
        field: offsets that are followed: 0 for those that are the same everywhere, 1 for planes, 2 for quadratics, or a
            basis whose first function is the constant 1. `φ(x)` is then the projection `P(x)`, and `z` does not answer
            to any field of the span.

    >>> import torch
    >>> Lift(3)(torch.tensor([[1.0, 2.0, 6.0]])).offset
    tensor([[1., 2., 6.]])
    """

    def __init__(self, offset_groups: int = 3, keep_offset: bool = True, field: FieldSpec = 0) -> None:
        super().__init__()
        self.offset_groups, self.keep_offset, self.field = offset_groups, keep_offset, check_field(field)

    def forward(self, x: Tensor) -> LiftedMap:
        if self.field != 0:
            z, coefficients = remove_field(x, self.offset_groups, self.field)
            return LiftedMap(z, coefficients if self.keep_offset else None, field=self.field)
        offset = group_pool(x, self.offset_groups)
        return LiftedMap(add_offset(x, -offset, self.offset_groups), offset.flatten(1) if self.keep_offset else None)

    def extra_repr(self) -> str:
        shown = f"{self.offset_groups}, keep_offset={self.keep_offset}"
        return shown if self.field == 0 else f"{shown}, field={self.field}"


def lower(x: LiftedMap, offset_groups: int = 3) -> Tensor:
    """The map itself, `z + G o`; with a field, at the positions of `z`.

    >>> import torch
    >>> lower(Lift(3)(torch.tensor([[1.0, 2.0, 3.0]])))
    tensor([[1., 2., 3.]])
    """
    if x.offset is None:
        raise ValueError("this lifted map was made without its offset: build the network with keep_offset=True")
    if x.field != 0:
        return add_field(x.map[:, : x.features], x.offset, offset_groups, x.field)
    return add_offset(x.map[:, : x.features], x.offset, offset_groups)


class ConvNormAct2d(nn.Module):
    """Convolution, batch norm, an optional shortcut, and a (leaky) ReLU, on lifted maps: the formula is in `norm_act`.

    The parts hold the parameters and the state, `conv` and `norm`, and are the layers it equals when run one after
    another with the shortcut centered; outside the map the convolution sees the offset.

    Args:
        in_channels: m.
        out_channels: n.
        kernel_size: of the convolution, and so are `stride`, `padding` and `bias`.
        slope: of the activation below the group's mean: 0 for ReLU, 1 for none.
        offset_groups: a number of equal contiguous runs.
        constrained: whether the weight meets the constraint of :class:`Conv2d`. A lifted map follows offsets without:
            the convolution sees `z` alone, and with a free weight this is the adapter `W * z + b + G o`.

    `share_moments`, where processes train together, averages a tensor over them; batch statistics are then of all.

    Shapes: (N, m, H, W) to (N, n, H, W).

    >>> import torch
    >>> from lightfast import equivariance_error
    >>> unit = ConvNormAct2d(3, 6, 3, padding=1, offset_groups=3)
    >>> network = lambda x: lower(unit(Lift(3)(x)))
    >>> _ = unit.double()
    >>> equivariance_error(network, torch.randn(2, 3, 8, 8)) < 1e-12
    True
    """

    conv: Any
    share_moments: Callable[[Tensor], Tensor] | None
    _constrained: ClassVar[type[nn.Module]] = Conv2d
    _free: ClassVar[type[nn.Module]] = nn.Conv2d

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int = 0,
        bias: bool = True,
        slope: float = 0.0,
        offset_groups: int = 3,
        constrained: bool = True,
    ) -> None:
        super().__init__()
        if self._free is nn.ConvTranspose2d and kernel_size % stride:
            raise ValueError(f"the kernel must be a multiple of the stride, but {kernel_size} is none of {stride}")
        shape = (in_channels, out_channels, kernel_size, stride, padding)
        if constrained:
            self.conv = self._constrained(*shape, bias=bias, padding_mode="mean", offset_groups=offset_groups)
        else:
            self.conv = self._free(*shape, bias=bias)
        self.norm = BatchNorm2d(out_channels, offset_groups=offset_groups)
        self.slope, self.offset_groups = slope, offset_groups
        self.share_moments = None
        self._plans = UnitPlans()

    def forward(self, x: LiftedMap, shortcut: LiftedMap | None = None) -> LiftedMap:
        conv = self.conv
        z, added = x.map_of(conv.in_channels), None if shortcut is None else shortcut.map_of(conv.out_channels)
        groups, share = self.offset_groups, self.share_moments
        z, offset = conv_norm_act(z, added, conv, self.norm, groups, self.slope, self._plans, share)
        return x.moved(z, offset, conv.out_channels)


class ConvTransposeNormAct2d(ConvNormAct2d):
    """Transposed convolution, batch norm and a (leaky) ReLU on lifted maps, as `ConvNormAct2d` for convolutions.

    The parts hold the parameters and the state, `conv` and `norm`, and are the layers it equals when run one after
    another. Each phase of taps meets the constraint by itself. From a single pixel with kernel = stride, where every
    output sees one tap, every tap does; it is then computed as the linear layer that it is. Where some taps of a phase
    fall outside the map they see `z = 0`, which is `x = o`: so it is `ConvTranspose2d` with `padding_mode="mean"`.

    Args as for `ConvNormAct2d`, with `kernel_size` a multiple of `stride`.

    Shapes: (N, m, H, W) to (N, n, H', W').

    >>> import torch
    >>> unit = ConvTransposeNormAct2d(3, 6, 4, stride=2, padding=1)
    >>> lower(unit(Lift(3)(torch.randn(2, 3, 8, 8)))).shape
    torch.Size([2, 6, 16, 16])
    """

    _constrained = ConvTranspose2d
    _free = nn.ConvTranspose2d


class SqueezeNormAct(ConvNormAct2d):
    """A convolution of the whole map to a single pixel, batch norm and a (leaky) ReLU, on lifted maps.

    `ConvNormAct2d` with a kernel of the size of the map, computed as the linear layer that it is.

    Args:
        in_channels: m.
        out_channels: n.
        kernel_size: height and width of the map.
        slope: of the activation below the group's mean.
        offset_groups: a number of equal contiguous runs.
        constrained: whether the weight meets the constraint.

    Shapes: (N, m, k, k) to (N, n, 1, 1).

    >>> import torch
    >>> unit = SqueezeNormAct(3, 6, 4)
    >>> lower(unit(Lift(3)(torch.randn(2, 3, 4, 4)))).shape
    torch.Size([2, 6, 1, 1])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        slope: float = 0.0,
        offset_groups: int = 3,
        constrained: bool = True,
    ) -> None:
        options: dict[str, Any] = {"slope": slope, "offset_groups": offset_groups, "constrained": constrained}
        super().__init__(in_channels, out_channels, kernel_size, **options)
