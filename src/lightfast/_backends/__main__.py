"""`python -m lightfast._backends`: which code runs on this machine."""

from __future__ import annotations

import shlex
from importlib.util import find_spec

import torch

from lightfast._backends.native.backend import library


def main() -> None:
    """Print a line for each kind of device."""
    built = library()
    if built is None:
        print("CPU: plain torch")
    else:
        refused = f", but torch for {', '.join(built.refused)}" if built.refused else ""
        print(f"CPU: C{refused}\n  {built.compiler}\n  {shlex.join(built.flags)}\n  {built.path}")
    by = "Triton" if find_spec("triton") is not None else "plain torch, since Triton is not installed"
    for number in range(torch.cuda.device_count()):
        print(f"{torch.cuda.get_device_name(number)}: {by}")
    print("Anything else: plain torch")


if __name__ == "__main__":
    main()
