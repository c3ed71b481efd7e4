"""Options that several commands have, and what follows from them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import torch

    from lightfast._pipelines.pipeline import Classifier, Pipeline

__all__ = ["Device", "Out", "Resume", "choose_device", "load_classifier", "load_pipeline", "names_in"]

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


def load_classifier(name: str) -> Classifier:
    """The classifier in a folder, or the pretrained one of that name."""
    from lightfast._pipelines.pipeline import Classifier

    if Path(name).is_dir():
        return Classifier.load(name)
    classifier = load_pipeline(name, "trained classifier")
    if not isinstance(classifier, Classifier):
        raise ValueError(f"the pretrained model {name!r} is a {type(classifier).__name__}, not a Classifier")
    return classifier


def load_pipeline(name: str, wanted: str = "trained model") -> Pipeline:
    """The pipeline in a folder, or the pretrained one of that name."""
    from lightfast._pipelines.pipeline import read_pipeline
    from lightfast._pipelines.pretrained import pretrained, pretrained_names

    if Path(name).is_dir():
        return read_pipeline(name)
    if name not in pretrained_names():
        raise ValueError(
            f"{name!r} is neither a folder with a {wanted} nor a pretrained model; "
            f"pretrained are: {', '.join(pretrained_names()) or 'none'}"
        )
    return pretrained(name)
