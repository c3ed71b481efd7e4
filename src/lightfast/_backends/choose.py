"""Which backend works on a tensor: the one place where devices are told apart."""

from __future__ import annotations

from importlib.util import find_spec

from torch import Tensor

from lightfast._backends.native.backend import Native
from lightfast._backends.reference import Reference
from lightfast._backends.triton.backend import Triton

REFERENCE = Reference()

_BACKENDS: dict[str, Reference] = {
    "cpu": Native(),
    "cuda": Triton() if find_spec("triton") is not None else REFERENCE,
}
"""By kind of device. A new one is a class like these in a file of its own, and a line here."""


def backend_of(x: Tensor) -> Reference:
    """The backend for tensors on the device of `x`; it falls back on plain torch for what it does not know."""
    return _BACKENDS.get(x.device.type, REFERENCE)
