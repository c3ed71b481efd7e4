"""Options that several commands have, and what follows from them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["Device", "Network", "Out", "Resume", "choose_device", "names_in", "own_network"]

Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Network = Annotated[
    str | None,
    typer.Option(
        help="package.module:factory, where factory() makes the network of your own that the model was made with."
    ),
]
Out = Annotated[Path, typer.Option(help="The folder for everything that is written.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with what was interrupted.")]


def names_in(text: str) -> list[Any]:
    """Names as users type them, with commas between them.

    >>> names_in("float32, bfloat16")
    ['float32', 'bfloat16']
    """
    return [name.strip() for name in text.split(",") if name.strip()]


def choose_device(name: str) -> torch.device:
    """The device of that name; among several processes, this one's."""
    from lightfast._experiments.engine.processes import choose_device

    return choose_device(name)


def own_network(target: str | None) -> nn.Module | None:
    """The network that `package.module:factory` makes; none for models whose network has a name."""
    from lightfast._commands.certify import build_network

    return None if target is None else build_network(target)
