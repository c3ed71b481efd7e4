"""Equivariance, measured: numbers from one function, a judgment from the other, on any callable."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lightfast._groups import GroupSpec, check_features, group_count
from lightfast.functional import add_offset

Expectation = Literal["equivariant", "invariant"]

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 1e-1, torch.float16: 1e-2}
"""How large an error rounding alone explains in a deep network, by precision."""


@torch.no_grad()
def equivariance_error(
    f: Callable[..., Any],
    x: Tensor,
    offset_groups: GroupSpec = 3,
    *,
    offsets: Tensor | float = 1.0,
    out_groups: GroupSpec | None = None,
    expect: Expectation = "equivariant",
    dim: int = 1,
    out_dim: int | None = None,
    dtype: torch.dtype | None = torch.float64,
    seed: int = 0,
) -> float:
    """How far `f` is from following offsets, relative to their size.

    `max |f(x + G Δ) - f(x) - G' Δ| / max(1, max |Δ|)`, with another `Δ` for each image of the batch; `G' = 0` where
    `expect` is `invariant`.

    Args:
        f: a module or any function of one map. A module is copied, so that nothing of it changes, and measured in the
            mode it is in; random layers draw the same numbers for both inputs.
        x: (N, ..., m, ...), with features on axis `dim`.
        offset_groups: the assignment of the input.
        offsets: `Δ` as (g,) or (N, g), or the largest size of random ones.
        out_groups: the assignment of the output; by default that of the input.
        expect: whether the output should follow (`equivariant`) or stay (`invariant`).
        dim: the features' axis of the input.
        out_dim: the features' axis of the output; by default `dim`.
        dtype: the precision of the measurement; None leaves `f` and `x` as they are.
        seed: of random offsets and random layers.

    Returns:
        The error, which is around 1e-15 in float64 for an equivariant network and of the order of 1 for another.

    >>> equivariance_error(nn.ReLU(), torch.randn(2, 6), expect="equivariant") > 0.1
    True
    """
    if isinstance(f, nn.Module):
        f = deepcopy(f) if dtype is None else deepcopy(f).to(dtype)
    x = x.detach() if dtype is None else x.detach().to(dtype)
    out_groups = offset_groups if out_groups is None else out_groups
    out_dim = dim if out_dim is None else out_dim
    if not isinstance(offsets, Tensor):
        generator = torch.Generator().manual_seed(seed)
        uniform = torch.rand(x.shape[0], group_count(offset_groups), generator=generator, dtype=torch.float64)
        offsets = (2 * uniform - 1) * offsets
    offsets = offsets.to(x.device, x.dtype)

    before = _call(f, x, seed)
    if expect == "equivariant":
        _check_follows(f, before, out_groups, out_dim)
    after = _call(f, add_offset(x, offsets, offset_groups, dim), seed)
    wanted = before if expect == "invariant" else add_offset(before, offsets, out_groups, out_dim)
    error = (after - wanted).abs().max() / offsets.abs().max().clamp(min=1)
    return float(error) if torch.isfinite(error) else float("inf")


def assert_equivariant(
    f: Callable[..., Any], x: Tensor, offset_groups: GroupSpec = 3, *, tolerance: float | None = None, **options: Any
) -> None:
    """Raise an `AssertionError` that gives the number, unless :func:`equivariance_error` is within `tolerance`.

    Args:
        f: as in :func:`equivariance_error`, and so are `x`, `offset_groups` and the options.
        x: the input.
        offset_groups: its assignment.
        tolerance: by default what rounding explains in the precision of the measurement.
        options: further arguments of :func:`equivariance_error`.

    >>> assert_equivariant(nn.AvgPool1d(2), torch.randn(2, 6, 4))
    """
    dtype = options.get("dtype", torch.float64) or x.dtype
    tolerance = TOLERANCE[dtype] if tolerance is None else tolerance
    error = equivariance_error(f, x, offset_groups, **options)
    if error > tolerance:
        expect = options.get("expect", "equivariant")
        instead: dict[str, Any] = {**options, "expect": "invariant"}
        invariant = expect == "equivariant" and equivariance_error(f, x, offset_groups, **instead) <= tolerance
        hint = "; it is invariant, as scores of classes are: say expect='invariant'" if invariant else ""
        raise AssertionError(f"{_name(f)} is not {expect}: error {error:.3g}, tolerance {tolerance:.3g}{hint}")


def _check_follows(f: Callable[..., Any], y: Tensor, out_groups: GroupSpec, out_dim: int) -> None:
    """An output that cannot follow offsets, such as the scores of a classifier, is met with what to ask instead."""
    features = y.shape[out_dim] if -y.dim() <= out_dim < y.dim() else 0
    try:
        check_features(out_groups, features)
    except ValueError:
        raise ValueError(
            f"the output of {_name(f)}, {tuple(y.shape)}, cannot follow the offsets of {group_count(out_groups)} "
            "groups. If it is to stay as it is, as scores of classes do, say expect='invariant'; if its features are "
            "in other groups than the input's, name them with out_groups="
        ) from None


def _name(f: Callable[..., Any]) -> str:
    return type(f).__name__ if isinstance(f, nn.Module) else getattr(f, "__name__", repr(f))


def _call(f: Callable[..., Any], x: Tensor, seed: int) -> Tensor:
    """`f(x)` with the random stream started anew, on a copy of a module, whose running statistics would move."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        y = deepcopy(f)(x) if isinstance(f, nn.Module) else f(x)
    return y[0] if isinstance(y, tuple | list) else y
