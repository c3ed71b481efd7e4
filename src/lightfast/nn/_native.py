"""Passes over maps and weights on the CPU, in C: built by the machine's compiler at first use, in a second.

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
from torch._C._functorch import is_legacy_batchedtensor, peek_interpreter_stack
from torch.autograd import forward_ad
from torch.nn import Parameter

__all__ = [
    "Constants",
    "apply",
    "available",
    "backward_apply",
    "backward_halve",
    "backward_moments",
    "constants",
    "exported",
    "fit",
    "halve",
    "infer",
    "is_last",
    "join",
    "moments",
    "observed",
    "project_columns",
    "project_rows",
    "suits",
    "suits_weight",
    "takes",
]

_SOURCE = Path(__file__).with_name("_native.c")
_PASSES = [Path(__file__).with_name(f"_native_{name}.h") for name in ("passes", "halving", "projection")]
_FLAGS = ["-O3", "-march=native", "-ffast-math", "-fno-finite-math-only", "-fPIC", "-fopenmp"]
_TYPES = {torch.float32: "float", torch.bfloat16: "bfloat16"}
_CONVERSIONS = [(torch.float32, torch.float32), (torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)]
_MOST_FEATURES = 8192  # Their coefficients lie on the stack.


def suits(u: Tensor, *others: Tensor | None) -> bool:
    """Whether the C passes can take maps like `u`: in float32 or bfloat16, in a row, on the CPU, and unobserved.

    Other maps have to be like it in shape, type and memory format; :func:`fit` makes them so.
    """
    if observed(u) or not takes(u):
        return False
    return all(x is None or _alike(x, u) for x in others) and available()


def takes(u: Tensor) -> bool:
    """Whether the C passes are written for maps like `u`."""
    if u.device.type != "cpu" or u.dtype not in _TYPES or u.dim() < 3:
        return False
    return (u.is_contiguous() or is_last(u)) and u.numel() > 0 and u.shape[1] <= _MOST_FEATURES


def available() -> bool:
    """Whether there are C passes on this machine; they are built if need be."""
    return _library() is not None


def suits_weight(weight: Tensor, dtype: torch.dtype) -> bool:
    """Whether the C passes can project a weight from its precision to `dtype`: in a row on the CPU, and unobserved."""
    if observed(weight) or weight.device.type != "cpu" or (weight.dtype, dtype) not in _CONVERSIONS:
        return False
    in_a_row = weight.is_contiguous() or is_last(weight)
    return in_a_row and weight.numel() > 0 and available()


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


@torch.compiler.assume_constant_result
def exported() -> bool:
    """Whether this is an export. A compiler has to ask and not to compile this: older ones would say yes always."""
    return torch.compiler.is_exporting()


def fit(x: Tensor, u: Tensor) -> Tensor:
    """`x` in the type and the memory format of `u`, which suits."""
    if x.shape != u.shape:
        raise ValueError(f"a map of shape {tuple(x.shape)} does not fit one of {tuple(u.shape)}")
    return x.to(u.dtype).contiguous(memory_format=torch.channels_last if is_last(u) else torch.contiguous_format)


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


def halve(u: Tensor, groups: int, with_places: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """`relu(max u - G φ(u))` with the maxima of 2x2 pixels, the level `φ(u)` (N, g), and the places of the maxima.

    Places are bytes, from 0 to 3 in row-major order, and at least 4 where the ReLU is off.
    """
    images, features, height, width = u.shape
    last = is_last(u)
    layout = torch.channels_last if last else torch.contiguous_format
    shape = (images, features, height // 2, width // 2)
    z = _empty(shape, u.dtype, layout)
    places = _empty(shape, torch.uint8, layout) if with_places else None
    level = _empty((images, groups))
    _run(_variant("halve", u.dtype, last), [u, z, places, level], groups, images, features, height, width)
    return z, level, places


def backward_halve(
    dz: Tensor, places: Tensor, d_level: Tensor | None, shape: torch.Size, groups: int, last: bool
) -> Tensor:
    """The gradient of `u`, of this shape, channels-last or contiguous; `places` are from :func:`halve`."""
    layout = torch.channels_last if last else torch.contiguous_format
    du = _empty(shape, dz.dtype, layout)
    d_level = None if d_level is None else d_level.float().contiguous()
    tensors = [dz.contiguous(memory_format=layout), places, d_level, du]
    _run(_variant("backward_halve", dz.dtype, last), tensors, groups, *shape)
    return du


def join(images: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Images (N, 3, H, W) less `o = -log mean exp(-x)`, each colour beside its mean: (N, 6, H, W), and `o` (N, 3)."""
    count, colours, height, width = images.shape
    last = is_last(images)
    layout = torch.channels_last if last else torch.contiguous_format
    joined = _empty((count, 2 * colours, height, width), dtype, layout)
    offset = _empty((count, colours))
    _run(_variant("join", dtype, last), [images, joined, offset], count, height * width)
    return joined, offset


