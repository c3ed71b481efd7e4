"""Options that several commands have, and what follows from them."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from lightfast._experiments.recognition.pictures import Images, Pictures
    from lightfast._experiments.recognition.plans import Plan
    from lightfast._pipelines.pipeline import Classifier, Pipeline

__all__ = [
    "Device",
    "Only",
    "Out",
    "Parallel",
    "Precision",
    "Resume",
    "Settings",
    "Size",
    "Steps",
    "adapt",
    "choose_device",
    "choose_plan",
    "load_classifier",
    "load_pictures",
    "load_pipeline",
    "load_test_images",
    "parse_setting",
    "say",
]

Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Precision = Annotated[str, typer.Option(help="auto (bfloat16 on a GPU, float32 elsewhere), float32 or bfloat16.")]
Out = Annotated[Path, typer.Option(help="The folder for everything that is written.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with what was interrupted.")]
Size = Annotated[int | None, typer.Option(min=8, help="Pixels to which pictures are scaled; their own by default.")]
Steps = Annotated[int | None, typer.Option(min=1, help="Steps of training; the recipe's by default.")]
Parallel = Annotated[int, typer.Option(min=1, help="Trainings that share a GPU at a time.")]
Only = Annotated[str | None, typer.Option(help="Do these runs alone: original:0,equivariant:1 (strategy:seed).")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Another value for a part of the recipe: --set lr=0.05 --set group_dropout=0.1"),
]


def choose_device(name: str) -> torch.device:
    """The device of that name; among several processes, this one's."""
    from lightfast._experiments.engine.processes import choose_device

    return choose_device(name)


def say(text: str) -> None:
    """Tell the user; among several processes, one does."""
    from lightfast._experiments.engine.processes import is_main

    if is_main():
        typer.echo(text)


def choose_plan(
    names: dict[str, str], name: str, model: str | None, steps: int | None, settings: list[str] | None
) -> Plan:
    """The recipe that users call by `name`, with their changes; `names` are the plans for what they may call."""
    from lightfast import models
    from lightfast._experiments.recognition.plans import PLANS

    if name not in names:
        raise ValueError(f"the recipe is one of {', '.join(names)}, not {name!r}")
    plan = PLANS[names[name]]
    plan = plan if steps is None else plan.with_steps(steps)
    changes = dict(parse_setting(text) for text in settings or [])
    plan = plan.with_values(changes if model is None else {**changes, "model": model})
    if plan.model not in models.names():
        raise ValueError(f"there is no network {plan.model!r}; there are {', '.join(models.names())}")
    return plan


def parse_setting(text: str) -> tuple[str, Any]:
    """`NAME=VALUE` as users type it; the value is a number, a tuple, true, false, none, or else the text itself.

    >>> parse_setting("flip=false"), parse_setting("lr=0.05")
    (('flip', False), ('lr', 0.05))
    """
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r} is not NAME=VALUE, such as lr=0.05")
    try:
        known = {"true": True, "false": False, "none": None}
        return name, known[value.lower()] if value.lower() in known else ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return name, value


def adapt(plan: Plan, precision: str, device: torch.device) -> Plan:
    """The recipe with what suits the device."""
    if precision not in ("auto", "float32", "bfloat16"):
        raise ValueError(f"the precision is auto, float32 or bfloat16, not {precision!r}")
    on_gpu = device.type == "cuda"
    chosen = precision if precision != "auto" else "bfloat16" if on_gpu else "float32"
    fitted = {"precision": chosen, "channels_last": on_gpu, "graph": on_gpu}
    return dataclasses.replace(
        plan,
        recipe=dataclasses.replace(plan.recipe, **fitted),
        balance_recipe=dataclasses.replace(plan.balance_recipe, **fitted),
    )


def load_pictures(data: Path, size: int | None = None) -> Pictures:
    """CIFAR-10 if that is what the folder holds, else a folder with one sub-folder a class."""
    from lightfast._experiments.recognition.pictures import cifar10_pictures, folder_pictures

    return cifar10_pictures(data) if _holds_cifar10(data) else folder_pictures(data, size)


def _holds_cifar10(data: Path) -> bool:
    return (data / "data_batch_1.bin").exists() or (data / "cifar-10-batches-bin").exists()


def load_test_images(data: Path | None, size: int | None) -> tuple[Images, Tensor, tuple[str, ...]]:
    """Images to test on, their labels, and the names of the classes."""
    from lightfast._experiments.data import load_folder
    from lightfast._experiments.recognition.pictures import drawn_pictures

    if data is None:
        pictures = drawn_pictures(train=0)
    elif _holds_cifar10(data):
        pictures = load_pictures(data)
    else:
        folder = load_folder(data, size, split="val" if (data / "train").is_dir() else "train")
        return folder.images, folder.labels, folder.classes
    return pictures.test_images, pictures.test_labels, pictures.classes


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
