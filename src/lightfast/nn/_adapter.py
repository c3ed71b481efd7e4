"""Group pooling as a module, and the adapter `f(x - G φ1(x)) + G φ2(x)` that makes any map equivariant."""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor, nn

from lightfast._groups import Groups, GroupSpec, group_count, resolve
from lightfast.functional import PoolKind, Scope, add_offset, group_pool


class GroupPool(nn.Module):
    """Group pooling `φ`, one number per group, with `φ(x + G Δ) = φ(x) + Δ`: :func:`~lightfast.functional.group_pool`.

    Args:
        kind: `mean`, `max`, `min`, or `linear` with learned coefficients that sum to 1 in each group.
        scope: `image` pools over the group's features and all positions; `pixel` over the features at each position.
        offset_groups: a number of equal contiguous runs, or any assignment.
        num_features: m; needed for `linear` with a number of groups.
        dim: the features' axis.

    Shapes: (N, m, *positions) to (N, g, 1, ...) where scope is `image`, or to (N, g, *positions).

    >>> import torch
    >>> GroupPool("max", offset_groups=2)(torch.tensor([[1.0, 3.0, 10.0, 20.0]]))
    tensor([[ 3., 20.]])
    """

    kind: PoolKind
    scope: Scope

    def __init__(
        self,
        kind: PoolKind = "mean",
        scope: Scope = "image",
        *,
        offset_groups: GroupSpec = 3,
        num_features: int | None = None,
        dim: int = 1,
    ) -> None:
        super().__init__()
        check_pooling(kind, scope)
        self.kind, self.scope, self.offset_groups, self.dim = kind, scope, offset_groups, dim
        if kind == "linear":
            groups = resolve(offset_groups, _features(offset_groups, num_features))
            self.weight = nn.Parameter(groups.pinv().amax(0).clone())
        else:
            self.register_parameter("weight", None)

    def forward(self, x: Tensor) -> Tensor:
        return group_pool(x, self.offset_groups, self.kind, self.scope, self.dim, self.weight)

    def extra_repr(self) -> str:
        return f"{self.kind!r}, {self.scope!r}, offset_groups={self.offset_groups}"