def project_rows(weight: Tensor, dtype: torch.dtype, share: float, groups: int, *sizes: int) -> Tensor:
    """The projection of a weight that lies (outputs, pieces, groups, run), the `sizes` but for the groups.

    An output's weights for its own group get the sum `share`, and those for another the sum 0.
    """
    projected = torch.empty_like(weight, dtype=dtype)
    _run(f"project_rows_{_TYPES[weight.dtype]}_{_TYPES[dtype]}", [weight, projected], share, groups, *sizes)
    return projected


def project_columns(
    weight: Tensor,
    dtype: torch.dtype,
    phase: Sequence[int],
    shares: Sequence[float],
    groups: int,
    rows: int,
    outputs: int,
    features: int,
    last: bool,
) -> Tensor:
    """The projection of a weight that lies (groups, rows, outputs, taps), or (groups, rows, taps, outputs) if `last`.

    Taps of a phase (`phase` of each tap) get the sum of `shares` together, for an output's own group, which is that of
    the output modulo `features`.
    """
    projected = torch.empty_like(weight, dtype=dtype)
    counts = [float(phase.count(p)) for p in range(len(shares))]
    phases = torch.tensor(phase, dtype=torch.int32, device="cpu")
    numbers = torch.tensor([shares, counts], dtype=torch.float32, device="cpu")
    tensors = [weight, projected, phases, *numbers]
    sizes = (groups, rows, outputs, len(phase), len(shares), features, int(last))
    _run(f"project_columns_{_TYPES[weight.dtype]}_{_TYPES[dtype]}", tensors, *sizes)
    return projected


def _empty(
    shape: Sequence[int], dtype: torch.dtype = torch.float32, layout: torch.memory_format = torch.contiguous_format
) -> Tensor:
    """Room for what a pass writes, whatever torch's default precision and device are."""
    return torch.empty(tuple(shape), dtype=dtype, device="cpu", memory_format=layout)


def is_last(u: Tensor) -> bool:
    """Whether a map lies pixel by pixel; one that lies both ways counts as contiguous."""
    return u.dim() == 4 and not u.is_contiguous() and u.is_contiguous(memory_format=torch.channels_last)


def _pointer(tensor: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


def _alike(x: Tensor, u: Tensor) -> bool:
    return x.shape == u.shape and x.dtype == u.dtype and x.stride() == u.stride() and x.device == u.device


def _variant(name: str, dtype: torch.dtype, last: bool) -> str:
    """The name of a pass for maps of this type and memory format."""
    return f"{name}{'_last' if last else ''}_{_TYPES[dtype]}"


def _call(
    name: str, u: Tensor, tensors: Sequence[Tensor | None], slope: float | None = None, groups: int | None = None
) -> None:
    """A pass over maps like `u`."""
    images, features = u.shape[:2]
    numbers = [number for number in (slope, groups) if number is not None]
    sizes = (images, features, u.numel() // (images * features))
    _run(_variant(name, u.dtype, is_last(u)), tensors, *numbers, *sizes)


def _run(name: str, tensors: Sequence[Tensor | None], *numbers: float) -> None:
    """A function of the library on these tensors and numbers: `float` or `long`, as Python has them."""
    library = _library()
    assert library is not None
    converted = [ctypes.c_float(n) if isinstance(n, float) else ctypes.c_long(n) for n in numbers]
    getattr(library, name)(*map(_pointer, tensors), *converted, ctypes.c_int(torch.get_num_threads()))


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
    sources = [path.read_text() for path in (_SOURCE, *_PASSES)]
    parts = [*sources, *_FLAGS, platform.machine(), _processor(), torch.__version__]
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
