"""The operations on lifted maps in plain torch, for every device and precision: what the other backends are held to.

A backend gives these functions without gradients; the autograd functions in `norm_act.py`, `center_act.py` and
`projection.py` call them. Here they are made of torch's own operations, so that they have gradients all the same, and
compilers, exports and transforms, which want to see each operation, are given these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from lightfast._backends.constraint import Constraint, Form
from lightfast._backends.operands import Features, Folded, Gradients, Norm, NormActOptions, Operands, Saved, Statistics
from lightfast._backends.plans import UnitPlans
from lightfast._backends.tensors import fit_channels, is_last, over, without_idle
from lightfast.functional import add_offset, statistics_dtype


class _Coefficients(NamedTuple):
    """What follows from the moments: all of shape (N, C), (C,), or (N, g)."""

    scale: Tensor
    shift: Tensor
    deviation: Tensor
    inverse: Tensor
    offset: Tensor
    mean: Tensor
    var: Tensor


class Reference:
    """The formulas, and the passes over maps that they are made of; other backends replace what they do faster."""

    name = "torch"
    fills_channels = False
    """Whether maps get idle channels here; if so, biases are left to what follows a convolution."""

    def channels(self, features: int, dtype: torch.dtype) -> int:
        """How many channels a map of so many features gets."""
        return features

    def has_operators(self, u: Tensor, what: Features) -> bool:
        """Whether compilers are to call `norm_act` of maps like `u` as an operator, and not to look into it."""
        return False

    def has_weight_operator(self, weight: Tensor, constraint: Constraint, form: Form) -> bool:
        """Whether compilers are to call :meth:`fit_weight` of such weights as an operator."""
        return False

    def unit(
        self,
        z: Tensor,
        shortcut: Tensor | None,
        conv: Any,
        norm: Any,
        groups: int,
        slope: float,
        plans: UnitPlans,
    ) -> tuple[Tensor, Tensor] | None:
        """`conv_norm_act` in one, with gradients if they are wanted; None where it has to be done step by step."""
        return None

    # Batch norm, shortcut and activation ------------------------------------------------------------------------------

    def norm_act_forward(self, operands: Operands, tracked: Tensor | None = None) -> tuple[Saved, Tensor]:
        """`z` with what the backward pass needs, and the offset; in training, running statistics and count move on."""
        z, coefficients, mean = self.normalize(operands)
        of_images = torch.stack([mean, coefficients.deviation])
        var = _unbiased(coefficients.var, operands)
        of_features = torch.stack([coefficients.scale, coefficients.inverse, coefficients.mean, var])
        if operands.statistics.training:
            update(operands.statistics, coefficients.mean, var, tracked)
        u = without_idle(operands.u, len(operands.weight))
        z = fit_channels(z, operands.u.shape[1])
        return Saved(u, z, of_images, of_features, *operands[2:5]), coefficients.offset

    def norm_act_plain(self, operands: Operands, tracked: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """`z` and the offset in operations of torch, whose gradients are torch's own."""
        z, coefficients, _ = self.normalize(operands)
        if operands.statistics.training:
            update(operands.statistics, coefficients.mean, _unbiased(coefficients.var, operands), tracked)
        return fit_channels(z, operands.u.shape[1]), coefficients.offset

    def normalize(self, operands: Operands) -> tuple[Tensor, _Coefficients, Tensor]:
        """`z` without idle channels, the coefficients, and the mean (N, C) of `u`."""
        u, shortcut, pre_bias, weight, bias, statistics, groups, slope = operands
        u = without_idle(u, len(weight))
        shortcut = None if shortcut is None else self.like(without_idle(shortcut, len(weight)), u)
        mean, var, shortcut_mean = self.moments(u, shortcut)
        biased = mean if pre_bias is None else mean + pre_bias.to(mean.dtype)
        coefficients = _coefficients(biased, var, shortcut_mean, weight, bias, statistics, groups)
        shift = coefficients.shift
        if pre_bias is not None:
            shift = shift + coefficients.scale * pre_bias.to(mean.dtype)
        return self.apply(u, shortcut, coefficients.scale, shift, slope), coefficients, mean

    def norm_act_backward(
        self, dz: Tensor | None, d_offset: Tensor | None, saved: Saved, options: NormActOptions, statistics: Statistics
    ) -> Gradients:
        """From the gradients of `z` and of the offset."""
        u, z, of_images, (scale, inverse, *_), pre_bias, weight, bias = saved
        mean, deviation = of_images[:2]
        of_batch, has_shortcut, groups, slope = options
        channels, features, per_image = z.shape[1], u.shape[1], u[0, 0].numel()
        z = without_idle(z, features)
        dz = torch.zeros_like(z) if dz is None else self.like(without_idle(dz, features), u)
        dq_mean, dq_u = self.backward_moments(dz, z, u, mean, slope)

        # C(dq) is the gradient of y; the offset φ(u + b) + φ(y) adds its own, equal over a group and its positions. It
        # does not reach the shortcut, which is centered.
        lift = torch.zeros_like(dq_mean)
        if d_offset is not None:
            lift = spread(d_offset.to(mean.dtype), features) / (features // groups * per_image)
        centering = -spread(group_mean(dq_mean, groups), features)
        level = centering + lift
        d_mean = dq_mean + level
        d_bias = d_mean.sum(0) * per_image
        d_normal = dq_u * inverse + d_mean * (deviation * inverse)
        d_weight = d_normal.sum(0) * per_image
        if of_batch:
            share = statistics.share or _alone
            k1, k2 = share(d_mean.mean(0)), share(d_normal.mean(0))
        else:
            k1 = k2 = torch.zeros_like(scale)
        slant = scale * k2 * inverse
        dc_mean = scale * (d_mean - k1) - slant * deviation
        center = spread(group_mean(dc_mean, groups), features) - lift
        constant = scale * (level - k1) - slant * (deviation - mean) - center
        du, ds = self.backward_apply(dz, z, u, (scale, slant, constant, centering), slope, has_shortcut)
        d_pre_bias = None if pre_bias is None else ((dc_mean - center).sum(0) * per_image).to(pre_bias.dtype)
        ds = None if ds is None else fit_channels(ds, channels)
        du = fit_channels(du, channels)
        return Gradients(du, ds, d_pre_bias, d_weight.to(weight.dtype), d_bias.to(bias.dtype))

    def infer(
        self,
        u: Tensor,
        shortcut: Tensor | None,
        pre_bias: Tensor | None,
        norm: Norm | Folded,
        what: Features,
        slope: float,
    ) -> tuple[Tensor, Tensor]:
        """`norm_act` with running statistics and without a gradient of the parameters.

        With `m` an image's means (C,) of `v = u + b`, `φ` the mean over a group and `s` the shortcut:

            l = φ(undo m)                                            the level that the norm takes out
            r = φ(factor m + k - a G l)                              and the one that is left after it
            z = act(factor v + k - a G l - G (r + φ(s)) + s),        offset = l + r

        Args:
            u: (N, channels, *positions): the features, and idle channels after them.
            shortcut: of the shape of `u`, or None.
            pre_bias: `b`, what the convolution left out (C,); of the folded one, if it is folded.
            norm: `a`, `k`, and, if it is folded, `undo` and `factor`, which are 1 and `a` otherwise.
            what: the features among the channels.
            slope: 0 for ReLU, 1 for no activation.

        Returns:
            `z` like `u`, its idle channels zero, and the offset (N, g) to be added to the map's own.
        """
        features, groups = what
        v = without_idle(u, features)
        mean = means(v)
        scale, shift, undo, factor = (x.to(mean.dtype) for x in _folded(norm))
        if pre_bias is not None:
            mean = mean + pre_bias.to(mean.dtype)
        level = group_mean(undo * mean, groups)
        shift = shift - scale * spread(level, features)
        after = group_mean(factor * mean + shift, groups)
        floor = after
        if shortcut is not None:
            shortcut = without_idle(shortcut, features)
            floor = floor + group_mean(means(shortcut), groups)
        shift = shift - spread(floor, features)
        if pre_bias is not None:
            shift = shift + factor * pre_bias.to(mean.dtype)
        q = torch.addcmul(over(shift, v), v, over(factor, v))
        q = q if shortcut is None else q + shortcut
        return fit_channels(activated(q, slope).to(u.dtype), u.shape[1]), level + after

    def moments(self, u: Tensor, shortcut: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Mean and variance (N, C) of `u` over its positions, and the mean of the shortcut."""
        exact = statistics_dtype(u)
        positions = tuple(range(2, u.dim()))
        if not positions:
            return u.to(exact), torch.zeros_like(u, dtype=exact), None if shortcut is None else shortcut.to(exact)
        var, mean = torch.var_mean(u.to(exact), positions, correction=0)
        return mean, var, None if shortcut is None else shortcut.mean(positions, dtype=exact)

    def apply(self, u: Tensor, shortcut: Tensor | None, scale: Tensor, shift: Tensor, slope: float) -> Tensor:
        """`act(scale u + shift + shortcut)`, with `scale` (C,) and `shift` (N, C)."""
        q = torch.addcmul(over(shift, u), u, over(scale, u))
        if shortcut is not None:
            q = q.add_(shortcut)
        z = torch.relu_(q) if slope == 0 else activated(q, slope)
        return z.to(u.dtype)

    def backward_moments(self, dz: Tensor, z: Tensor, u: Tensor, mean: Tensor, slope: float) -> tuple[Tensor, Tensor]:
        """The means over positions (N, C) of `dq = dz act'` and of `dq (u - mean)`."""
        dq = through_activation(dz, z, slope).to(mean.dtype)
        positions = tuple(range(2, u.dim()))
        if not positions:
            return dq, torch.zeros_like(mean)
        return dq.mean(positions), (dq * (u.to(mean.dtype) - over(mean, u))).mean(positions)

    def backward_apply(
        self, dz: Tensor, z: Tensor, u: Tensor, coefficients: Sequence[Tensor], slope: float, with_shortcut: bool
    ) -> tuple[Tensor, Tensor | None]:
        """`scale dq - slant u + constant`, and `dq + centering` for the shortcut; the coefficients are in this order.

        The first two are (C,), the others (N, C).
        """
        scale, slant, constant, centering = coefficients
        dq = through_activation(dz, z, slope)
        du = torch.addcmul(over(constant, u), dq, over(scale, u)).sub_(over(slant, u) * u).to(u.dtype)
        return du, (dq + over(centering, u)).to(u.dtype) if with_shortcut else None

    def like(self, x: Tensor, u: Tensor) -> Tensor:
        """`x`, which is of the shape of `u`, as the passes want it beside `u`."""
        if x.shape != u.shape:
            raise ValueError(f"a map of shape {tuple(x.shape)} does not fit one of {tuple(u.shape)}")
        return x

    # Centering and activation -----------------------------------------------------------------------------------------

    def center(
        self, u: Tensor, bias: Tensor | None, offset: Tensor | None, what: Features, slope: float, cut: bool
    ) -> tuple[Tensor, Tensor]:
        """`z = act(u + b - G φ(u + b))`, and the level `φ(u + b)` (N, g), with the offset added to it if there is one.

        Args:
            u: (N, channels, *positions).
            bias: `b` of each feature.
            offset: (N, g).
            what: the features among the channels.
            slope: 0 for ReLU, 1 for no activation.
            cut: whether `z` has no idle channels, and is contiguous where there were some; otherwise it is like `u`.
        """
        v = biased(u, bias, what.count)
        level = group_mean(means(v), what.groups)
        z = activated(v - over(spread(level, what.count), v).to(v.dtype), slope)
        return z if cut else fit_channels(z, u.shape[1]), level if offset is None else offset + level

    def center_backward(
        self,
        dz: Tensor,
        z: Tensor,
        d_level: Tensor | None,
        shape: torch.Size,
        last: bool,
        bias: Tensor | None,
        what: Features,
        slope: float,
    ) -> tuple[Tensor, Tensor | None]:
        """The gradients of `u`, of this shape, channels-last or contiguous, and of the bias; `z` is from `center`."""
        dz, z = without_idle(dz, what.count), without_idle(z, what.count)
        dq = through_activation(dz, z, slope)
        added = centering_gradient(means(dq), d_level, what.groups, z[0, 0].numel())
        du, d_bias = with_bias(dq + over(spread(added, what.count), dq).to(dq.dtype), bias, shape[1])
        return du.contiguous(memory_format=torch.channels_last) if last else du, d_bias

    def halve(
        self, u: Tensor, bias: Tensor | None, offset: Tensor | None, what: Features, with_places: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """`relu(max (u + b) - G φ(u + b))` with the maxima of 2x2 pixels, the level as for `center`, and the places.

        Places are bytes like the map, from 0 to 3 in row-major order, and at least 4 where the ReLU is off.
        """
        v = biased(u, bias, what.count)
        level = group_mean(means(v), what.groups)
        places = None
        if with_places:
            top, where = F.max_pool2d(v, 2, return_indices=True)
            places = (where // u.shape[3] % 2 * 2 + where % u.shape[3] % 2).to(torch.uint8)
        else:
            top = F.max_pool2d(v, 2)
        z = torch.relu(top - over(spread(level, what.count), v).to(v.dtype))
        if places is not None:
            places = fit_channels(torch.where(z > 0, places, 4), u.shape[1])
        return fit_channels(z, u.shape[1]), level if offset is None else offset + level, places

    def halve_backward(
        self,
        dz: Tensor,
        places: Tensor,
        d_level: Tensor | None,
        shape: torch.Size,
        last: bool,
        bias: Tensor | None,
        what: Features,
    ) -> tuple[Tensor, Tensor | None]:
        """The gradients of `u`, of this shape, channels-last or not, and of the bias; `places` are from `halve`."""
        dz, places = without_idle(dz, what.count), without_idle(places, what.count)
        height, width = shape[2:]
        of_pixel = torch.arange(4, device=places.device).reshape(2, 2).repeat(height // 2, width // 2)
        four = [x.repeat_interleave(2, 2).repeat_interleave(2, 3) for x in (dz, places)]
        dq = F.pad(torch.where(four[1] == of_pixel, four[0], 0), (0, width % 2, 0, height % 2))
        added = centering_gradient(means(dq), d_level, what.groups, height * width)
        du, d_bias = with_bias(dq + over(spread(added, dq.shape[1]), dq).to(dq.dtype), bias, shape[1])
        return du.contiguous(memory_format=torch.channels_last) if last else du, d_bias

    # The input of Cerberus --------------------------------------------------------------------------------------------

    def join(self, images: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Images (N, 3, H, W) less `o = -log mean exp(-x)`, each color beside its mean: (N, 6, H, W), and `o` (N, 3).

        In this precision, with idle channels after the six where a map of this device has some.
        """
        z, offset = about_mean_color(images)
        average = z.mean((2, 3), keepdim=True).expand_as(z)
        joined = torch.stack([z, average], 2).flatten(1, 2).to(dtype)
        return joined.contiguous(memory_format=torch.channels_last) if is_last(images) else joined, offset

    # Weights ----------------------------------------------------------------------------------------------------------

    def takes_weight(self, weight: Tensor, constraint: Constraint | None, form: Form) -> bool:
        """Whether :meth:`fit_weight` is faster here than torch's operations one by one, and meets the constraint."""
        return False

    def fit_weight(self, weight: Tensor, constraint: Constraint | None, form: Form, wanted: bool) -> Tensor:
        """The weight in another form (channels, precision, layout), projected onto the constraint if there is one.

        Idle outputs and inputs become zero. Without `wanted` the sums of the constraint are to be 0: the linear part.
        """
        idle = [there - here for there, here in zip(form.shape[:2], weight.shape[:2], strict=True)]
        room = (*(0, 0) * (weight.dim() - 2), 0, idle[1], 0, idle[0])
        if min(idle) < 0:
            # A gradient, from which what is idle goes first.
            weight, idle = F.pad(weight, room), [0, 0]
        if constraint is not None:
            weight = constraint.project(weight, wanted)
        weight = weight.to(form.dtype)
        return (F.pad(weight, room) if any(idle) else weight).contiguous(memory_format=form.layout)


def update(statistics: Statistics, mean: Tensor, var: Tensor, tracked: Tensor | None) -> None:
    """Move the running statistics, if there are some, towards these, and count the batch."""
    with torch.no_grad():
        if tracked is not None:
            tracked.add_(1)
        if statistics.running_mean is not None and statistics.running_var is not None:
            statistics.running_mean.lerp_(mean.to(statistics.running_mean.dtype), statistics.momentum)
            statistics.running_var.lerp_(var.to(statistics.running_var.dtype), statistics.momentum)


def about_mean_color(images: Tensor) -> tuple[Tensor, Tensor]:
    """(N, 3, H, W) in log RGB, `-log` of linear values, to `z = x - o` and `o = -log mean exp(-x)` over the pixels."""
    pixels = images.flatten(2).to(torch.promote_types(images.dtype, torch.float32)).contiguous()
    offset = math.log(pixels.shape[2]) - (-pixels).logsumexp(2)
    return add_offset(images, -offset, 3), offset


def group_mean(values: Tensor, groups: int) -> Tensor:
    """(N, C) to (N, g)."""
    return values.unflatten(1, (groups, -1)).mean(2)


def spread(values: Tensor, features: int) -> Tensor:
    """(N, g) to (N, C)."""
    return values.repeat_interleave(features // values.shape[1], 1)


def means(x: Tensor) -> Tensor:
    """(N, C, *positions) to (N, C), in at least float32."""
    exact = statistics_dtype(x)
    return x.to(exact) if x.dim() == 2 else x.mean(tuple(range(2, x.dim())), dtype=exact)


def activated(q: Tensor, slope: float) -> Tensor:
    """`max(q, 0) + slope min(q, 0)`."""
    return torch.relu(q) if slope == 0 else q if slope == 1 else torch.where(q > 0, q, slope * q)


def through_activation(dz: Tensor, z: Tensor, slope: float) -> Tensor:
    """The gradient before the activation, whose sign its output keeps."""
    return dz if slope == 1 else torch.where(z > 0, dz, dz * slope if slope else 0)


def centering_gradient(mean: Tensor, d_level: Tensor | None, groups: int, positions: int) -> Tensor:
    """What centering and level add to the gradient `dq`, from its means (N, C): (N, g)."""
    added = -group_mean(mean, groups)
    return added if d_level is None else added + d_level.to(added.dtype) / (mean.shape[1] // groups * positions)


def biased(u: Tensor, bias: Tensor | None, features: int) -> Tensor:
    """`u + b` without idle channels."""
    u = without_idle(u, features)
    return u if bias is None else u + over(bias, u).to(u.dtype)


def with_bias(du: Tensor, bias: Tensor | None, channels: int) -> tuple[Tensor, Tensor | None]:
    """The gradient of the map with its idle channels, and that of the bias."""
    positions = tuple(range(2, du.dim()))
    return fit_channels(du, channels), None if bias is None else du.sum((0, *positions), dtype=bias.dtype)


def _folded(norm: Norm | Folded) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`a`, `k`, `undo` and `factor`."""
    if isinstance(norm, Folded):
        return norm
    scale = norm.weight * torch.rsqrt(norm.var + norm.eps)
    return scale, norm.bias - scale * norm.mean, torch.ones_like(scale), scale


def _coefficients(
    mean: Tensor,
    var: Tensor,
    shortcut_mean: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    statistics: Statistics,
    groups: int,
) -> _Coefficients:
    """From the mean and variance (N, C) of each feature of each image to what the pass over the map needs."""
    features = mean.shape[1]
    offset = group_mean(mean, groups)
    centered = mean - spread(offset, features)
    if statistics.training or statistics.running_mean is None or statistics.running_var is None:
        share = statistics.share or _alone
        batch_mean = share(centered.mean(0))
        # Not mean squares, which cancel in float32 where features are far from zero.
        batch_var = share(var.mean(0) + (centered - batch_mean).square().mean(0))
    else:
        batch_mean = statistics.running_mean.to(mean.dtype)
        batch_var = statistics.running_var.to(mean.dtype)
    inverse = torch.rsqrt(batch_var + statistics.eps)
    scale = weight.to(mean.dtype) * inverse
    deviation = centered - batch_mean
    after = group_mean(scale * deviation + bias.to(mean.dtype), groups)
    floor = after if shortcut_mean is None else after + group_mean(shortcut_mean, groups)
    shift = bias.to(mean.dtype) - scale * (mean - deviation) - spread(floor, features)
    return _Coefficients(scale, shift, deviation, inverse, offset + after, batch_mean, batch_var)


def _unbiased(var: Tensor, operands: Operands) -> Tensor:
    """The variance of a batch, of all processes, as an estimate."""
    processes = 1 if operands.statistics.share is None else dist.get_world_size()
    count = operands.u.numel() // operands.u.shape[1] * processes
    return var * (count / max(count - 1, 1))


def _alone(values: Tensor) -> Tensor:
    """The mean over all processes, where there is one."""
    return values
