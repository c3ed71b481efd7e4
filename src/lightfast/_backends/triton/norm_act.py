"""`norm_act` on a GPU: what its kernels are launched with, and the launches."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightfast._backends.operands import Features, Folded, Gradients, Norm, NormActOptions, Operands, Saved
from lightfast._backends.plans import Plans
from lightfast._backends.triton.launch import Launch, power_of_two

__all__ = [
    "Passes",
    "backward",
    "backward_passes",
    "can_infer",
    "forward",
    "forward_passes",
    "infer",
    "infer_passes",
    "merges",
]

_TILE = 4096  # Numbers of a map in a tile of the pass that applies, half as many on the way back, which reads three.
_STRIP = 8192  # And of those that add up,
_PROGRAMS = 256  # of which there should be as many programs.
_BLOCK = 8192  # Numbers in a tile of what is between the passes.
_IMAGE = 32768  # The most numbers of an image, filled up to powers of two, that one program takes.
_BELONGS = 65536  # The most pairs of channels and groups, likewise.
_BYTES_A_THREAD = 128

_plans = Plans()


class Passes(NamedTuple):
    """Three kernels in their order: a pass over the map, what follows from it, and the pass that applies that."""

    moments: Launch
    coefficients: Launch
    apply: Launch


@cache
def _kernels() -> Any:
    from lightfast._backends.triton import norm_act_kernels as kernels

    return kernels


def can_infer(what: Features) -> bool:
    """Whether :func:`infer` can take maps of so many features: one program sees all of an image's group means."""
    return power_of_two(what.count) * power_of_two(what.groups) <= _BELONGS


def forward(operands: Operands, tracked: Tensor | None) -> tuple[Saved, Tensor]:
    """As `Reference.norm_act_forward`; `tracked` counts batches.

    The statistics of the batch are written down where there are no running ones to be moved towards them.
    """
    u, shortcut, pre_bias, weight, bias, statistics, groups, slope = operands
    u, shortcut = _in_rows(u, shortcut)
    s = u if shortcut is None else shortcut
    images, features, training = u.shape[0], weight.shape[0], statistics.of_batch
    has_running = statistics.running_mean is not None and statistics.running_var is not None
    has = (shortcut is not None, pre_bias is not None, training, has_running, training and tracked is not None)
    numbers = (slope, statistics.momentum, statistics.eps)
    passes = forward_passes(u, s, features, groups, has, numbers)
    pre_bias, weight, bias = _in_a_row(pre_bias), weight.contiguous(), bias.contiguous()
    of_images = u.new_empty((5 if has[0] else 4, images, features), dtype=torch.float32)
    # Nothing is written to the rows of the batch's statistics if they are not used.
    of_features = (u.new_empty if training else u.new_zeros)((4, features), dtype=torch.float32)
    offset = u.new_empty((images, groups), dtype=torch.float32)
    z = torch.empty_like(u)
    mean, var = statistics.running_mean, statistics.running_var
    passes.moments(u, s, of_images)
    passes.coefficients(
        of_images, of_features, weight if pre_bias is None else pre_bias, weight, bias,
        weight if mean is None else mean, weight if var is None else var,
        of_features if tracked is None else tracked, offset,
    )  # fmt: skip
    passes.apply(u, s, of_images, of_features, z)
    return Saved(u, z, of_images, of_features, pre_bias, weight, bias), offset


def forward_passes(
    u: Tensor, s: Tensor, features: int, groups: int, has: tuple[bool, ...], numbers: tuple[float, float, float]
) -> Passes:
    """The launches of :func:`forward` for maps like these.

    Args:
        u: the map.
        s: the shortcut, or `u` if there is none.
        features: C.
        groups: g.
        has: whether there is a shortcut, a bias before the norm, statistics of the batch, running ones, and a count.
        numbers: slope, momentum and `ε`.
    """
    key = ("forward", u.dtype, u.shape, u.stride(), s.stride(), features, groups, has, numbers)
    return _plans.get(key, lambda: _forward_passes(u, s, features, groups, has, numbers))


