"""Sums of equivariant maps: the residual connection, and the affine combination."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isclose

import torch
from torch import Tensor, nn

from lightfast._groups import GroupSpec
from lightfast.functional import PoolKind, Scope, add_offset
from lightfast.nn._adapter import GroupPool, as_pool


class Residual(nn.Module):
    """`f(x) + s(x) - G φ(s(x))`: of two equivariant maps one is centered, so that the sum moves by `Δ` and not by `2Δ`.

    Args:
        f: the body.
        shortcut: `s`, the identity by default.
        offset_groups: the assignment of the output.
        pool: `φ`, a kind of group pooling or a :class:`GroupPool`.
        scope: of a pool given by kind.
        dim: the features' axis.

    Shapes: those of `f`.

    >>> import torch
    >>> from lightfast import equivariance_error
    >>> from lightfast.nn import Conv2d
    >>> block = Residual(Conv2d(6, 6, 3, padding=1))
    >>> equivariance_error(block, torch.randn(2, 6, 8, 8)) < 1e-12
    True
    """

    def __init__(
        self,
        f: nn.Module,
        shortcut: nn.Module | None = None,
        offset_groups: GroupSpec = 3,
        pool: PoolKind | GroupPool = "mean",
        scope: Scope = "image",
        dim: int = 1,
    ) -> None:
        super().__init__()
        self.f, self.shortcut = f, nn.Identity() if shortcut is None else shortcut
        self.offset_groups, self.dim = offset_groups, dim
        self.pool = as_pool(pool, scope, offset_groups, dim)

    def forward(self, x: Tensor) -> Tensor:
        kept = self.shortcut(x)
        return self.f(x) + add_offset(kept, -self.pool(kept), self.offset_groups, self.dim)


class AffineCombination(nn.Module):
    """`Σ α_i f_i(x)` of equivariant maps, which is equivariant if and only if `Σ α_i = 1`; refused otherwise.

    Args:
        branches: the `f_i`.
        coefficients: the `α_i`.

    Shapes: those of the branches, which agree.

    >>> AffineCombination([nn.Identity(), nn.Identity()], [2.0, -1.0])(torch.ones(1, 3))
    tensor([[1., 1., 1.]])
    """

    def __init__(self, branches: Iterable[nn.Module], coefficients: Sequence[float]) -> None:
        super().__init__()
        self.branches, self.coefficients = nn.ModuleList(branches), tuple(coefficients)
        if len(self.branches) != len(self.coefficients):
            raise ValueError(f"{len(self.branches)} branches need as many coefficients, not {len(self.coefficients)}")
        if not isclose(sum(self.coefficients), 1, rel_tol=0, abs_tol=1e-9):
            raise ValueError(
                f"a combination of equivariant maps is equivariant only if its coefficients sum to 1, and "
                f"{self.coefficients} sum to {sum(self.coefficients):g}"
            )

    def forward(self, x: Tensor) -> Tensor:
        terms = zip(self.coefficients, self.branches, strict=True)
        return torch.stack([weight * branch(x) for weight, branch in terms]).sum(0)

    def extra_repr(self) -> str:
        return f"coefficients={self.coefficients}"
