"""Pure functions on tensors: offsets, group pooling, centering, and the projection of weights onto the constraint.

A map is any tensor with images on axis 0 and features on axis `dim`; every other axis is a *position* (pixels, tokens).
`groups` is a number of equal contiguous runs or a :class:`~lightfast.Groups`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import prod
from typing import Literal

import torch
from torch import Tensor

from lightfast._groups import Groups, GroupSpec, check_features, group_count, is_even, resolve

__all__ = ["ConstraintKind", "PoolKind", "Scope", "add_offset", "center", "group_pool", "project_weight"]

PoolKind = Literal["mean", "max", "min", "linear"]
"""How the features of a group become one number: see :func:`group_pool`."""

Scope = Literal["image", "pixel"]
"""Whether groups are pooled over all positions of an image, or at each position by itself."""

ConstraintKind = Literal["sum", "tap"]
"""What meets the constraint: the sum over the taps of a kernel, or every tap its share: see :func:`project_weight`."""


def statistics_dtype(x: Tensor) -> torch.dtype:
    """The precision of group statistics: at least float32, whatever precision the map has."""
    return torch.promote_types(x.dtype, torch.float32)


def group_pool(
    x: Tensor,
    groups: GroupSpec,
    kind: PoolKind = "mean",
    scope: Scope = "image",
    dim: int = 1,
    coefficients: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Group pooling `φ`: one number per group, with `φ(x + G Δ) = φ(x) + Δ`.

    - `mean`, `max`, `min`: over the features of the group;
    - `linear`: `φ_j = Σ_{i in j} c_i x_i` with `Σ_{i in j} c_i = 1`, where `c` is the orthogonal projection of
      `coefficients` onto that constraint.

    Args:
        x: (N, ..., m, ...), with features on axis `dim`.
        groups: the assignment of the `m` features.
        kind: how the features of a group are pooled.
        scope: `image` pools over all positions too (the mean over positions for `mean` and `linear`); `pixel` pools at
            each position by itself.
        dim: the features' axis.
        coefficients: (m,), for `linear`.
        mask: for scope `image`, which positions count: boolean, broadcastable to `x`, with size 1 on axis `dim`.

    Returns:
        `x`'s shape with g on axis `dim`, and 1 on every position axis where scope is `image`; at least float32.

    >>> x = torch.tensor([[1.0, 3.0, 10.0, 20.0]])
    >>> group_pool(x, 2), group_pool(x, 2, "max")
    (tensor([[ 2., 15.]]), tensor([[ 3., 20.]]))
    """
    dim = _feature_axis(x, groups, dim)
    positions = [axis for axis in range(1, x.dim()) if axis != dim]
    pooled = x if scope == "pixel" or not positions else _over_positions(x, kind, positions, mask)
    pooled = pooled.to(statistics_dtype(pooled))
    if kind == "mean":
        return _group_mean(pooled, groups, dim)
    if kind == "linear":
        if coefficients is None:
            raise ValueError("linear group pooling needs coefficients, one per feature")
        weights = project_coefficients(coefficients.to(pooled.dtype), groups)
        return _group_sum(pooled * _along(weights, pooled, dim), groups, dim)
    if kind in ("max", "min"):
        return _group_extreme(pooled, groups, kind, dim)
    raise ValueError(f"group pooling is mean, max, min or linear, not {kind!r}")


def add_offset(x: Tensor, offset: Tensor, groups: GroupSpec, dim: int = 1) -> Tensor:
    """`x + G Δ`: add to each feature the offset of its group.

    Args:
        x: (N, ..., m, ...), with features on axis `dim`.
        offset: (g,), or (N, g) with an offset per image, or any shape that :func:`group_pool` returns.
        groups: the assignment of the `m` features.
        dim: the features' axis.

    Returns:
        The shape and precision of `x`; the sum itself is taken in at least the precision of `offset`.

    >>> add_offset(torch.zeros(1, 4), torch.tensor([1.0, 2.0]), 2)
    tensor([[1., 1., 2., 2.]])
    """
    return combine_offset(torch.add, x, offset, groups, dim)


