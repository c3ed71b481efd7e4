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
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

__all__ = ["apply", "backward_apply", "backward_moments", "moments", "suits"]

_SOURCE = Path(__file__).with_name("_native.c")
_FLAGS = ["-O3", "-march=native", "-ffast-math", "-fno-finite-math-only", "-fPIC", "-fopenmp"]


def suits(*maps: Tensor | None) -> bool:
    """Whether the C passes can take these maps: float32, contiguous, on the CPU, of one shape, and not compiled."""
    if torch.compiler.is_compiling():
        return False
    given = [x for x in maps if x is not None]
    right = all(x.device.type == "cpu" and x.dtype == torch.float32 and x.is_contiguous() for x in given)
    return right and given[0].dim() > 2 and all(x.shape == given[0].shape for x in given) and _library() is not None


def moments(u: Tensor, shortcut: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Mean and variance (N, C) of `u` over its positions, and the mean of the shortcut."""
    mean, var = u.new_empty(2, *u.shape[:2])
    s_mean = None if shortcut is None else torch.empty_like(mean)
    _call("moments", u, shortcut, mean, var, s_mean, mean.numel(), u[0, 0].numel())
    return mean, var, s_mean


def apply(u: Tensor, shortcut: Tensor | None, scale: Tensor, shift: Tensor, slope: float) -> Tensor:
    """`act(scale u + shift + shortcut)`, with `scale` (C,) and `shift` (N, C)."""
    z = torch.empty_like(u)
    planes, features = shift.numel(), u.shape[1]
    _call("apply", u, shortcut, scale, shift, z, planes, features, u[0, 0].numel(), ctypes.c_float(slope))
    return z


def backward_moments(dz: Tensor, z: Tensor, u: Tensor, mean: Tensor, slope: float) -> tuple[Tensor, Tensor]:
    """The means over positions (N, C) of `dq = dz act'` and of `dq (u - mean)`."""
    first, second = torch.empty_like(mean), torch.empty_like(mean)
    _call("backward_moments", dz, z, u, mean, first, second, mean.numel(), u[0, 0].numel(), ctypes.c_float(slope))
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
    sizes = (constant.numel(), u.shape[1], u[0, 0].numel())
    _call("backward_apply", dz, z, u, *coefficients, du, ds, *sizes, ctypes.c_float(slope))
    return du, ds


def _call(name: str, *arguments: Tensor | int | ctypes.c_float | None) -> None:
    library = _library()
    assert library is not None
    converted = [
        ctypes.c_void_p(a.data_ptr()) if isinstance(a, Tensor) else ctypes.c_long(a) if isinstance(a, int) else a
        for a in arguments
    ]
    getattr(library, name)(*converted, ctypes.c_int(torch.get_num_threads()))


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
    parts = [_SOURCE.read_text(), *_FLAGS, platform.machine(), _processor(), torch.__version__]
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
