"""One adapter around a whole network: any backbone, no constraint."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from lightfast.functional import PoolKind, add_offset, group_pool
from lightfast.groups import GroupSpec

__all__ = ["Wrapped", "wrap"]


class Wrapped(nn.Module):
    """`f(x - G φ(x))`, or `f(x - G φ(x)) + G φ(x)`: what :func:`wrap` returns.

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
    ) -> None:
        super().__init__()
        self.model, self.offset_groups, self.output = model, offset_groups, output
        self.pool: PoolKind = pool
        self.out_groups, self.dim = out_groups, dim

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        offset = group_pool(x, self.offset_groups, self.pool, dim=self.dim)
        y = self.model(add_offset(x, -offset, self.offset_groups, self.dim), *args, **kwargs)
        if self.output == "invariant":
            return y
        if not isinstance(y, Tensor):
            raise TypeError(
                "an equivariant output must be one tensor, to which the group means are added back, but the network "
                f"gave {type(y).__name__}: wrap a module that returns the tensor alone"
            )
        if y.dim() != x.dim():
            # Positions are of size 1 in the group means, so what is left is (N, g).
            offset = offset.flatten(1)
        # In the precision of the input: a network in a lower one would round what is added back.
        return add_offset(y.to(torch.promote_types(y.dtype, x.dtype)), offset, self.out_groups, self.dim)

    def extra_repr(self) -> str:
        return f"offset_groups={self.offset_groups}, output={self.output!r}, pool={self.pool!r}"


def wrap(
    model: nn.Module,
    offset_groups: GroupSpec = 3,
    output: Literal["invariant", "equivariant"] = "invariant",
    *,
    pool: PoolKind = "mean",
    out_groups: GroupSpec | None = None,
    dim: int = 1,
) -> Wrapped:
    """One adapter around a whole network on log RGB: `f(x - G φ(x))`, plus `G φ(x)` where the output should follow.

    Exact for offsets that are the same over the whole image, with any backbone, pretrained or not, and at no cost. It
    does not follow light that varies over the image: for that, convert the network layer by layer.

    Args:
        model: `f`, of one map and any further inputs. It is wrapped, not copied.
        offset_groups: the assignment of the input.
        output: `invariant` leaves the output as it is, for scores; `equivariant` adds the group means back.
        pool: `φ`, over all positions: `mean`, `max` or `min`.
        out_groups: the assignment of an equivariant output; by default `offset_groups`.
        dim: the features' axis of input and output.

    >>> import torch
    >>> from lightfast.equivariance import equivariance_error
    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 1))
    >>> equivariance_error(wrap(net, output="equivariant"), torch.randn(2, 3, 8, 8)) < 1e-12
    True
    """
    if output not in ("invariant", "equivariant"):
        raise ValueError(f"the output of a wrapped network is invariant or equivariant, not {output!r}")
    if pool == "linear":
        raise ValueError("a wrapper has no coefficients to learn: use pool='mean', 'max' or 'min'")
    return Wrapped(model, offset_groups, output, pool, offset_groups if out_groups is None else out_groups, dim)