def center(x: Tensor, groups: GroupSpec, kind: PoolKind = "mean", scope: Scope = "image", dim: int = 1) -> Tensor:
    """`x - G φ(x)`: the map without its group pooling, which no offset can change.

    Args, shapes and precision as in :func:`group_pool` and :func:`add_offset`.

    >>> center(torch.tensor([[1.0, 3.0, 10.0, 20.0]]), 2)
    tensor([[-1.,  1., -5.,  5.]])
    """
    return add_offset(x, -group_pool(x, groups, kind, scope, dim), groups, dim)


def combine_offset(
    operation: Callable[[Tensor, Tensor], Tensor], x: Tensor, offset: Tensor, groups: GroupSpec, dim: int = 1
) -> Tensor:
    """`operation(x, G Δ)`, element by element, with shapes and precision as in :func:`add_offset`.

    >>> combine_offset(torch.maximum, torch.tensor([[1.0, 3.0]]), torch.tensor([2.0]), 1)
    tensor([[2., 3.]])
    """
    dim = _feature_axis(x, groups, dim)
    offset = _pooled_shape(offset, x, groups, dim)
    if is_even(groups) and offset.numel() > offset.shape[0] * offset.shape[dim]:
        # An offset that varies over positions is as large as the map: broadcast it to the runs instead of copying it.
        runs = operation(x.unflatten(dim, (group_count(groups), -1)), offset.unsqueeze(dim + 1))
        return runs.flatten(dim, dim + 1).to(x.dtype)
    return operation(x, spread(offset, groups, x.shape[dim], dim)).to(x.dtype)


