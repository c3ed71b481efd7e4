"""`center_act`, `center_relu_halve` and the input of Cerberus on a GPU: what their kernels are launched with."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor

from lightfast._backends.operands import Features
from lightfast._backends.tensors import is_last
from lightfast._backends.triton.launch import power_of_two

__all__ = ["backward_center", "backward_halve", "can_center", "can_join", "center", "halve", "join"]

_TILE = 4096  # How many numbers a program works on at a time.
_WHOLE = 16384  # The most numbers of an image, filled up to powers of two, that one program takes.
_PAIRS = 65536  # The most pairs of channels and groups, likewise.
_PROGRAMS = 1024  # So many keep a large GPU busy.
_SUMS = 8192  # The most partial sums of an image.
_SPLITS = 32
_JOINED_PIXELS = 65536  # For larger images, one program each is too few.
_NUMBERS_A_WARP = 1024


@cache
def _kernels() -> Any:
    from lightfast._backends.triton import center_act_kernels as kernels

    return kernels


def can_center(what: Features) -> bool:
    """Whether the kernels know maps of so many features: one program sees all of an image's group means."""
    return power_of_two(what.count) * power_of_two(what.groups) <= _PAIRS


def can_join(images: Tensor) -> bool:
    """Whether :func:`join` can take these images."""
    pixels = images.shape[2] * images.shape[3]
    return images.dtype == torch.float32 and images.numel() > 0 and pixels <= _JOINED_PIXELS


