"""`lightfast reproduce`: the paper's experiments, from training to report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lightfast._commands import options

if TYPE_CHECKING:
    from lightfast._experiments.recognition.pictures import Pictures
    from lightfast._experiments.recognition.plans import Plan

__all__ = ["app"]

app = typer.Typer(help="The paper's experiments, from training to report.", no_args_is_help=True)

Strategies = Annotated[
    str,
    typer.Option(
        help="Comma-separated: original, augmentation, gray-world, shades-of-gray, quasi-unsupervised (or "
        "preprocessing for these three), equivariant, wrapped, wrapped-plane, wrapped-quadratic, group-dropout, "
        "equivariant-pixel, group-fill, equivariant-free, free-group-fill; or all."
    ),
]
Seeds = Annotated[int, typer.Option(min=1, help="Trainings of each strategy.")]


@app.command()
def recognition(
    data: Annotated[
        Path | None,
        typer.Option(
            help="CIFAR-10 (the folder that holds cifar-10-batches-bin), or a folder with one sub-folder a class; by "
            "default, pictures that lightfast draws itself."
        ),
    ] = None,
    recipe: Annotated[str, typer.Option(help="paper, best or quick.")] = "quick",
    strategies: Strategies = "all",
    seeds: Seeds = 1,
    out: options.Out = Path("runs/recognition"),
    model: Annotated[str | None, typer.Option(help="The network; the recipe's by default.")] = None,
    size: options.Size = None,
    steps: options.Steps = None,
    only: options.Only = None,
    parallel: options.Parallel = 4,
    resume: options.Resume = False,
    settings: options.Settings = None,
    device: options.Device = "auto",
    precision: options.Precision = "auto",
) -> None:
    """Compare strategies against colored light: train, relight the test images, count errors, write a report."""
    from lightfast._experiments.recognition.pictures import drawn_pictures

    names = {"paper": "paper", "best": "best", "quick": "demo" if data is None else "quick"}
    plan = options.choose_plan(names, recipe, model, steps, settings)
    pictures = drawn_pictures() if data is None else options.load_pictures(data, size)
    _compare(plan, pictures, strategies, seeds, out, only, parallel, resume, device, precision)


@app.command()
def imagenet(
    data: Annotated[Path, typer.Option(help="A folder with train/CLASS/* and val/CLASS/*, as ILSVRC-12 has.")],
    recipe: Annotated[str, typer.Option(help="paper (450,000 steps) or quick.")] = "paper",
    strategies: Strategies = "original,preprocessing,augmentation,equivariant,wrapped",
    seeds: Seeds = 1,
    out: options.Out = Path("runs/imagenet"),
    model: Annotated[str | None, typer.Option(help="resnet50 by default, resnet18 for quick.")] = None,
    size: options.Size = None,
    steps: options.Steps = None,
    only: options.Only = None,
    parallel: options.Parallel = 1,
    resume: options.Resume = False,
    settings: options.Settings = None,
    device: options.Device = "auto",
    precision: options.Precision = "auto",
) -> None:
    """The same comparison on ImageNet-like folders: random parts of random size, mirrored, and larger networks."""
    plan = options.choose_plan({"paper": "imagenet", "quick": "imagenet-quick"}, recipe, model, steps, settings)
    pictures = options.load_pictures(data, size or (224 if recipe == "paper" else 64))
    _compare(plan, pictures, strategies, seeds, out, only, parallel, resume, device, precision)


def _compare(
    plan: Plan,
    pictures: Pictures,
    strategies: str,
    seeds: int,
    out: Path,
    only: str | None,
    parallel: int,
    resume: bool,
    device_name: str,
    precision: str,
) -> None:
    from lightfast._experiments.engine import is_main
    from lightfast._experiments.recognition.strategies import choose
    from lightfast._experiments.recognition.study import Study, parse_pairs, reproduce
    from lightfast._experiments.report import write_report

    device = options.choose_device(device_name)
    study = Study(
        pictures,
        options.adapt(plan, precision, device),
        choose(name.strip() for name in strategies.split(",") if name.strip()),
        seeds,
        out,
        only=None if only is None else parse_pairs(only),
        # Without a GPU trainings follow one another anyway, and each is then evaluated as soon as it is done.
        parallel=parallel if device.type == "cuda" else 1,
        resume=resume,
        device=device,
    )
    reproduce(study, say=options.say)
    if is_main():
        typer.echo("")
        typer.echo(write_report(out, pictures, device))
        typer.echo(f"written: {', '.join(str(out / name) for name in ('table.md', 'results.json', 'report.html'))}")
