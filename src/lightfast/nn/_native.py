"""The passes of `norm_act` over a map on the CPU, in C: built by the machine's compiler at first use, in a second.

Without a compiler, or with LIGHTFAST_NATIVE=0 in the environment, torch does the same in more passes.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = [
    "Constants",
    "apply",
    "backward_apply",
    "backward_moments",
    "constants",
    "fit",
    "infer",
    "moments",
    "suits",
]

_SOURCE = Path(__file__).with_name("_native.c")
_PASSES = Path(__file__).with_name("_native_passes.h")
_FLAGS = ["-O3", "-march=native", "-ffast-math", "-fno-finite-math-only", "-fPIC", "-fopenmp"]
_TYPES = {torch.float32: "float", torch.bfloat16: "bfloat16"}
_MOST_FEATURES = 8192  # Their coefficients lie on the stack.


def suits(u: Tensor, *others: Tensor | None) -> bool:
    """Whether the C passes can take maps like `u`: in float32 or bfloat16, in a row, on the CPU, and not compiled.

    Other maps have to be like it in shape, type and memory format; :func:`fit` makes them so.
    """
    if torch.compiler.is_compiling() or u.device.type != "cpu" or u.dtype not in _TYPES or u.dim() < 3:
        return False
    if not (u.is_contiguous() or _is_last(u)) or u.numel() == 0 or u.shape[1] > _MOST_FEATURES:
        return False
    return all(x is None or _alike(x, u) for x in others) and _library() is not None


def fit(x: Tensor, u: Tensor) -> Tensor:
    """`x` in the type and the memory format of `u`, which suits."""
    if x.shape != u.shape:
        raise ValueError(f"a map of shape {tuple(x.shape)} does not fit one of {tuple(u.shape)}")
    return x.to(u.dtype).contiguous(memory_format=torch.channels_last if _is_last(u) else torch.contiguous_format)


def moments(u: Tensor, shortcut: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Mean and variance (N, C) of `u` over its positions, and the mean of the shortcut, which fits `u`."""
    mean, var = u.new_empty(2, *u.shape[:2], dtype=torch.float32)
    s_mean = None if shortcut is None else torch.empty_like(mean)
    _call("moments", u, [u, shortcut, mean, var, s_mean])
    return mean, var, s_mean


def apply(u: Tensor, shortcut: Tensor | None, scale: Tensor, shift: Tensor, slope: float) -> Tensor:
    """`act(scale u + shift + shortcut)`, with `scale` (C,) and `shift` (N, C)."""
    z = torch.empty_like(u)
    _call("apply", u, [u, shortcut, scale.contiguous(), shift.contiguous(), z], slope)
    return z


def backward_moments(dz: Tensor, z: Tensor, u: Tensor, mean: Tensor, slope: float) -> tuple[Tensor, Tensor]:
    """The means over positions (N, C) of `dq = dz act'` and of `dq (u - mean)`; `dz` fits `u`."""
    first, second = torch.empty_like(mean), torch.empty_like(mean)
    _call("backward_moments", u, [dz, z, u, mean, first, second], slope)
    return first, second


def backward_apply(
    dz: Tensor,
    z: Tensor,
    u: Tensor,
    scale: Tensor,
    slant: Tensor,
    constant: Tensor,
    centring: Tensor,
    slope: float,
    with_shortcut: bool,
) -> tuple[Tensor, Tensor | None]:
    """`scale dq - slant u + constant`, and `dq + centring` for the shortcut."""
    du = torch.empty_like(u)
    ds = torch.empty_like(u) if with_shortcut else None
    coefficients = [values.contiguous() for values in (scale, slant, constant, centring)]
    _call("backward_apply", u, [dz, z, u, *coefficients, du, ds], slope)
    return du, ds


class Constants(NamedTuple):
    """What :func:`infer` needs, in float32: of each feature (C,), and of each group (g,).

    With `m` an image's means (C,) of its map, `φ` the mean over a group and `s` the shortcut:

        l = level + φ(undo m)                            the level that the norm takes out
        r = after + φ(factor m - scale G l)              and the one that is left after it
        z = act(factor u + shift - scale G l - G (r + φ(s)) + s),  offset = l + r
    """

    undo: Tensor | None
    factor: Tensor
    scale: Tensor
    shift: Tensor
    level: Tensor
    after: Tensor


