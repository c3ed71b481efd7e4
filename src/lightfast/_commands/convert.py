"""`lightfast convert package.module:factory`: a network of one's own, made invariant to the light, and saved."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lightfast._commands import options
from lightfast._commands.certify import _build
from lightfast._experiments import names_in

if TYPE_CHECKING:
    from torch import nn

    from lightfast._pipelines.classifier import Classifier

__all__ = ["convert"]

_SATURATIONS = (0.0, 0.5, 0.9)


def convert(
    target: Annotated[
        str, typer.Argument(help="package.module:factory, where factory() returns a classifier of sRGB images.")
    ],
    weights: Annotated[
        Path | None, typer.Option(help="What it has learned: .safetensors, or a state_dict that torch.save wrote.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="CIFAR-10, or a folder with one sub-folder a class, or with train/CLASS/* and val/CLASS/*."),
    ] = None,
    finetune: Annotated[int, typer.Option(min=0, help="Epochs of fine-tuning on the data.")] = 0,
    way: Annotated[
        str, typer.Option(help="convert: layer by layer, with a proof; or wrap: one adapter around all of it.")
    ] = "convert",
    mean: Annotated[str, typer.Option(help="Of the sRGB images that it was trained on.")] = "0.485,0.456,0.406",
    std: Annotated[str, typer.Option(help="Likewise, their standard deviation.")] = "0.229,0.224,0.225",
    classes: Annotated[
        str | None, typer.Option(help="Names with commas between them; by default those of the data, or numbers.")
    ] = None,
    size: Annotated[int | None, typer.Option(min=8, help="Pixels of the images; those of the data, or 224.")] = None,
    distill: Annotated[
        float, typer.Option(min=0, max=1, help="Share of the loss in which the network itself is the teacher.")
    ] = 0.5,
    lr: Annotated[float, typer.Option(help="The learning rate of fine-tuning.")] = 0.02,
    batch_size: Annotated[int, typer.Option(min=1, help="Images a step of fine-tuning.")] = 128,
    seed: Annotated[int, typer.Option(min=0, help="Of the order of images.")] = 0,
    out: options.Out = Path("runs/converted"),
    resume: options.Resume = False,
    device: options.Device = "auto",
) -> None:
    """Make a trained network ignore the color of the light, and keep what it has learned.

    What comes out is a model for `lightfast classify`, `evaluate` and `export`, without the code of the network.
    """
    from lightfast._experiments.engine import CHECKPOINT
    from lightfast._experiments.recognition.starting import start

    if way not in _WAYS:
        raise typer.BadParameter(f"the way is {' or '.join(_WAYS)}, not {way!r}")
    if finetune and data is None:
        raise typer.BadParameter("fine-tuning needs pictures: name their folder with --data")
    if (out / "model.json").exists():
        raise ValueError(f"{out} holds a model already: name another folder with --out, or delete it")
    pictures = _pictures(data, size)
    network = _build(target)
    if weights is not None:
        _load(network, weights)
    plain = _classifier(network, pictures, _numbers("mean", mean), _numbers("std", std), classes, size)
    images = None if pictures is None else pictures.train_images
    classifier = start(plain, _WAYS[way], images)
    report = getattr(classifier.network, "conversion", None)
    if report is not None:
        typer.echo(report)
    where, found = options.choose_device(device), []
    if pictures is not None:
        found.append(("as it was", _errors(plain, pictures, where)))
        found.append(("converted" if way == "convert" else "wrapped", _errors(classifier, pictures, where)))
    if finetune:
        _finetune(classifier, plain, pictures, finetune, distill, lr, batch_size, seed, out, resume, where)
        found.append((f"after {finetune} epoch{'s' if finetune > 1 else ''}", _errors(classifier, pictures, where)))
    classifier.about = {"from": target, "way": way, "epochs": finetune}
    classifier.cpu().save(out)
    (out / CHECKPOINT).unlink(missing_ok=True)
    if found:
        typer.echo(_table(found))
    typer.echo(f"written: {out / 'model.safetensors'} and {out / 'model.json'}")


_WAYS = {"convert": "equivariant", "wrap": "wrapped"}


def _pictures(data: Path | None, size: int | None) -> Any:
    from lightfast._experiments.recognition.pictures import load_pictures

    return None if data is None else load_pictures(data, size)


def _load(network: nn.Module, weights: Path) -> None:
    """Load what a network has learned; nothing is unpickled but tensors."""
    import pickle

    import torch

    from lightfast._pipelines.saving import load_weights

    if weights.suffix == ".safetensors":
        load_weights(network, weights)
        return
    try:
        state = torch.load(weights, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ValueError(f"{weights} does not hold a state_dict of tensors alone: {reason}") from None
    for key in ("state_dict", "model", "model_state_dict"):
        state = state[key] if isinstance(state, dict) and isinstance(state.get(key), dict) else state
    if not isinstance(state, dict):
        raise ValueError(f"{weights} holds {type(state).__name__}, not a state_dict")
    try:
        network.load_state_dict({str(name).removeprefix("module."): tensor for name, tensor in state.items()})
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()]
        raise ValueError(f"{weights} holds the weights of another network: {' '.join(lines[1:3])}") from None


def _classifier(
    network: nn.Module, pictures: Any, mean: list[float], std: list[float], classes: str | None, size: int | None
) -> Classifier:
    """The network as it was trained, with names for its classes."""
    import torch
    from torch import Tensor

    from lightfast._pipelines.classifier import Classifier, scores_in
    from lightfast.color import ChannelNorm

    if pictures is not None:
        images = pictures.train_images
        size = images.shape[-1] if isinstance(images, Tensor) else images.size
    size = size or 224
    with torch.no_grad():
        scores = scores_in(network.eval()(torch.zeros(1, 3, size, size)))
    given = names_in(classes) if classes else []
    names = given or (list(pictures.classes) if pictures is not None else [str(n) for n in range(scores.shape[1])])
    if len(names) != scores.shape[1]:
        raise ValueError(
            f"the network gives {scores.shape[1]} scores, but there are {len(names)} classes: "
            f"{', '.join(names[:5])}{' ...' if len(names) > 5 else ''}"
        )
    return Classifier(network, names, ChannelNorm(mean, std), color="srgb", size=size)


def _errors(classifier: Classifier, pictures: Any, device: Any) -> Any:
    from lightfast._experiments.recognition.evaluation import evaluate

    return evaluate(classifier, pictures.test_images, pictures.test_labels, saturations=_SATURATIONS, device=device)


def _finetune(
    classifier: Classifier,
    plain: Classifier,
    pictures: Any,
    epochs: int,
    distill: float,
    lr: float,
    batch_size: int,
    seed: int,
    out: Path,
    resume: bool,
    device: Any,
) -> None:
    from torch import Tensor

    from lightfast._experiments.engine import Recipe, train
    from lightfast._experiments.recognition.finetuning import epoch_recipe, task_for
    from lightfast._experiments.recognition.task import Augmentation

    cut = Augmentation(resize=True, smallest_part=0.25)
    task = task_for(classifier, pictures, cut, plain, distill if isinstance(pictures.train_images, Tensor) else 0.0)
    recipe = Recipe(1, batch_size, lr=lr, nesterov=True, schedule="cosine", seed=seed, log_every=20)
    recipe = epoch_recipe(recipe, len(pictures.train_labels), epochs)
    train(classifier.network, task, recipe, out, resume=resume, device=device)


def _table(found: list[tuple[str, Any]]) -> str:
    from lightfast._experiments.report.tables import markdown

    head = ["test error, %", *(f"S = {saturation:g}" for saturation in _SATURATIONS), "varying light"]
    rows = [[name, *(f"{error:.2f}" for error in one.errors), f"{one.mixed:.2f}"] for name, one in found]
    return f"\n{markdown([head, *rows])}\n"


def _numbers(name: str, text: str) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != 3:
        raise typer.BadParameter(f"--{name} is three numbers such as 0.485,0.456,0.406, not {text!r}")
    return numbers
