"""The kernels of a GPU, compared with the reference at their first use; what was found is kept between processes."""

from __future__ import annotations

import hashlib
import json
import warnings
from contextlib import suppress
from pathlib import Path

import torch

from lightfast._backends.native.build import private_folder, read_own, write_whole

__all__ = ["examined"]


def examined(operation: str, device: torch.device) -> bool:
    """Whether the kernels of an operation do what the reference does on this device; a warning says so if not."""
    folder, _ = private_folder()
    note = folder and folder / f"triton-{_machine(device)}-{operation}.json"
    difference = _noted(note) if note else None
    if difference is None:
        difference = _difference(operation, device)
        if note:
            with suppress(OSError):
                write_whole(note, json.dumps({"difference": difference}))
    if difference:
        warnings.warn(
            f"The kernels of {operation} are wrong on this machine, and torch does their work: {difference} "
            f"({torch.cuda.get_device_name(device)}, {_versions()})",
            RuntimeWarning,
            stacklevel=2,
        )
    return not difference


def _difference(operation: str, device: torch.device) -> str:
    """How the kernels of an operation differ from the reference, or nothing."""
    from lightfast._backends.triton.backend import Triton
    from lightfast._backends.trust import FEW_KINDS, verdict

    with torch.cuda.device(device):
        return verdict(Triton(trusted=True), device, FEW_KINDS, {operation}).get(operation, "")


def _noted(note: Path) -> str | None:
    """What was found before, or None if nothing was, or nothing that makes sense."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads(read_own(note))["difference"])
    return None


def _machine(device: torch.device) -> str:
    """A digest of everything that makes kernels what they are: the GPU, versions, and the code."""
    name, capability = torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
    here = Path(__file__).parent
    sources = [path.read_bytes() for folder in (here, here.parent) for path in sorted(folder.glob("*.py"))]
    about = f"{name} {capability} {_versions()} {torch.version.cuda}".encode()
    return hashlib.sha256(b"\0".join([about, *sources])).hexdigest()[:20]


def _versions() -> str:
    import triton

    return f"Triton {triton.__version__}, torch {torch.__version__}"
