"""Weights as files: safetensors, whole or not at all. Nothing is ever unpickled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from lightfast._atomic import write_whole

__all__ = ["FORMAT", "load_weights", "save_weights"]

FORMAT = 1
"""Of saved pipelines: another number for every change after which older versions would read something else."""


def save_weights(module: nn.Module, path: Path) -> None:
    """Write the module's state as safetensors, the whole file or nothing."""
    state = {key: value.detach().cpu().contiguous() for key, value in module.state_dict().items()}
    write_whole(path, _safetensors().save(state))


def load_weights(module: nn.Module, path: Path) -> None:
    """Load the state that :func:`save_weights` wrote; a sentence if it is another module's, or no safetensors file."""
    safetensors = _safetensors()
    try:
        state: dict[str, Tensor] = safetensors.load(path.read_bytes())
    except Exception as error:
        raise ValueError(
            f"{path} is not a complete safetensors file ({error}): it was cut short, or is something else"
        ) from None
    wanted = module.state_dict()
    wrong = [f"{key} is missing" for key in wanted.keys() - state.keys()]
    wrong += [f"{key} has no place" for key in state.keys() - wanted.keys()]
    wrong += [
        f"{key} is {tuple(state[key].shape)} instead of {tuple(value.shape)}"
        for key, value in wanted.items()
        if key in state and state[key].shape != value.shape
    ]
    if wrong:
        more = f", and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise ValueError(
            f"{path} holds the weights of another network than the one they are for: "
            f"{'; '.join(sorted(wrong)[:3])}{more}"
        )
    module.load_state_dict(state)


def _safetensors() -> Any:
    try:
        from safetensors import torch as safetensors_torch
    except ImportError:
        raise ImportError(
            "saved models are safetensors files, and that package is not installed: pip install lightfast[train]"
        ) from None
    return safetensors_torch
