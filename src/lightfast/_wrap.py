"""One adapter around a whole network: any backbone, no constraint."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from lightfast._groups import GroupSpec
from lightfast._notice import notice_srgb
from lightfast.fields import FieldSpec, add_field, field_mean, remove_field
from lightfast.fields._bases import check_field
from lightfast.functional import PoolKind, add_offset, group_pool


class Wrapped(nn.Module):
    """`f(x - G φ(x))`, or `f(x - G φ(x)) + G φ(x)`: what :func:`wrap` returns.

    With a field, `φ(x)` is its projection `P(x)`, which varies over the image.

    Shapes: (N, m, *positions) to whatever `f` gives; where the output is equivariant, that has features on axis `dim`.
    """

    def __init__(
        self,
        model: nn.Module,
        offset_groups: GroupSpec,
        output: Literal["invariant", "equivariant"],
        pool: PoolKind,
        out_groups: GroupSpec,
        dim: int,
        field: FieldSpec = 0,
    ) -> None:
        super().__init__()
        self.model, self.offset_groups, self.output = model, offset_groups, output
        self.pool: PoolKind = pool
        self.out_groups, self.dim, self.field = out_groups, dim, field
        notice_srgb(self)

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.pool == "mean":
            z, coefficients = remove_field(x, self.offset_groups, self.field, dim=self.dim)
        else:
            offset = group_pool(x, self.offset_groups, self.pool, dim=self.dim)
            z, coefficients = add_offset(x, -offset, self.offset_groups, self.dim), offset.flatten(1).unsqueeze(-1)
        y = self.model(z, *args, **kwargs)
        if self.output == "invariant":
            return y
        if not isinstance(y, Tensor):
            raise TypeError(
                "an equivariant output must be one tensor, to which the group means are added back, but the network "
                f"gave {type(y).__name__}: wrap a module that returns the tensor alone"
            )
        # In the precision of the input: a network in a lower one would round what is added back.
        y = y.to(torch.promote_types(y.dtype, x.dtype))
        if y.dim() == 2 < x.dim():
            size = [pixels for axis, pixels in enumerate(x.shape) if axis not in (0, self.dim % x.dim())]
            return add_offset(y, field_mean(coefficients, self.field, size), self.out_groups)
        return add_field(y, coefficients, self.out_groups, self.field, self.dim)

    def extra_repr(self) -> str:
        shown = f"offset_groups={self.offset_groups}, output={self.output!r}, pool={self.pool!r}"
        return shown if self.field == 0 else f"{shown}, field={self.field}"


def wrap(
    model: nn.Module,
    offset_groups: GroupSpec = 3,
    output: Literal["invariant", "equivariant"] = "invariant",
    *,
    pool: PoolKind = "mean",
    out_groups: GroupSpec | None = None,
    dim: int = 1,
    field: FieldSpec = 0,
) -> Wrapped:
    """One adapter around a whole network on log RGB: `f(x - G φ(x))`, plus `G φ(x)` where the output should follow.

    Exact for offsets that are the same over the whole image, with any backbone, pretrained or not, and at no cost. With
    a `field`, also exact for offsets that vary over the image as a plane does, or as any other field of its span:
    `φ(x)` is then the projection of :func:`lightfast.fields.project_field`. Log RGB is what
    :func:`lightfast.color.srgb_to_log` gives; a first call with values in [0, 1] alone, as sRGB has, warns.

    Args:
        model: `f`, of one map and any further inputs. It is wrapped, not copied.
        offset_groups: the assignment of the input.
        output: `invariant` leaves the output as it is, for scores; `equivariant` adds the group means back, or the
            field at the output's own positions, however many; to an output without positions, (N, n), the field's mean.
        pool: `φ`, over all positions: `mean`, `max` or `min`.
        out_groups: the assignment of an equivariant output; by default `offset_groups`.
        dim: the features' axis of input and output.
        field: light that is followed: 0 for one that is the same everywhere, 1 for a plane in log RGB, 2 for a
            quadratic, or a basis; see :mod:`lightfast.fields`.

    >>> import torch
    >>> from lightfast import equivariance_error
    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 1))
    >>> equivariance_error(wrap(net, output="equivariant"), torch.randn(2, 3, 8, 8)) < 1e-12
    True
    >>> light = torch.linspace(-2, 2, 8)  # from left to right
    >>> x, scores = torch.randn(2, 3, 8, 8), wrap(nn.Sequential(net, nn.Flatten()), field=1)
    >>> torch.allclose(scores(x), scores(x + light), atol=1e-4)
    True
    """
    if not callable(model):
        raise ValueError(f"expected a network, as torch.nn.Module is, and not {model!r}")
    if output not in ("invariant", "equivariant"):
        raise ValueError(f"the output of a wrapped network is invariant or equivariant, not {output!r}")
    if pool == "linear":
        raise ValueError("a wrapper has no coefficients to learn: use pool='mean', 'max' or 'min'")
    if pool != "mean" and field != 0:
        raise ValueError(f"a field is a projection of group means: it goes with pool='mean', not with {pool!r}")
    out_groups = offset_groups if out_groups is None else out_groups
    return Wrapped(model, offset_groups, output, pool, out_groups, dim, check_field(field))
