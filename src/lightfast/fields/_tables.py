"""The functions of a field at the positions of an image, and what projects onto them, kept between calls."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lightfast._compilers import known_to_compilers
from lightfast.fields._bases import FieldSpec, Ridge, function_of, positions

_DEPENDENT = 1e-10
"""Square of the share of its length that a function must add to those before it, to count as another one."""

_CACHED_VALUES = 2**22
_CACHED_SIZES = 64


def product_dtype(x: Tensor) -> torch.dtype:
    """The precision of products over positions.

    In float32 they would be rounded further, to bfloat16 by autocast and to TF32 where users allow that; in float64
    nothing is. Exported programs have no such settings, and not all that run them know float64.
    """
    if x.dtype == torch.float64:
        return torch.float64
    return torch.float32 if x.device.type == "mps" or torch.compiler.is_exporting() else torch.float64


_Key = tuple[Callable[[Tensor], Tensor], tuple[int, ...], torch.device]
_kept: dict[_Key, tuple[Tensor, Tensor]] = {}
_captured: dict[_Key, tuple[Tensor, Tensor]] = {}


def tables(field: FieldSpec, size: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """The functions at each position, `B` (P, K), and their dual, `D` (P, K): `B Dᵀ` is the orthogonal projection.

    To compilers they are constants, unless the size is not known; exporters fold them themselves.
    """
    if not torch.compiler.is_compiling():
        return _kept_tables(field, size, device)
    known = _known_to_compiler(size)
    return _build(function_of(field), size, device) if known is None else _kept_tables(field, known, device)


def _known_to_compiler(size: tuple[int, ...]) -> tuple[int, ...] | None:
    """The size as numbers, if it is one that the compiler takes for granted; exporters have none such."""
    # Not at the top: it is slow to load.
    from torch.fx.experimental.symbolic_shapes import guard_scalar, has_static_value

    if torch.compiler.is_dynamo_compiling() and all(has_static_value(pixels) for pixels in size):
        return tuple(int(guard_scalar(pixels)) for pixels in size)
    return None


@known_to_compilers
def _kept_tables(field: FieldSpec, size: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """The tables, kept for the next call unless they take much memory, or are made while a CUDA graph is captured."""
    key = (function_of(field), size, device)
    capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    if key in _kept:
        if capturing:
            # The graph reads them for as long as it lives, and nobody says how long that is.
            _captured[key] = _kept[key]
        return _kept[key]
    # A tensor that was made for inference could not be used in training later.
    with torch.inference_mode(False), torch.no_grad():
        tables = _build(*key)
    if type(tables[0]) is Tensor and not capturing and tables[0].numel() <= _CACHED_VALUES:
        if device.type == "cuda":
            # The next call may be on another stream.
            torch.cuda.current_stream(device).synchronize()
        if len(_kept) >= _CACHED_SIZES:
            _kept.pop(next(iter(_kept)))
        _kept[key] = tables
    return tables


def _build(function: Callable[[Tensor], Tensor], size: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    dtype = torch.float32 if device.type == "mps" else torch.float64
    places = positions(size, device, dtype)
    values = function(places)
    if values.dim() != 2 or values.shape[0] != places.shape[0]:
        raise ValueError(
            f"the functions of a field turn positions of shape {tuple(places.shape)} into values of shape "
            f"({places.shape[0]}, K), but gave {tuple(values.shape)}"
        )
    values = values.to(dtype)
    gram = values.T @ values
    if isinstance(function, Ridge):
        gram = gram + function.penalty(len(size)).to(gram) * len(places)
    return values, values @ inverse(gram)


def inverse(gram: Tensor) -> Tensor:
    """The generalised inverse of `G = Bᵀ W B` (..., K, K) that is 0 for functions that depend on those before them.

    Gram and Schmidt, in coefficients: `T` has the columns of an orthonormal basis, `Tᵀ G T = 1`, and `G⁻ = T Tᵀ`.
    There is no branch, so that compilers and exporters can follow.
    """
    count = gram.shape[-1]
    unit = torch.eye(count, dtype=gram.dtype, device=gram.device).expand(gram.shape)
    least = max(_DEPENDENT, 16 * torch.finfo(gram.dtype).eps)
    columns = gram.new_zeros(*gram.shape[:-1], 0)
    for k in range(count):
        column = unit[..., k : k + 1]
        # Twice, because the first time leaves a rounding error where functions are nearly dependent.
        for _ in range(2 if k else 0):
            column = column - columns @ (columns.mT @ (gram @ column))
        length2 = column.mT @ gram @ column
        adds = length2 > least * gram[..., k : k + 1, k : k + 1]
        column = torch.where(adds, column * torch.where(adds, length2, 1).rsqrt(), 0)
        columns = torch.cat([columns, column], -1)
    return columns @ columns.mT