def spread(pooled: Tensor, groups: GroupSpec, features: int, dim: int = 1) -> Tensor:
    """`G φ`: repeat each group's value for each of its features; g on axis `dim` becomes m.

    >>> spread(torch.tensor([[1.0, 2.0]]), Groups([0, 1, 0]), 3)
    tensor([[1., 2., 1.]])
    """
    if is_even(groups):
        return pooled.repeat_interleave(features // group_count(groups), dim)
    return pooled.index_select(dim, resolve(groups, features).index(pooled.device))


def project_coefficients(coefficients: Tensor, groups: GroupSpec) -> Tensor:
    """Orthogonal projection of one coefficient per feature (m,) onto `Σ_{i in j} c_i = 1` for each group `j`.

    >>> project_coefficients(torch.tensor([1.0, 3.0, 0.5]), Groups([0, 0, 1]))
    tensor([-0.5000,  1.5000,  1.0000])
    """
    groups = resolve(groups, coefficients.shape[0])
    shares = groups.pinv(coefficients.device, coefficients.dtype).amax(1)
    missing = shares - group_pool(coefficients[None], groups)[0]
    return (coefficients + spread(missing[None], groups, groups.features)[0]).to(coefficients.dtype)


def project_weight(
    weight: Tensor,
    in_groups: GroupSpec,
    out_groups: GroupSpec,
    *,
    conv_groups: int = 1,
    constraint: ConstraintKind = "sum",
    transposed: bool = False,
    stride: tuple[int, ...] | int = 1,
    dilation: tuple[int, ...] | int = 1,
    moments: int = 0,
) -> Tensor:
    """Orthogonal projection of a weight onto the offset equivariant ones: `(Σ_taps W) G_m = G_n`.

    The mean of each (output, input group) block is moved to where the constraint wants it, so the result is the nearest
    weight that meets it, and projecting again changes nothing but rounding. With `constraint="tap"` every tap meets its
    equal share of the constraint by itself: `W_tap G_m = G_n / taps`.

    A transposed convolution of stride s > 1 writes output `o` from the taps with `k · dilation ≡ o + padding (mod s)`
    alone. Each such *phase* of taps meets the constraint by itself.

    Args:
        weight: (n, m / conv_groups, *kernel), or (m, n / conv_groups, *kernel) where `transposed`; a linear layer's
            weight is (n, m).
        in_groups: the assignment of the `m` input features.
        out_groups: the assignment of the `n` output features.
        conv_groups: the convolution's own `groups`; equal to `m` for a depthwise one.
        constraint: what meets the constraint: the `sum` over the taps, or every `tap`.
        transposed: whether the weight belongs to a transposed convolution, as `stride` and `dilation` then do.
        stride: of the transposed convolution.
        dilation: of the transposed convolution.
        moments: up to which order the moments of the taps vanish too, `(Σ_t W_t t) G_m = 0` for 1 with `t` from the
            middle of the kernel, so that a convolution that pads nothing also carries offsets that are a plane over
            the image; 2 for quadratics, which takes kernels of 3 at least. Not for transposed convolutions.

    Returns:
        The shape and precision of `weight`.

    >>> w = project_weight(torch.randn(4, 6, 3, 3), 2, 2)
    >>> torch.round(w.sum((2, 3)) @ Groups.even(6, 2).matrix(), decimals=4).abs().int().tolist()
    [[1, 0], [1, 0], [0, 1], [0, 1]]
    """
    inputs, outputs = (weight.shape[0], weight.shape[1] * conv_groups)
    if not transposed:
        inputs, outputs = weight.shape[1] * conv_groups, weight.shape[0]
    kernel = tuple(weight.shape[2:])
    exact = weight.to(statistics_dtype(weight))
    even = is_even(in_groups) and is_even(out_groups)
    if even and not transposed and conv_groups == 1 and constraint == "sum" and not moments:
        return _project_even(exact, inputs, outputs, in_groups, out_groups).to(weight.dtype)
    in_groups, out_groups = resolve(in_groups, inputs), resolve(out_groups, outputs)
    check_feasible(in_groups, out_groups, conv_groups)
    phase, level = tap_phases(kernel, stride if transposed else 1, dilation, constraint)
    split = (conv_groups, inputs // conv_groups, outputs // conv_groups, -1)
    if transposed:
        blocks = exact.reshape(split).transpose(1, 2)
    else:
        blocks = exact.reshape(conv_groups, outputs // conv_groups, inputs // conv_groups, -1)
    if moments and kernel:
        if transposed or constraint != "sum":
            raise ValueError(
                "moments are those of all taps of a convolution: not of a transposed one, nor of every tap"
            )
        blocks = _project_moments(blocks, in_groups, out_groups, kernel, moments)
    else:
        blocks = _project_blocks(blocks, in_groups, out_groups, phase, level)
    return (blocks.transpose(1, 2) if transposed else blocks).reshape(weight.shape).to(weight.dtype)


def tap_phases(
    kernel: tuple[int, ...],
    stride: tuple[int, ...] | int,
    dilation: tuple[int, ...] | int,
    constraint: ConstraintKind,
) -> tuple[list[int], list[float]]:
    """Which taps meet the constraint together: the phase of each tap (in row-major order), and each phase's share.

    >>> tap_phases((4,), 2, 1, "sum")
    ([0, 1, 0, 1], [1.0, 1.0])
    >>> tap_phases((2,), 1, 1, "tap")
    ([0, 1], [0.5, 0.5])
    """
    strides = stride if isinstance(stride, tuple) else (stride,) * len(kernel)
    dilations = dilation if isinstance(dilation, tuple) else (dilation,) * len(kernel)
    phase = [0]
    for size, step, gap in zip(kernel, strides, dilations, strict=True):
        missing = set(range(step)) - {k * gap % step for k in range(size)}
        if missing:
            raise ValueError(
                f"a transposed convolution with kernel {size}, stride {step} and dilation {gap} leaves outputs that no "
                f"tap reaches, and those cannot follow an offset: use a kernel of at least {step} and a dilation that "
                "shares no factor with the stride"
            )
        phase = [before * step + k * gap % step for before in phase for k in range(size)]
    shares = [1.0] * prod(strides)
    if constraint == "tap":
        shares = [1.0 / phase.count(p) for p in phase]
        phase = list(range(len(phase)))
    return phase, shares


def check_feasible(in_groups: Groups, out_groups: Groups, conv_groups: int = 1) -> None:
    """Raise a sentence if some output feature sees no input feature of its own group."""
    inputs, outputs = in_groups.features // conv_groups, out_groups.features // conv_groups
    if in_groups.count != out_groups.count:
        raise ValueError(
            f"input and output need the same number of groups, but have {in_groups.count} and {out_groups.count}"
        )
    for block in range(conv_groups):
        seen = set(in_groups.assignment[block * inputs : (block + 1) * inputs])
        for feature in range(block * outputs, (block + 1) * outputs):
            if out_groups.assignment[feature] not in seen:
                where = f" among the {inputs} that its block of the grouped convolution sees" if conv_groups > 1 else ""
                raise ValueError(
                    f"output feature {feature} belongs to group {out_groups.assignment[feature]}, which has no input "
                    f"feature{where}, so it cannot follow that group's offset: give the group an input feature, or the "
                    "output another assignment"
                )


def _project_even(weight: Tensor, inputs: int, outputs: int, in_groups: GroupSpec, out_groups: GroupSpec) -> Tensor:
    """The common case: all taps together, groups that are equal contiguous runs; blocks are views."""
    check_features(in_groups, inputs)
    check_features(out_groups, outputs)
    count = group_count(in_groups)
    if group_count(out_groups) != count:
        raise ValueError(
            f"input and output need the same number of groups, but have {count} and {group_count(out_groups)}"
        )
    blocks = weight.reshape(count, outputs // count, count, -1)
    share = torch.eye(count, dtype=weight.dtype, device=weight.device) / blocks.shape[-1]
    return (blocks + (share[:, None] - blocks.mean(-1))[..., None]).reshape(weight.shape)


def _project_blocks(
    blocks: Tensor, in_groups: Groups, out_groups: Groups, phase: list[int], share: list[float]
) -> Tensor:
    """The general case, on weights as (conv group, output, input, tap): sums by group and phase through an index."""
    convs, outputs, inputs, _ = blocks.shape
    device, dtype = blocks.device, blocks.dtype
    if len(share) == 1:
        # Made on the device: nothing may be copied to it while a CUDA graph is captured.
        phases = torch.zeros(len(phase), device=device, dtype=torch.int64)
        shares, taps = (torch.full((1,), number, device=device, dtype=dtype) for number in (share[0], len(phase)))
    else:
        phases = torch.tensor(phase, device=device)
        shares = torch.tensor(share, device=device, dtype=dtype)
        taps = torch.tensor([phase.count(p) for p in range(len(share))], device=device, dtype=dtype)
    members = in_groups.matrix(device, dtype).reshape(convs, 1, inputs, -1).sum(2)
    wanted = out_groups.matrix(device, dtype).reshape(convs, outputs, -1)[..., None] * shares

    by_phase = blocks.new_zeros(convs, outputs, inputs, len(share)).index_add(3, phases, blocks)
    index = in_groups.index(device).reshape(convs, 1, inputs, 1).expand(by_phase.shape)
    sums = blocks.new_zeros(convs, outputs, in_groups.count, len(share)).scatter_add(2, index, by_phase)
    excess = (sums - wanted) / (members.clamp(min=1)[..., None] * taps)
    return blocks - excess.gather(2, index).index_select(3, phases)


def _project_moments(
    blocks: Tensor, in_groups: Groups, out_groups: Groups, kernel: tuple[int, ...], order: int
) -> Tensor:
    """As above, with moments that vanish: what a block's taps sum to is taken to the nearest taps with the right ones.

    With `M` (taps x monomials up to the order), taps `s` of a block become `s - M⁺ᵀ (Mᵀ s - (1, 0, ...))`, by equal
    shares of its inputs.
    """
    convs, outputs, inputs, taps = blocks.shape
    # Float64 is what neither autocast nor TF32 rounds.
    blocks = blocks.double()
    axes = [torch.arange(size, dtype=torch.float64) - (size - 1) / 2 for size in kernel]
    places = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).reshape(taps, len(kernel))
    powers = [p for p in product(range(order + 1), repeat=len(kernel)) if sum(p) <= order]
    monomials = torch.stack([(places ** torch.tensor(p)).prod(1) for p in powers], 1)
    wanted = torch.linalg.pinv(monomials)[0]
    if not torch.allclose(monomials.T @ wanted, torch.eye(len(powers), dtype=torch.float64)[0]):
        raise ValueError(f"a kernel of {' x '.join(map(str, kernel))} has too few taps for moments of order {order}")
    onto = (monomials @ torch.linalg.pinv(monomials)).to(blocks)

    members = in_groups.matrix(blocks.device, blocks.dtype).reshape(convs, inputs, -1)
    sums = torch.einsum("coit,cig->cogt", blocks, members)
    goal = out_groups.matrix(blocks.device, blocks.dtype).reshape(convs, outputs, -1)[..., None] * wanted.to(blocks)
    excess = (sums @ onto - goal) / members.sum(1).clamp(min=1)[:, None, :, None]
    return blocks - torch.einsum("cogt,cig->coit", excess, members)


def _feature_axis(x: Tensor, groups: GroupSpec, dim: int) -> int:
    """`dim` counted from the front, after checking that `x` can hold the features there."""
    axis = dim + x.dim() if dim < 0 else dim
    if not 0 < axis < x.dim():
        raise ValueError(
            f"expected images on axis 0 and features on axis {dim}, but the map has shape {tuple(x.shape)}"
        )
    check_features(groups, x.shape[axis])
    return axis


def _over_positions(x: Tensor, kind: PoolKind, positions: list[int], mask: Tensor | None) -> Tensor:
    """Pool over all positions of each feature, kept as axes of size 1; `linear` takes the mean, as `mean` does."""
    if kind in ("max", "min"):
        if mask is not None:
            x = x.masked_fill(~mask, -torch.inf if kind == "max" else torch.inf)
        return x.amax(positions, keepdim=True) if kind == "max" else x.amin(positions, keepdim=True)
    if mask is None:
        return x.mean(positions, keepdim=True, dtype=statistics_dtype(x))
    counted = x.masked_fill(~mask, 0).sum(positions, keepdim=True, dtype=statistics_dtype(x))
    return counted / mask.expand_as(x).sum(positions, keepdim=True)


def _group_sum(x: Tensor, groups: GroupSpec, dim: int) -> Tensor:
    """The sum of each group's features: m on axis `dim` becomes g. No matrix product, which autocast would round."""
    if is_even(groups):
        return x.unflatten(dim, (group_count(groups), -1)).sum(dim + 1)
    groups = resolve(groups, x.shape[dim])
    shape = [groups.count if axis == dim else size for axis, size in enumerate(x.shape)]
    return x.new_zeros(shape).index_add(dim, groups.index(x.device), x)


def _group_extreme(x: Tensor, groups: GroupSpec, kind: Literal["max", "min"], dim: int) -> Tensor:
    """The largest or smallest of each group's features: m on axis `dim` becomes g."""
    if is_even(groups):
        runs = x.unflatten(dim, (group_count(groups), -1))
        return runs.amax(dim + 1) if kind == "max" else runs.amin(dim + 1)
    groups = resolve(groups, x.shape[dim])
    shape = [groups.count if axis == dim else size for axis, size in enumerate(x.shape)]
    index = _along(groups.index(x.device), x, dim).expand(x.shape)
    return x.new_zeros(shape).scatter_reduce(dim, index, x, f"a{kind}", include_self=False)


def _group_mean(x: Tensor, groups: GroupSpec, dim: int) -> Tensor:
    """The mean of each group's features: m on axis `dim` becomes g."""
    if is_even(groups):
        return x.unflatten(dim, (group_count(groups), -1)).mean(dim + 1)
    groups = resolve(groups, x.shape[dim])
    sizes = groups.matrix(x.device, x.dtype).sum(0).clamp(min=1)
    return _group_sum(x, groups, dim) / _along(sizes, x, dim)


def _along(values: Tensor, x: Tensor, dim: int) -> Tensor:
    """A vector, shaped to broadcast along axis `dim` of `x`."""
    return values.reshape([-1 if axis == dim else 1 for axis in range(x.dim())])


def _pooled_shape(offset: Tensor, x: Tensor, groups: GroupSpec, dim: int) -> Tensor:
    """`offset` with as many axes as `x`, and its groups on axis `dim`."""
    if offset.dim() == 1:
        offset = offset[None]
    if offset.dim() == 2 != x.dim():
        shape = [1] * x.dim()
        shape[0], shape[dim] = offset.shape
        offset = offset.reshape(shape)
    if offset.dim() != x.dim() or offset.shape[dim] != group_count(groups):
        raise ValueError(
            f"expected an offset of shape (g,), (N, g) or like group_pool's, with g = {group_count(groups)}, for a map "
            f"of shape {tuple(x.shape)}, but got {tuple(offset.shape)}"
        )
    return offset
