"""`norm_act` on a GPU, by the Triton kernels."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lightfast.nn._native import observed
from lightfast.nn._statistics import Gradients, How, Operands, Passed
from lightfast.nn._triton import available, power_of_two

__all__ = [
    "Folded",
    "Norm",
    "backward_passes",
    "can_infer",
    "filled_up",
    "forward_passes",
    "infer",
    "norm_act_kernels",
    "padded_width",
    "suits",
    "takes",
]

_TILE = 4096  # Numbers of a map in a tile of the pass that applies, half as many on the way back, which reads three.
_STRIP = 8192  # And of those that add up,
_PROGRAMS = 256  # of which there should be as many programs.
_BLOCK = 8192  # Numbers in a tile of what is between the passes.
_IMAGE = 32768  # The most numbers of an image, filled up to powers of two, that one program takes.
_BELONGS = 65536  # The most pairs of channels and groups, likewise.
_BYTES_A_THREAD = 128


@cache
def _kernels() -> Any:
    from lightfast.nn import _norm_act_kernels as kernels

    return kernels


def suits(x: Tensor, features: int, groups: int) -> bool:
    """Whether the kernels can take maps like `x`: on a GPU, in a precision they know, and unobserved.

    A compiler is shown operators instead, and transforms of `torch.func` go through the plain version alone.
    """
    return x.is_cuda and not observed(x) and available() and takes(x, features, groups)


def takes(x: Tensor, features: int, groups: int) -> bool:
    """Whether the kernels are written for maps like `x`, wherever it is."""
    known = x.dtype in (torch.float32, torch.bfloat16, torch.float16)
    return known and x.dim() == 4 and features // groups <= 2048


def padded_width(features: int, place: Tensor, dtype: torch.dtype) -> int:
    """How many channels a map of `features` features gets in this precision where this tensor is.

    A GPU wants pixels of a multiple of 16 bytes, which is what a thread loads at once.

    >>> padded_width(33, torch.empty(0), torch.bfloat16), padded_width(33, torch.empty(0), torch.float32)
    (33, 33)
    """
    return filled_up(features, dtype) if place.is_cuda else features


def filled_up(features: int, dtype: torch.dtype) -> int:
    """To a multiple of 16 bytes, and of 4.

    >>> filled_up(33, torch.bfloat16), filled_up(33, torch.float32)
    (40, 36)
    """
    at_once = max(4, 16 // dtype.itemsize)
    return -(-features // at_once) * at_once


def norm_act_kernels(given: Operands, tracked: Tensor | None) -> tuple[Tensor, Tensor]:
    """As `norm_act`, for `u` with idle channels after its features; `tracked` counts batches."""
    u, shortcut, pre_bias, weight, bias, statistics, groups, slope = given
    mean, var = statistics.running_mean, statistics.running_var
    differentiable = any(x is not None and x.requires_grad for x in given[:5])
    for_use = not statistics.training and not (differentiable and torch.is_grad_enabled())
    if for_use and mean is not None and var is not None and can_infer(len(weight), groups):
        return infer(u, shortcut, pre_bias, Norm(weight, bias, mean, var, statistics.eps), groups, slope)
    with torch.cuda.device_of(u):
        return _NormActKernels.apply(tracked, *given)


class Norm(NamedTuple):
    """A batch norm with running statistics: `γ`, `β`, `μ` and `σ²` of each feature (C,), and `ε`."""

    weight: Tensor
    bias: Tensor
    mean: Tensor
    var: Tensor
    eps: float


class Folded(NamedTuple):
    """A batch norm `a v + k` of which all or nothing is in the convolution's weight already; all (C,), float32 best.

    The convolution gives `v / undo`, so that `a v = factor v / undo`.
    """

    scale: Tensor
    shift: Tensor
    undo: Tensor
    factor: Tensor


def can_infer(features: int, groups: int) -> bool:
    """Whether :func:`infer` can take maps of so many features: one program sees all of an image's group means."""
    return power_of_two(features) * power_of_two(groups) <= _BELONGS


