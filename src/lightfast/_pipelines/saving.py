"""Models as files: weights (`.safetensors`) and what they belong to (`.json`). Nothing is ever unpickled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
from torch import Tensor, nn

from lightfast._atomic import write_json, write_whole

if TYPE_CHECKING:
    from lightfast._pipelines.pipeline import Pipeline

__all__ = ["FORMAT", "load_weights", "read_model", "save_weights", "write_model"]

FORMAT = 2
"""Of saved models: another number for every change after which older versions would read something else."""


def write_model(pipeline: Pipeline, folder: Path, name: str = "model") -> None:
    """Write `folder/name.safetensors` and `folder/name.json`; the folder is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    save_weights(pipeline, folder / f"{name}.safetensors")
    write_json(folder / f"{name}.json", pipeline.describe())


def read_model(folder: Path, name: str = "model") -> Pipeline:
    """The pipeline that :func:`write_model` wrote, in evaluation mode and without gradients until it is trained."""
    # Pipelines of every kind are known once their modules are.
    from lightfast._pipelines import classifier, estimator, inpainter, spectral  # noqa: F401
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
    try:
        pipeline = Pipeline.kinds[kind].from_config(about.get("config", {}))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{description} does not describe a model of the kind {kind}: {error}") from None
    pipeline.about = about.get("about", {})
    load_weights(pipeline, weights)
    return pipeline.freeze()


def save_weights(module: nn.Module, path: Path) -> None:
    """Write the module's state as safetensors, the whole file or nothing."""
    state = {key: value.detach().cpu().contiguous() for key, value in module.state_dict().items()}
    write_whole(path, safetensors.torch.save(state))


def load_weights(module: nn.Module, path: Path) -> None:
    """Load the state that :func:`save_weights` wrote; a sentence if it is another module's, or no safetensors file."""
    try:
        state: dict[str, Tensor] = safetensors.torch.load(path.read_bytes())
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


def _read_description(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    return content if isinstance(content, dict) else {}
