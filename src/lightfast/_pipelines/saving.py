"""Models as files: weights (`.safetensors`) and what they belong to (`.json`). Nothing is ever unpickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch
from torch import Tensor, nn

from lightfast._atomic import json_bytes, replacing, write_whole

if TYPE_CHECKING:
    from lightfast._pipelines.pipeline import Pipeline

__all__ = ["FORMAT", "load_weights", "read_model", "save_weights", "write_model"]

FORMAT = 2
"""Of saved models: another number for every change after which older versions would read something else."""

_LARGEST_DESCRIPTION = 10_000_000
_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


def write_model(pipeline: Pipeline, folder: Path, name: str = "model") -> None:
    """Write `folder/name.safetensors` and `folder/name.json`, both or neither; the folder is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    weights, description = folder / f"{name}.safetensors", folder / f"{name}.json"
    with replacing(weights) as new:
        new.write_bytes(_serialized(pipeline))
        write_whole(description, json_bytes(pipeline.describe()))


def read_model(folder: Path, name: str = "model", *, known: bool = False) -> Pipeline:
    """The pipeline that :func:`write_model` wrote, in evaluation mode and without gradients until it is trained.

    One that is `known`, since it came with the package, is made at once; others are first made without memory.
    """
    # Pipelines of every kind are known once their modules are.
    from lightfast._pipelines import classifier, estimator, inpainter, network, spectral  # noqa: F401
    from lightfast._pipelines.pipeline import Pipeline

    weights, description = folder / f"{name}.safetensors", folder / f"{name}.json"
    if not description.is_file() and (folder / "config.json").is_file():
        # As the Hub has it.
        description = folder / "config.json"
    for path in (description, weights):
        if not path.is_file():
            raise FileNotFoundError(
                f"there is no file {path}: a model is saved as {weights.name} and {description.name}"
            )
    about = _read_description(description)
    kind = about.get("lightfast")
    if not isinstance(kind, str) or kind not in Pipeline.kinds:
        raise ValueError(f"{description} does not describe a model of lightfast ({', '.join(Pipeline.kinds)})")
    if (written := about.get("format")) != FORMAT:
        raise ValueError(
            f"{description} is in format {written!r}, but this version of lightfast reads format {FORMAT}: it was "
            "written by another version, which the model needs"
        )
    state = _read_weights(weights)
    try:
        if not known:
            # What it is made from may ask for more memory than any machine has.
            with torch.device("meta"):
                _check_fits(Pipeline.kinds[kind].from_description(about), state, weights)
        pipeline = Pipeline.kinds[kind].from_description(about)
        _check_fits(pipeline, state, weights)
    except _Misfit as error:
        raise ValueError(str(error)) from None
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{description} does not describe a model of the kind {kind}: {error}") from None
    pipeline.about = about["about"] if isinstance(about.get("about"), dict) else {}
    pipeline.load_state_dict(state)
    return pipeline.freeze()


def save_weights(module: nn.Module, path: Path) -> None:
    """Write the module's state as safetensors, the whole file or nothing."""
    write_whole(path, _serialized(module))


def load_weights(module: nn.Module, path: Path) -> None:
    """Load the state that :func:`save_weights` wrote; a sentence if it is another module's, or no safetensors file."""
    state = _read_weights(path)
    _check_fits(module, state, path)
    module.load_state_dict(state)


class _Misfit(ValueError):
    """Weights are those of another network than the one they are for."""


def _serialized(module: nn.Module) -> bytes:
    state: dict[str, Tensor] = {}
    seen: set[int] = set()
    for key, value in module.state_dict().items():
        tensor = value.detach().cpu().contiguous()
        # The file holds no two names for one memory.
        state[key] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    return safetensors.torch.save(state)


def _read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors in a safetensors file; a sentence if it is none, or if there is a number in it that is none."""
    try:
        state: dict[str, Tensor] = safetensors.torch.load(path.read_bytes())
    except Exception as error:
        raise ValueError(
            f"{path} is not a complete safetensors file ({error}): it was cut short, or is something else"
        ) from None
    for key, value in state.items():
        if not value.is_floating_point() and value.dtype not in _WHOLE:
            raise ValueError(f"{path} holds {value.dtype} as {key}, which no model has: it is damaged")
        if not value.float().isfinite().all():
            raise ValueError(
                f"{path} holds NaN or infinity in {key}: it is damaged, or its training diverged; use another copy"
            )
    return state


def _check_fits(module: nn.Module, state: Mapping[str, Tensor], path: Path) -> None:
    """Raise a sentence unless the tensors are those of the module, in their shapes."""
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
        raise _Misfit(
            f"{path} holds the weights of another network than the one they are for: "
            f"{'; '.join(sorted(wrong)[:3])}{more}"
        )


def _read_description(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _LARGEST_DESCRIPTION:
            raise ValueError(f"it has more than {_LARGEST_DESCRIPTION // 1_000_000} MB")
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON that describes a model: {error}") from None
    return content if isinstance(content, dict) else {}