def infer(
    u: Tensor, shortcut: Tensor | None, pre_bias: Tensor | None, how: Norm | Folded, groups: int, slope: float
) -> tuple[Tensor, Tensor]:
    """As `norm_act` with running statistics and without a gradient: a small map is read once, a large one twice.

    Args:
        u: (N, channels, H, W): the features, in `groups` equal contiguous runs, and idle channels after them.
        shortcut: of the shape of `u`, or None.
        pre_bias: what the convolution left out (C,); of the folded one, if it is folded.
        how: the norm.
        groups: g.
        slope: 0 for ReLU, 1 for no activation.

    Returns:
        `z` like `u`, its idle channels zero, and the offset (N, g) to be added to the map's own.
    """
    u, shortcut = _in_rows(u, shortcut)
    pre_bias, how = (
        _in_a_row(pre_bias),
        how._replace(**{name: _in_a_row(getattr(how, name)) for name in how._fields[:4]}),
    )
    z = u.new_empty_strided(u.shape, u.stride())
    offset = u.new_empty(u.shape[0], groups, dtype=torch.float32)
    numbers = power_of_two(u.shape[2] * u.shape[3]) * power_of_two(u.shape[1])
    by = _infer_at_once if numbers <= _IMAGE else _infer_in_passes
    with torch.cuda.device_of(u):
        by(u, shortcut, pre_bias, how, slope, z, offset)
    return z, offset


def _step(x: Tensor) -> int:
    """The stride of positions in a map whose rows follow one another; that of an axis of size 1 says nothing."""
    return x.stride(3) if x.shape[3] > 1 else x.stride(2) if x.shape[2] > 1 else 1


def _strides(x: Tensor) -> tuple[int, int, int]:
    """Of images, channels, positions."""
    return x.stride(0), x.stride(1), _step(x)


def _places(x: Tensor) -> tuple[int, int]:
    """The strides of images, in multiples of that of positions, and of channels."""
    return x.stride(0) // (_step(x) or 1), x.stride(1)


def _merges(x: Tensor) -> bool:
    """Whether rows follow one another, so that pixels have one stride; and images, at so many times it."""
    follow = min(x.shape[2:]) == 1 or x.stride(2) == x.shape[3] * x.stride(3)
    return follow and x.stride(0) % (_step(x) or 1) == 0