def _forward_passes(
    u: Tensor, s: Tensor, features: int, groups: int, has: tuple[bool, ...], numbers: tuple[float, float, float]
) -> Passes:
    kernels = _kernels()
    images, positions, size = u.shape[0], u.shape[2] * u.shape[3], features // groups
    has_shortcut, has_pre_bias, training, has_running, has_tracked = has
    slope, momentum, eps = numbers
    count = images * positions
    maps = _Maps(u, s, "S_P", has_shortcut)
    coefficients = Launch(
        kernels.coefficients_kernel, (groups,),
        images, features, size, groups, count / max(count - 1, 1), momentum, eps,
        TRAINING=training, HAS_RUNNING=has_running, HAS_SHORTCUT=has_shortcut, HAS_PRE_BIAS=has_pre_bias,
        HAS_TRACKED=has_tracked, **_block(images, size),
    )  # fmt: skip
    return Passes(maps.moments(features, True), coefficients, maps.apply(features, slope))


class _Maps(NamedTuple):
    """The map of a pass and another beside it: a shortcut, or a gradient."""

    u: Tensor
    other: Tensor
    stride_of_other: str
    has_shortcut: bool

    def places(self) -> tuple[int, ...]:
        return (*_places(self.u), *_places(self.other))

    def known(self) -> dict[str, Any]:
        """What the compiler is told of the maps: how many channels, and the strides of positions, by their names."""
        return {"CHANNELS": self.u.shape[1], "U_P": _step(self.u), self.stride_of_other: _step(self.other)}

    def moments(self, features: int, with_var: bool) -> Launch:
        strip = _strip(self.u)
        grid, positions = _columns(self.u, strip), self.u.shape[2] * self.u.shape[3]
        constants = {"WITH_VAR": with_var, "HAS_SHORTCUT": self.has_shortcut, **self.known(), **strip}
        return Launch(_kernels().moments_kernel, grid, positions, features, *self.places(), **constants)

    def apply(self, features: int, slope: float) -> Launch:
        tile = _tile(self.u, _TILE)
        grid, positions = _tiles(self.u, tile), self.u.shape[2] * self.u.shape[3]
        constants = {"HAS_SHORTCUT": self.has_shortcut, **self.known(), **tile}
        return Launch(_kernels().apply_kernel, grid, positions, features, slope, *self.places(), **constants)


def backward(dz: Tensor | None, d_offset: Tensor | None, saved: Saved, options: NormActOptions) -> Gradients:
    """As `Reference.norm_act_backward`."""
    u, z, of_images, of_features, pre_bias, weight, bias = saved
    u, _ = _in_rows(u, None)
    dz = torch.zeros_like(z) if dz is None else dz
    if not merges(dz):
        dz = dz.contiguous(memory_format=torch.channels_last if u.stride(1) == 1 else torch.contiguous_format)
    images, features = u.shape[0], weight.shape[0]
    has = (d_offset is not None, pre_bias is not None)
    passes = backward_passes(u, dz, features, has, options)
    back = u.new_empty(4 * images * features + features, dtype=torch.float32)
    d_weight, d_bias = torch.empty_like(weight), torch.empty_like(bias)
    d_pre_bias = None if pre_bias is None else torch.empty_like(pre_bias)
    du = torch.empty_like(z)
    ds = torch.empty_like(z) if options.has_shortcut else None
    passes.moments(dz, z, u, of_images, back)
    passes.coefficients(
        back, of_images, of_features, back if d_offset is None else d_offset.contiguous(), d_weight, d_bias,
        d_bias if d_pre_bias is None else d_pre_bias,
    )  # fmt: skip
    passes.apply(dz, z, u, of_features, back, du, du if ds is None else ds)
    return Gradients(du, ds, d_pre_bias, d_weight, d_bias)


def backward_passes(u: Tensor, dz: Tensor, features: int, has: tuple[bool, bool], options: NormActOptions) -> Passes:
    """The launches of :func:`backward` for maps like these; `has` a gradient of the offset, a bias before the norm."""
    key = ("backward", u.dtype, u.shape, u.stride(), dz.stride(), features, has, options)
    return _plans.get(key, lambda: _backward_passes(u, dz, features, has, options))