def constants(
    weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, pre_bias: Tensor | None, eps: float, groups: int
) -> Constants | None:
    """Those of a batch norm with running statistics, all (C,); None if they are not float32 in a row on the CPU."""
    given = [weight, bias, mean, var, *([] if pre_bias is None else [pre_bias])]
    if any(x.dtype != torch.float32 or x.device.type != "cpu" or not x.is_contiguous() for x in given):
        return None
    library, features = _library(), len(weight)
    assert library is not None
    of_features, of_groups = weight.new_empty(2, features), weight.new_empty(2, groups)
    tensors = [weight, bias, mean, var, pre_bias, *of_features, *of_groups]
    library.constants(*map(_pointer, tensors), ctypes.c_float(eps), ctypes.c_long(features), ctypes.c_long(groups))
    scale, shift = of_features
    return Constants(None, scale, scale, shift, *of_groups)


def infer(u: Tensor, shortcut: Tensor | None, how: Constants, slope: float, groups: int) -> tuple[Tensor, Tensor]:
    """All of `norm_act` in one go, with running statistics: `z` like `u`, and the offset (N, g)."""
    z, offset = torch.empty_like(u), u.new_empty(len(u), groups, dtype=torch.float32)
    _call("infer", u, [u, shortcut, *how, z, offset], slope, groups)
    return z, offset


def _pointer(tensor: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


def _alike(x: Tensor, u: Tensor) -> bool:
    return x.shape == u.shape and x.dtype == u.dtype and x.stride() == u.stride() and x.device == u.device


def _is_last(u: Tensor) -> bool:
    """Whether a map lies pixel by pixel; one that lies both ways counts as contiguous."""
    return u.dim() == 4 and not u.is_contiguous() and u.is_contiguous(memory_format=torch.channels_last)


def _call(
    name: str, u: Tensor, tensors: Sequence[Tensor | None], slope: float | None = None, groups: int | None = None
) -> None:
    """A pass over maps like `u`."""
    library = _library()
    assert library is not None
    images, features = u.shape[:2]
    sizes = ([] if groups is None else [groups]) + [images, features, u.numel() // (images * features)]
    function = getattr(library, f"{name}{'_last' if _is_last(u) else ''}_{_TYPES[u.dtype]}")
    function(
        *map(_pointer, tensors),
        *([] if slope is None else [ctypes.c_float(slope)]),
        *map(ctypes.c_long, sizes),
        ctypes.c_int(torch.get_num_threads()),
    )


@cache
def _library() -> ctypes.CDLL | None:
    """The compiled passes, or None where they cannot be had; torch then does the work."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if os.environ.get("LIGHTFAST_NATIVE") == "0" or platform.system() != "Linux" or compiler is None:
        return None
    try:
        return ctypes.CDLL(str(_built(compiler)))
    except (OSError, subprocess.SubprocessError):
        return None


def _built(compiler: str) -> Path:
    """The shared library for this source, these flags and this machine, from the cache or newly made."""
    parts = [_SOURCE.read_text(), _PASSES.read_text(), *_FLAGS, platform.machine(), _processor(), torch.__version__]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lightfast"
    library = folder / f"native-{key}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            compiled, linked = Path(scratch, "native.o"), Path(scratch, "native.so")
            run = {"check": True, "capture_output": True, "timeout": 60}
            subprocess.run([compiler, *_FLAGS, "-c", str(_SOURCE), "-o", str(compiled)], **run)
            # Linked without OpenMP's library, so that its symbols are those of the one that torch has loaded: two
            # pools of threads would fight for the cores.
            subprocess.run([compiler, "-shared", str(compiled), "-o", str(linked)], **run)
            linked.replace(library)
    return library


def _processor() -> str:
    """What tells processors apart, since the code is for this one alone."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