def _in_rows(u: Tensor, shortcut: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Both as maps whose pixels have one stride."""
    if shortcut is not None and shortcut.shape != u.shape:
        raise ValueError(f"a shortcut of shape {tuple(shortcut.shape)} does not fit a map of {tuple(u.shape)}")
    u = u if _merges(u) else u.contiguous()
    return u, shortcut if shortcut is None or _merges(shortcut) else shortcut.contiguous()


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


def _known(u: Tensor, **others: Tensor) -> dict[str, int]:
    """What the compiler is told of the maps: how many channels, and the strides of positions, by their names."""
    return {"CHANNELS": u.shape[1], "U_P": _step(u), **{name: _step(x) for name, x in others.items()}}


def _block(images: int, size: int) -> dict[str, int]:
    """Images and features of a tile of what is between the passes, for groups of `size` features."""
    features = power_of_two(size)
    rows = max(1, min(power_of_two(images), _BLOCK // features))
    return {"BLOCK_N": rows, "BLOCK_S": features, "num_warps": min(16, max(4, rows * features // 1024))}


def _warps(numbers: int, size: int) -> int:
    """How many warps share the work on so many numbers of `size` bytes each."""
    return min(16, max(4, numbers * size // (32 * _BYTES_A_THREAD)))


def _of_norm(
    how: Norm | Folded, pre_bias: Tensor | None, shortcut: Tensor | None, channels: int, groups: int
) -> tuple[tuple[Tensor, ...], float, dict[str, Any]]:
    """What both ways of inference hand to their kernels: pointers, `ε`, and constants."""
    eps = how.eps if isinstance(how, Norm) else 0.0
    constants = {
        "FOLDED": isinstance(how, Folded),
        "HAS_PRE_BIAS": pre_bias is not None,
        "HAS_SHORTCUT": shortcut is not None,
        "BLOCK_C": power_of_two(channels),
        "BLOCK_G": power_of_two(groups),
    }
    return (how[0] if pre_bias is None else pre_bias, *how[:4]), eps, constants


def _infer_at_once(
    u: Tensor,
    shortcut: Tensor | None,
    pre_bias: Tensor | None,
    how: Norm | Folded,
    slope: float,
    z: Tensor,
    offset: Tensor,
) -> None:
    """One program an image."""
    images, channels, positions = u.shape[0], u.shape[1], u.shape[2] * u.shape[3]
    features, groups = len(how[0]), offset.shape[1]
    pointers, eps, constants = _of_norm(how, pre_bias, shortcut, channels, groups)
    s = u if shortcut is None else shortcut
    (u_n, u_c, u_p), (s_n, s_c, s_p) = _strides(u), _strides(s)
    block_p = power_of_two(positions)
    _kernels().infer_kernel[(images,)](
        u, s, *pointers, z, offset, positions, features, features // groups, groups, slope, eps,
        CHANNELS=channels, U_N=u_n, U_C=u_c, U_P=u_p, S_N=s_n, S_C=s_c, S_P=s_p, BLOCK_P=block_p, **constants,
        num_warps=_warps(max(block_p, constants["BLOCK_G"]) * constants["BLOCK_C"], u.element_size()),
    )  # fmt: skip


def _infer_in_passes(
    u: Tensor,
    shortcut: Tensor | None,
    pre_bias: Tensor | None,
    how: Norm | Folded,
    slope: float,
    z: Tensor,
    offset: Tensor,
) -> None:
    """A pass for the means, and one to apply what follows from them."""
    kernels = _kernels()
    images, channels, positions = u.shape[0], u.shape[1], u.shape[2] * u.shape[3]
    features, groups = len(how[0]), offset.shape[1]
    pointers, eps, constants = _of_norm(how, pre_bias, shortcut, channels, groups)
    s = u if shortcut is None else shortcut
    places, known = (*_places(u), *_places(s)), {**_known(u, S_P=s), "HAS_SHORTCUT": shortcut is not None}
    mean, s_mean, shift = u.new_empty(3, images, features, dtype=torch.float32)
    factor = u.new_empty(features, dtype=torch.float32)
    kernels.moments_kernel[_columns(u, strip := _strip(u))](
        u, s, mean, mean, s_mean, positions, features, *places, WITH_VAR=False, **known, **strip
    )
    kernels.infer_coefficients_kernel[(images,)](
        mean, s_mean, *pointers, factor, shift, offset, features, features // groups, groups, eps, **constants,
        num_warps=_warps(constants["BLOCK_G"] * constants["BLOCK_C"], mean.element_size()),
    )  # fmt: skip
    kernels.apply_kernel[_tiles(u, tile := _tile(u, _TILE))](
        u, s, factor, shift, z, positions, features, slope, *places, **known, **tile
    )


def forward_passes(given: Operands, tracked: Tensor | None) -> tuple[Passed, Tensor]:
    """`z` with what the way back needs, and the offset.

    The statistics of the batch are written down where there are no running ones to be moved towards them.
    """
    kernels = _kernels()
    statistics, groups, slope = given.statistics, given.groups, given.slope
    u, shortcut = _in_rows(given.u, given.shortcut)
    pre_bias, weight, bias = _in_a_row(given.pre_bias), given.weight.contiguous(), given.bias.contiguous()
    images, positions = u.shape[0], u.shape[2] * u.shape[3]
    features = weight.shape[0]
    training = statistics.of_batch
    of_images = u.new_empty(4, images, features, dtype=torch.float32)
    mean, deviation, var, shift = of_images
    s_mean = torch.empty_like(mean) if shortcut is not None else mean
    of_features = (u.new_empty if training else u.new_zeros)(4, features, dtype=torch.float32)
    scale, inverse, batch_mean, batch_var = of_features
    offset = u.new_empty(images, groups, dtype=torch.float32)
    z = u.new_empty_strided(u.shape, u.stride())
    s = u if shortcut is None else shortcut
    places, known = (*_places(u), *_places(s)), {**_known(u, S_P=s), "HAS_SHORTCUT": shortcut is not None}
    kernels.moments_kernel[_columns(u, strip := _strip(u))](
        u, s, mean, var, s_mean, positions, features, *places, WITH_VAR=True, **known, **strip
    )
    size = features // groups
    count = images * positions
    running = statistics.running_mean is not None and statistics.running_var is not None
    kernels.coefficients_kernel[(groups,)](
        mean, var, s_mean, weight if pre_bias is None else pre_bias, weight, bias,
        batch_mean if statistics.running_mean is None else statistics.running_mean,
        batch_var if statistics.running_var is None else statistics.running_var,
        scale if tracked is None else tracked,
        scale, inverse, shift, deviation, offset,
        images, features, size, groups, count / max(count - 1, 1), statistics.momentum, statistics.eps,
        TRAINING=training, HAS_RUNNING=running, HAS_SHORTCUT=shortcut is not None,
        HAS_PRE_BIAS=pre_bias is not None, HAS_TRACKED=training and tracked is not None, **_block(images, size),
    )  # fmt: skip
    kernels.apply_kernel[_tiles(u, tile := _tile(u, _TILE))](
        u, s, scale, shift, z, positions, features, slope, *places, **known, **tile
    )
    return Passed(u, z, of_images[:2], of_features, pre_bias, weight, bias), offset


def backward_passes(dz: Tensor | None, d_offset: Tensor | None, passed: Passed, how: How) -> Gradients:
    """From the gradients of `z` and of the offset."""
    kernels = _kernels()
    (u, _), z = _in_rows(passed.u, None), passed.z
    (mean, deviation), (scale, inverse, *_) = passed.of_images, passed.of_features
    pre_bias, weight, bias = passed[4:]
    of_batch, has_shortcut, groups, slope = how
    dz = torch.zeros_like(z) if dz is None else dz
    if not _merges(dz):
        dz = dz.contiguous(memory_format=torch.channels_last if u.stride(1) == 1 else torch.contiguous_format)
    images, positions = u.shape[0], u.shape[2] * u.shape[3]
    features = weight.shape[0]
    first, second, constant, centring = u.new_empty(4, images, features, dtype=torch.float32)
    slant = torch.empty_like(scale)
    d_weight, d_bias = torch.empty_like(weight), torch.empty_like(bias)
    d_pre_bias = None if pre_bias is None else torch.empty_like(pre_bias)
    places, known = (*_places(u), *_places(dz)), _known(u, D_P=dz)
    kernels.backward_moments_kernel[_columns(u, strip := _strip(u))](
        dz, z, u, mean, first, second, positions, features, slope, *places, **known, **strip
    )
    size = features // groups
    kernels.backward_coefficients_kernel[(groups,)](
        first, second, mean, deviation, scale, inverse, scale if d_offset is None else d_offset.contiguous(),
        d_weight, d_bias, d_bias if d_pre_bias is None else d_pre_bias, slant, constant, centring,
        images, features, size, groups, positions,
        TRAINING=of_batch, HAS_OFFSET=d_offset is not None, HAS_PRE_BIAS=d_pre_bias is not None,
        **_block(images, size),
    )  # fmt: skip
    du = torch.empty_like(z)
    ds = torch.empty_like(z) if has_shortcut else None
    kernels.backward_apply_kernel[_tiles(u, tile := _tile(u, _TILE // 2))](
        dz, z, u, scale, slant, constant, centring, du, du if ds is None else ds,
        positions, features, slope, *places, HAS_SHORTCUT=ds is not None, **known, **tile,
    )  # fmt: skip
    return Gradients(du, ds, d_pre_bias, d_weight, d_bias)


class _NormActKernels(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tracked: Tensor | None, *operands: Any) -> tuple[Tensor, Tensor]:
        given = Operands(*operands)
        passed, offset = forward_passes(given, tracked)
        ctx.save_for_backward(*passed)
        ctx.how = given.how
        ctx.set_materialize_grads(False)
        return passed.z, offset

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        dz, d_offset = grads
        return None, *backward_passes(dz, d_offset, Passed(*ctx.saved_tensors), ctx.how), None, None, None
