"""Checkpoints: one safetensors file with all tensors of a run, and JSON about it in the header. Nothing is unpickled.

The file is written beside its place, forced to the disk, and moved there in one go. So whatever stops the process or
the machine, and whenever, the place holds a whole checkpoint: the one before, or the new one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from lightfast._atomic import replacing

__all__ = ["CheckpointError", "load_checkpoint", "read_header", "save_checkpoint"]

_FORMAT = "lightfast-training-1"


class CheckpointError(RuntimeError):
    """A checkpoint cannot be used: it is damaged, foreign, of another model or another recipe."""


def save_checkpoint(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write a checkpoint to `path`, atomically and durably.

    Args:
        path: where; the folder exists.
        tensors: by name, on any device.
        about: what else there is to know, as JSON can hold it.
    """
    # Cloned: safetensors refuses tensors that share memory, as buffers may.
    copies = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    with replacing(path, durable=True) as partial:
        save_file(copies, partial, metadata={"format": _FORMAT, "about": json.dumps(dict(about))})


def read_header(path: Path) -> dict[str, Any]:
    """What a checkpoint says about itself.

    Raises:
        CheckpointError: the file is not a whole checkpoint; the message names it and says what it seems to be.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path} is not a whole checkpoint ({error}): it is truncated, damaged or another kind of file. "
            "Delete it to start from the beginning, or put back an intact copy"
        ) from error
    if metadata.get("format") != _FORMAT:
        raise CheckpointError(
            f"{path} is a safetensors file, but not a checkpoint of a training run of this version: "
            "name another folder, or delete it to start from the beginning"
        )
    return json.loads(metadata["about"])


@torch.no_grad()
def load_checkpoint(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Fill `tensors` in place from a checkpoint, and return what it says about itself.

    Nothing is changed unless the checkpoint has exactly these tensors, in these shapes.

    Raises:
        CheckpointError: the file is not a whole checkpoint, or one of another model.
    """
    about = read_header(path)
    with safe_open(path, framework="pt") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        differences = _differences({name: tuple(tensor.shape) for name, tensor in tensors.items()}, shapes)
        if differences:
            shown = "\n".join(f"  {line}" for line in differences[:5])
            more = f"\n  and {len(differences) - 5} more" if len(differences) > 5 else ""
            raise CheckpointError(
                f"{path} is a checkpoint of another model or optimizer than the one to train: build the model that it "
                f"was written with, or name another folder.\n{shown}{more}"
            )
        for name, tensor in tensors.items():
            tensor.copy_(file.get_tensor(name))
    return about


def _differences(wanted: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]) -> list[str]:
    lines = [f"{name} is missing there" for name in wanted if name not in found]
    lines += [f"{name} is not in this one" for name in found if name not in wanted]
    lines += [
        f"{name} has shape {found[name]} there and {shape} in this one"
        for name, shape in wanted.items()
        if name in found and found[name] != shape
    ]
    return lines