class Adapted(nn.Module):
    """Mixin that puts a torch layer `f` of one map into the adapter: `f(x - G φ(x)) + G φ(x)`.

    Written before the torch layer in the list of bases; takes that layer's arguments, and by keyword `offset_groups`,
    `pool` (a kind of group pooling, or a :class:`GroupPool`), `scope`, and `dim`, the features' axis.
    """

    pool: PoolKind | GroupPool
    scope: Scope
    dim: int

    def __init__(
        self,
        *args: Any,
        offset_groups: GroupSpec = 3,
        pool: PoolKind | GroupPool = "mean",
        scope: Scope = "image",
        dim: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        check_pooling(pool, scope)
        self.offset_groups, self.pool, self.scope, self.dim = offset_groups, pool, scope, dim
        features = self._known_features()
        if features is not None:
            resolve(offset_groups, features)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Show users the torch layer's own arguments, followed by ours, as the signature."""
        super().__init_subclass__(**kwargs)
        layer = next(base for base in cls.__mro__ if base.__module__.startswith("torch.nn"))
        if layer is nn.Module:
            return
        own = inspect.signature(Adapted.__init__).parameters
        named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        theirs = [p for p in inspect.signature(layer).parameters.values() if p.kind in named]
        ours = [own[name] for name in ("offset_groups", "pool", "scope", "dim")]
        cls.__signature__ = inspect.Signature(theirs + ours)  # type: ignore[attr-defined]

    def _known_features(self) -> int | None:
        """The number of features, where the layer knows it when it is built."""
        return None

    def _offset(self, x: Tensor) -> Tensor:
        """`φ(x)`."""
        if isinstance(self.pool, GroupPool):
            return self.pool(x)
        return group_pool(x, self.offset_groups, self.pool, self.scope, self.dim)

    def forward(self, input: Tensor) -> Tensor:
        offset = self._offset(input)
        y = super().forward(add_offset(input, -offset, self.offset_groups, self.dim))
        # Autocast may have lowered the precision of y, which is small; the offset need not be, and keeps the input's.
        return add_offset(y.to(input.dtype), offset, self.offset_groups, self.dim)

    def extra_repr(self) -> str:
        ours = f"offset_groups={self.offset_groups}"
        if self.scope != "image":
            ours += f", scope={self.scope!r}"
        if self.pool != "mean" and not isinstance(self.pool, GroupPool):
            ours += f", pool={self.pool!r}"
        return ", ".join(filter(None, [super().extra_repr(), ours]))


class Adapter(nn.Module):
    """Any map made equivariant: `h(x) = f(x - G φ1(x)) + G φ2(x)`.

    Args:
        f: a module or function of one map.
        offset_groups: the input's assignment.
        pool: `φ1`, a kind of group pooling or a :class:`GroupPool`.
        pool_out: `φ2`; `φ1` by default.
        scope: of pools given by kind.
        dim: the features' axis of input and output.
        out_groups: the output's assignment; by default `offset_groups`.

    Shapes: (N, m, *positions) to whatever `f` gives, with features on axis `dim`.

    >>> import torch
    >>> h = Adapter(torch.sin, offset_groups=2)
    >>> x, offset = torch.randn(1, 4), torch.tensor([10.0, 20.0])
    >>> torch.allclose(h(add_offset(x, offset, 2)), add_offset(h(x), offset, 2), atol=1e-5)
    True
    """

    def __init__(
        self,
        f: Any,
        offset_groups: GroupSpec = 3,
        pool: PoolKind | GroupPool = "mean",
        pool_out: PoolKind | GroupPool | None = None,
        scope: Scope = "image",
        dim: int = 1,
        out_groups: GroupSpec | None = None,
    ) -> None:
        super().__init__()
        out_groups = offset_groups if out_groups is None else out_groups
        if group_count(out_groups) != group_count(offset_groups):
            raise ValueError(f"input and output need the same groups, but have {offset_groups} and {out_groups}")
        self.f, self.offset_groups, self.out_groups, self.dim = f, offset_groups, out_groups, dim
        self.pool = as_pool(pool, scope, offset_groups, dim)
        self.pool_out = self.pool if pool_out is None else as_pool(pool_out, scope, offset_groups, dim)

    def forward(self, x: Tensor) -> Tensor:
        first = self.pool(x)
        second = first if self.pool_out is self.pool else self.pool_out(x)
        y = self.f(add_offset(x, -first, self.offset_groups, self.dim))
        if second.dim() != y.dim():
            second = second.flatten(1)
        return add_offset(y, second, self.out_groups, self.dim)


def _features(offset_groups: GroupSpec, num_features: int | None) -> int:
    """How many features a pooling with learned coefficients has."""
    if num_features is not None:
        return num_features
    if isinstance(offset_groups, Groups):
        return offset_groups.features
    raise ValueError("linear group pooling has a coefficient per feature: say how many with num_features=")


def as_pool(pool: PoolKind | GroupPool, scope: Scope, offset_groups: GroupSpec, dim: int) -> GroupPool:
    """`pool` itself if it is a module already, else the pooling of that kind."""
    if isinstance(pool, GroupPool):
        return pool
    return GroupPool(pool, scope, offset_groups=offset_groups, dim=dim)


def check_pooling(pool: str | GroupPool, scope: str) -> None:
    """Raise a sentence unless both are pooling that exists."""
    if not isinstance(pool, GroupPool) and pool not in ("mean", "max", "min", "linear"):
        raise ValueError(f"group pooling is mean, max, min or linear, not {pool!r}")
    if scope not in ("image", "pixel"):
        raise ValueError(f"the scope of group pooling is image or pixel, not {scope!r}")
