"""Options that several commands have, and what follows from them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import torch

__all__ = ["Device", "Out", "Resume", "choose_device", "names_in"]

Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Out = Annotated[Path, typer.Option(help="The folder for everything that is written.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with what was interrupted.")]


def names_in(text: str) -> list[Any]:
    """Names as users type them, with commas between them.

    >>> names_in("float32, bfloat16")
    ['float32', 'bfloat16']
    """
    return [name.strip() for name in text.split(",") if name.strip()]


def choose_device(name: str) -> torch.device:
    """The device of that name, and Accelerate told so; among several processes, this one's."""
    import torch
    from accelerate import PartialState

    if name not in ("auto", "cpu", "cuda"):
        raise ValueError(f"the device is auto, cpu or cuda, not {name!r}")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("there is no CUDA device here, or torch was installed without CUDA: use --device cpu")
    if name == "cpu" or not torch.cuda.is_available():
        os.environ["ACCELERATE_USE_CPU"] = "true"
        return torch.device("cpu")
    return PartialState().device or torch.device("cuda")
