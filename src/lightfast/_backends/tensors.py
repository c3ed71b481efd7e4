"""Questions about tensors that every operation on lifted maps asks, and the idle channels of maps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor, peek_interpreter_stack
from torch.autograd import forward_ad
from torch.nn import Parameter

from lightfast._compilers import known_to_compilers


@known_to_compilers
def exported() -> bool:
    """Whether this is an export. A compiler has to ask and not to compile this: older ones would say yes always."""
    return torch.compiler.is_exporting()


@known_to_compilers
def transformed() -> bool:
    """Whether this is compiled for a transform of `torch.func`, which knows torch's own operators alone."""
    return peek_interpreter_stack() is not None


def observed(x: Tensor) -> bool:
    """Whether something wants to see each operation, as compilers, traces, transforms and subclasses of tensors do."""
    return (
        type(x) not in (Tensor, Parameter)
        or torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch._C._len_torch_dispatch_stack() > 0
        or peek_interpreter_stack() is not None
        or is_legacy_batchedtensor(x)
        or (forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None)
    )


def wants_gradient(*tensors: Tensor | None) -> bool:
    """Whether a gradient is to be had through any of these."""
    if torch.is_grad_enabled():
        for x in tensors:
            if x is not None and x.requires_grad:
                return True
    return False


def are_rows(values: Sequence[Tensor | None], features: int, place: Tensor) -> bool:
    """Whether each of these is so many numbers in float32, in a row, on the device of `place`."""
    device = place.get_device()
    for x in values:
        if x is None or x.dtype is not torch.float32 or x.numel() != features:
            return False
        if not x.is_contiguous() or x.get_device() != device:
            return False
    return True


def is_last(x: Tensor) -> bool:
    """Whether a map lies pixel by pixel; one that lies both ways counts as contiguous."""
    return x.dim() == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)


def layout_of(x: Tensor) -> torch.memory_format:
    """The memory format of a map or weight; of one that lies both ways or neither, contiguous."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    if last is None or x.is_contiguous() or not x.is_contiguous(memory_format=last):
        return torch.contiguous_format
    return last


def working_dtype(x: Tensor) -> torch.dtype:
    """The precision in which a map is convolved: that of autocast, which leaves float64 alone, or its own."""
    kind = x.device.type
    if x.dtype == torch.float64 or not _has_autocast(kind) or not torch.is_autocast_enabled(kind):
        return x.dtype
    return torch.get_autocast_dtype(kind)


@known_to_compilers
def _has_autocast(kind: str) -> bool:
    """Whether there is autocast on this kind of device, which compilers before torch 2.13 cannot ask by themselves."""
    return torch.amp.is_autocast_available(kind)


def without_autocast(x: Tensor) -> torch.autocast:
    """A context in which autocast leaves what is done to `x` as it is."""
    return torch.autocast(x.device.type, enabled=False)


def over(values: Tensor, u: Tensor) -> Tensor:
    """(C,) or (N, C), shaped to broadcast over the positions of `u`."""
    shape = values.shape if values.dim() == 2 else (1, *values.shape)
    return values.reshape(*shape, *[1] * (u.dim() - 2))


def fit_channels(z: Tensor, channels: int) -> Tensor:
    """`z` (N, C, *positions) with as many idle channels as make it `channels`: more of them, or fewer."""
    missing = channels - z.shape[1]
    return F.pad(z, (*(0, 0) * (z.dim() - 2), 0, missing)) if missing else z


def without_idle(z: Tensor, features: int) -> Tensor:
    """The features of a map alone."""
    return z if z.shape[1] == features else z[:, :features]