def center(
    u: Tensor, bias: Tensor | None, offset: Tensor | None, what: Features, slope: float, cut: bool
) -> tuple[Tensor, Tensor]:
    """`z = act(u + b - G φ(u + b))`, and the level `φ(u + b)` (N, g), with the offset added to it if there is one.

    Args:
        u: (N, C, H, W).
        bias: of each feature.
        offset: (N, g).
        what: the features among the channels.
        slope: 0 for ReLU, 1 for no activation.
        cut: whether `z` is contiguous and has no idle channels; otherwise it is like `u`.
    """
    u = _in_a_row(u)
    z = u.new_empty(len(u), what.count, *u.shape[2:]) if cut else torch.empty_like(u)
    level = u.new_empty(len(u), what.groups, dtype=torch.float32)
    positions = u.shape[2] * u.shape[3]
    block_p, block_c = _tile(u, positions)
    whole = power_of_two(positions) * block_c <= _WHOLE
    if whole:
        block_p = power_of_two(positions)
    sums = level[None] if whole else _sums(u, None, slope)
    _kernels().center_kernel[(len(u), -(-positions // block_p))](
        u, sums, _or(bias, level), _or(_plain(offset), level), z, level, len(u), positions, slope,
        CHANNELS=u.shape[1], LAST=_lies_last(u), Z_CHANNELS=z.shape[1], Z_LAST=_lies_last(z),
        FEATURES=what.count, GROUPS=what.groups, HAS_BIAS=bias is not None, HAS_OFFSET=offset is not None,
        WHOLE=whole, SPLITS=len(sums), BLOCK_P=block_p, BLOCK_C=block_c, BLOCK_G=power_of_two(what.groups),
        num_warps=_warps(block_p * block_c),
    )  # fmt: skip
    return z, level


def backward_center(
    dz: Tensor,
    z: Tensor,
    d_level: Tensor | None,
    shape: torch.Size,
    last: bool,
    bias: Tensor | None,
    what: Features,
    slope: float,
) -> tuple[Tensor, Tensor | None]:
    """The gradients of `u`, of this shape, channels-last or contiguous, and of the bias; `z` is from :func:`center`."""
    dz = _fit(dz, z)
    du = _room(shape, last, dz)
    d_bias = None if bias is None else torch.empty_like(bias)
    sums = _sums(dz, z, slope)
    positions = du.shape[2] * du.shape[3]
    block_p, block_c = _tile(du, positions)
    programs, constants = _of_gradient(sums, d_level, bias, what)
    _kernels().backward_center_kernel[(programs, -(-positions // block_p))](
        dz, z, sums, _or(_plain(d_level), sums), du, _or(d_bias, sums), len(du), positions, slope,
        CHANNELS=du.shape[1], LAST=_lies_last(du), Z_CHANNELS=z.shape[1], Z_LAST=_lies_last(z),
        BLOCK_P=block_p, BLOCK_C=block_c, num_warps=_warps(2 * block_p * block_c, 8), **constants,
    )  # fmt: skip
    return du, d_bias


def halve(
    u: Tensor, bias: Tensor | None, offset: Tensor | None, what: Features, with_places: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """`relu(max (u + b) - G φ(u + b))` with the maxima of 2x2 pixels, the level as for :func:`center`, and the places.

    Places are bytes like the map, from 0 to 3 in row-major order, and 4 where the ReLU is off.
    """
    u = _in_a_row(u)
    images, channels, height, width = u.shape
    outputs = (height // 2) * (width // 2)
    shape = torch.Size((images, channels, height // 2, width // 2))
    z = _room(shape, is_last(u), u)
    places = torch.empty_like(z, dtype=torch.uint8) if with_places else None
    level = u.new_empty(images, what.groups, dtype=torch.float32)
    block_p, block_c = _tile(u, outputs, 2)
    whole = 4 * power_of_two(outputs) * block_c <= _WHOLE
    if whole:
        block_p = power_of_two(outputs)
    sums = level[None] if whole else u.new_empty(_splits(u, outputs, block_p), images, channels, dtype=torch.float32)
    tensors = (_or(bias, level), _or(_plain(offset), level))
    constants = {
        "CHANNELS": channels,
        "LAST": is_last(u),
        "FEATURES": what.count,
        "GROUPS": what.groups,
        "HAS_BIAS": bias is not None,
        "HAS_OFFSET": offset is not None,
        "HAS_PLACES": with_places,
        "SPLITS": len(sums),
        "BLOCK_C": block_c,
        "BLOCK_G": power_of_two(what.groups),
    }
    _kernels().halve_kernel[(images, len(sums))](
        u, *tensors, z, _or(places, level), sums, level, images, height, width,
        ODD=bool(height % 2 or width % 2), WHOLE=whole, BLOCK_P=block_p, num_warps=_warps(4 * block_p * block_c),
        **constants,
    )  # fmt: skip
    if not whole:
        block_p, _ = _tile(u, outputs)
        _kernels().rectify_kernel[(images, -(-outputs // block_p))](
            z, _or(places, level), sums, *tensors, level, images, outputs, height * width,
            BLOCK_P=block_p, num_warps=_warps(block_p * block_c), **constants,
        )  # fmt: skip
    return z, level, places


def backward_halve(
    dz: Tensor,
    places: Tensor,
    d_level: Tensor | None,
    shape: torch.Size,
    last: bool,
    bias: Tensor | None,
    what: Features,
) -> tuple[Tensor, Tensor | None]:
    """The gradients of `u`, of this shape, channels-last or contiguous, and of the bias; `places` are of the maxima."""
    dz = dz.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
    images, channels, height, width = shape
    du = _room(shape, last, dz)
    d_bias = None if bias is None else torch.empty_like(bias)
    sums = _sums(dz, places, 0.0)
    outputs = (height // 2) * (width // 2)
    block_p, block_c = _tile(du, outputs, 2)
    programs, constants = _of_gradient(sums, d_level, bias, what)
    _kernels().backward_halve_kernel[(programs, -(-outputs // block_p))](
        dz, places, sums, _or(_plain(d_level), sums), du, _or(d_bias, sums), images, height, width,
        CHANNELS=channels, LAST=last, ODD=bool(height % 2 or width % 2),
        BLOCK_P=block_p, BLOCK_C=block_c, num_warps=_warps(4 * block_p * block_c, 8), **constants,
    )  # fmt: skip
    return du, d_bias


def join(images: Tensor, dtype: torch.dtype, channels: int) -> tuple[Tensor, Tensor]:
    """Images (N, 3, H, W) less `o = -log mean exp(-x)`, each color beside its mean, and `o` (N, 3).

    The map has so many channels, all but six of them idle, and lies channels-last in 16 bits and where the images do.
    """
    images = _in_a_row(images)
    count, _, height, width = images.shape
    shape = torch.Size((count, channels, height, width))
    joined = _room(shape, dtype != torch.float32 or is_last(images), images, dtype)
    offset = images.new_empty(count, 3)
    block_p = min(2048, power_of_two(height * width))
    _kernels().join_kernel[(count,)](
        images, joined, offset, height * width, math.log(height * width),
        LAST=is_last(images), CHANNELS=shape[1], JOINED_LAST=is_last(joined), BLOCK_P=block_p,
        num_warps=_warps(8 * block_p),
    )  # fmt: skip
    return joined, offset


def _sums(x: Tensor, gate: Tensor | None, slope: float) -> Tensor:
    """The sums over positions of a map in a row, in parts: (splits, N, C).

    Of a gradient, they are of what comes through the gate, which is in the same row: the output of an activation, or
    the places of maxima.
    """
    images, channels, positions = x.shape[0], x.shape[1], x.shape[2] * x.shape[3]
    block_p, block_c = _tile(x, positions)
    sums = x.new_empty(_splits(x, positions, block_p), images, channels, dtype=torch.float32)
    kind = "none" if gate is None else "places" if gate.dtype == torch.uint8 else "output"
    _kernels().sums_kernel[(images, len(sums))](
        x, _or(gate, x), sums, images, positions, slope,
        CHANNELS=channels, LAST=_lies_last(x), GATE=kind, SPLITS=len(sums), BLOCK_P=block_p, BLOCK_C=block_c,
        num_warps=_warps(block_p * block_c),
    )  # fmt: skip
    return sums


def _of_gradient(
    sums: Tensor, d_level: Tensor | None, bias: Tensor | None, what: Features
) -> tuple[int, dict[str, Any]]:
    """How many rows of programs a backward pass needs, and its constants: one more a group for the bias."""
    splits, images, _ = sums.shape
    block_s = power_of_two(what.count // what.groups)
    constants = {
        "FEATURES": what.count,
        "GROUPS": what.groups,
        "HAS_BIAS": bias is not None,
        "HAS_LEVEL": d_level is not None,
        "SPLITS": splits,
        "BLOCK_G": power_of_two(what.groups),
        "BLOCK_N": max(1, min(power_of_two(splits * images), _SUMS // block_s)),
        "BLOCK_S": block_s,
    }
    return images + (0 if bias is None else what.groups), constants


def _tile(x: Tensor, positions: int, share: int = 1) -> tuple[int, int]:
    """(positions, channels) of a tile, or of so small a share of one: all channels.

    Of a contiguous map it has some positions however many channels there are, since those lie in a row.
    """
    channels = power_of_two(x.shape[1])
    fewest = 1 if _lies_last(x) or channels > 512 else 16
    return min(power_of_two(positions), max(fewest, _TILE // share // channels)), channels


def _splits(x: Tensor, positions: int, block_p: int) -> int:
    """Among how many programs an image of `x` is shared out: a power of two."""
    most = min(_SPLITS, power_of_two(-(-positions // block_p)), _SUMS // power_of_two(x.shape[1]))
    return max(1, min(most, power_of_two(_PROGRAMS // len(x))))


def _lies_last(x: Tensor) -> bool:
    """Whether a map lies pixel by pixel, as far as the kernels are concerned: a single pixel lies so, too."""
    return is_last(x) or x.shape[2] * x.shape[3] == 1


def _warps(numbers: int, fewest: int = 1) -> int:
    """How many warps share the work on so many numbers."""
    return min(16, max(fewest, numbers // _NUMBERS_A_WARP))


def _in_a_row(x: Tensor) -> Tensor:
    return x if is_last(x) else x.contiguous()


def _room(shape: torch.Size, last: bool, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """An empty map where `x` is, channels-last or contiguous."""
    layout = torch.channels_last if last else torch.contiguous_format
    return torch.empty(shape, dtype=dtype or x.dtype, device=x.device, memory_format=layout)


def _fit(dz: Tensor, z: Tensor) -> Tensor:
    """`dz` in the memory format of `z`, which is in a row."""
    return dz.contiguous(memory_format=torch.channels_last if is_last(z) else torch.contiguous_format)


def _plain(values: Tensor | None) -> Tensor | None:
    return None if values is None else values.to(torch.float32).contiguous()


def _or(x: Tensor | None, other: Tensor) -> Tensor:
    """A pointer has to be passed even where nothing is read from it."""
    return other if x is None else x