def _backward_passes(u: Tensor, dz: Tensor, features: int, has: tuple[bool, bool], options: NormActOptions) -> Passes:
    kernels = _kernels()
    of_batch, has_shortcut, groups, slope = options
    images, positions, size = u.shape[0], u.shape[2] * u.shape[3], features // groups
    maps = _Maps(u, dz, "D_P", has_shortcut)
    strip, tile, known = _strip(u), _tile(u, _TILE // 2), maps.known()
    numbers = (positions, features, slope, *maps.places())
    return Passes(
        Launch(kernels.backward_moments_kernel, _columns(u, strip), *numbers, **known, **strip),
        Launch(
            kernels.backward_coefficients_kernel, (groups,), images, features, size, groups, positions,
            TRAINING=of_batch, HAS_OFFSET=has[0], HAS_PRE_BIAS=has[1], **_block(images, size),
        ),
        Launch(kernels.backward_apply_kernel, _tiles(u, tile), *numbers, HAS_SHORTCUT=has_shortcut, **known, **tile),
    )  # fmt: skip


def infer(
    u: Tensor, shortcut: Tensor | None, pre_bias: Tensor | None, norm: Norm | Folded, what: Features, slope: float
) -> tuple[Tensor, Tensor]:
    """As `Reference.infer`: a small map is read once, a large one twice."""
    u, shortcut = _in_rows(u, shortcut)
    s = u if shortcut is None else shortcut
    folded = isinstance(norm, Folded)
    eps = norm.eps if isinstance(norm, Norm) else 0.0
    has = (folded, pre_bias is not None, shortcut is not None)
    plan = infer_passes(u, s, what, has, slope, eps)
    parts = [x.contiguous() for x in norm[:4]]
    parts.insert(0, parts[0] if pre_bias is None else pre_bias.contiguous())
    z, offset = torch.empty_like(u), u.new_empty((u.shape[0], what.groups), dtype=torch.float32)
    if isinstance(plan, Launch):
        plan(u, s, *parts, z, offset)
        return z, offset
    of_images = u.new_empty((5, u.shape[0], what.count), dtype=torch.float32)
    of_features = u.new_empty((1, what.count), dtype=torch.float32)
    plan.moments(u, s, of_images)
    plan.coefficients(of_images, of_features, *parts, offset)
    plan.apply(u, s, of_images, of_features, z)
    return z, offset


def infer_passes(
    u: Tensor, s: Tensor, what: Features, has: tuple[bool, bool, bool], slope: float, eps: float
) -> Launch | Passes:
    """The launch of :func:`infer` for maps like these, or its launches.

    `has` a norm that is folded, a bias before it, a shortcut.
    """
    key = ("infer", u.dtype, u.shape, u.stride(), s.stride(), what, has, slope, eps)
    return _plans.get(key, lambda: _infer_passes(u, s, what, has, slope, eps))


def _infer_passes(
    u: Tensor, s: Tensor, what: Features, has: tuple[bool, bool, bool], slope: float, eps: float
) -> Launch | Passes:
    """One program an image, or a pass for the means, and one to apply what follows from them."""
    kernels = _kernels()
    images, channels, positions = u.shape[0], u.shape[1], u.shape[2] * u.shape[3]
    features, groups = what
    size, block_p, block_c, block_g = features // groups, *map(power_of_two, (positions, channels, groups))
    folded, has_pre_bias, has_shortcut = has
    constants = {
        "FOLDED": folded,
        "HAS_PRE_BIAS": has_pre_bias,
        "HAS_SHORTCUT": has_shortcut,
        "BLOCK_C": block_c,
        "BLOCK_G": block_g,
    }
    if block_p * block_c <= _IMAGE:
        (u_n, u_c, u_p), (s_n, s_c, s_p) = _strides(u), _strides(s)
        return Launch(
            kernels.infer_kernel, (images,), positions, features, size, groups, slope, eps,
            CHANNELS=channels, U_N=u_n, U_C=u_c, U_P=u_p, S_N=s_n, S_C=s_c, S_P=s_p, BLOCK_P=block_p, **constants,
            num_warps=_warps(max(block_p, block_g) * block_c, u.element_size()),
        )  # fmt: skip
    maps = _Maps(u, s, "S_P", has_shortcut)
    coefficients = Launch(
        kernels.infer_coefficients_kernel, (images,), features, size, groups, eps, **constants,
        num_warps=_warps(block_g * block_c, 4),
    )  # fmt: skip
    return Passes(maps.moments(features, False), coefficients, maps.apply(features, slope))


def _step(x: Tensor) -> int:
    """The stride of positions in a map whose rows follow one another; that of an axis of size 1 says nothing."""
    return x.stride(3) if x.shape[3] > 1 else x.stride(2) if x.shape[2] > 1 else 1


def _strides(x: Tensor) -> tuple[int, int, int]:
    """Of images, channels, positions."""
    return x.stride(0), x.stride(1), _step(x)


def _places(x: Tensor) -> tuple[int, int]:
    """The strides of images, in multiples of that of positions, and of channels."""
    return x.stride(0) // (_step(x) or 1), x.stride(1)


def merges(x: Tensor) -> bool:
    """Whether rows follow one another, so that pixels have one stride; and images, at so many times it."""
    _, _, height, width = x.shape
    by_image, _, by_row, by_column = x.stride()
    if width > 1:
        return (height == 1 or by_row == width * by_column) and by_image % (by_column or 1) == 0
    return by_image % ((by_row or 1) if height > 1 else 1) == 0


def _in_rows(u: Tensor, shortcut: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Both as maps whose pixels have one stride; `u` also fills its place in memory, so that others can be like it."""
    if shortcut is not None and shortcut.shape != u.shape:
        raise ValueError(f"a shortcut of shape {tuple(shortcut.shape)} does not fit a map of {tuple(u.shape)}")
    fills = u.is_contiguous() or u.is_contiguous(memory_format=torch.channels_last)
    u = u if fills and merges(u) else u.contiguous()
    return u, shortcut if shortcut is None or merges(shortcut) else shortcut.contiguous()


def _in_a_row(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


def _tile(x: Tensor, numbers: int) -> dict[str, int]:
    """Positions and channels of a tile: wide in the direction in which the map lies in memory."""
    channels = min(64, power_of_two(x.shape[1])) if x.stride(1) == 1 else 1
    return {"BLOCK_P": min(power_of_two(x.shape[2] * x.shape[3]), numbers // channels), "BLOCK_C": channels}


def _strip(x: Tensor) -> dict[str, int]:
    """The tile of a pass that adds up an image's positions: as narrow as it takes to give every processor programs."""
    images, channels = x.shape[:2]
    wide = min(64, power_of_two(channels)) if x.stride(1) == 1 else 1
    while wide > 16 and images * -(-channels // wide) < _PROGRAMS:
        wide //= 2
    long = min(power_of_two(x.shape[2] * x.shape[3]), _STRIP // wide)
    return {"BLOCK_P": long, "BLOCK_C": wide, "num_warps": min(16, max(1, long * wide // 1024))}


def _columns(x: Tensor, strip: dict[str, int]) -> tuple[int, int]:
    """The programs of a pass that adds up: one a strip."""
    return x.shape[0], -(-x.shape[1] // strip["BLOCK_C"])


def _tiles(x: Tensor, tile: dict[str, int]) -> tuple[int, int, int]:
    """The programs of a pass that applies: one a tile."""
    positions = x.shape[2] * x.shape[3]
    return x.shape[0], -(-x.shape[1] // tile["BLOCK_C"]), -(-positions // tile["BLOCK_P"])


def _block(images: int, size: int) -> dict[str, int]:
    """Images and features of a tile of what is between the passes, for groups of `size` features."""
    features = power_of_two(size)
    rows = max(1, min(power_of_two(images), _BLOCK // features))
    return {"BLOCK_N": rows, "BLOCK_S": features, "num_warps": min(16, max(4, rows * features // 1024))}


def _warps(numbers: int, size: int) -> int:
    """How many warps share the work on so many numbers of `size` bytes each."""
    return min(16, max(4, numbers * size // (32 * _BYTES_A_THREAD)))
