"""Options that several commands have, and what follows from them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import torch

Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Out = Annotated[Path, typer.Option(help="The folder for everything that is written.")]
RESUME = "Go on with what was interrupted: what is in OUT already is kept, and the rest is done."
Resume = Annotated[bool, typer.Option("--resume", help=RESUME)]


def choose_device(name: str) -> torch.device:
    """The device of that name; among several processes, this one's."""
    from lightfast._experiments.engine.processes import choose_device

    return choose_device(name)
