"""`lightfast train`: a network for one's own pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lightfast._commands import options

__all__ = ["app"]

app = typer.Typer(help="Train a network on your own pictures.", no_args_is_help=True)


@app.callback()
def _train() -> None:
    pass


@app.command()
def recognition(
    data: Annotated[
        Path | None,
        typer.Option(
            help="A folder with one sub-folder a class, or with train/CLASS/* and val/CLASS/*; by default, pictures "
            "that lightfast draws itself."
        ),
    ] = None,
    strategy: Annotated[str, typer.Option(help="How to cope with colored light.")] = "equivariant",
    model: Annotated[str | None, typer.Option(help="The network; resnet18 for folders by default.")] = None,
    recipe: Annotated[str, typer.Option(help="paper, best or quick.")] = "quick",
    size: Annotated[
        int | None, typer.Option(min=8, help="Pixels to which pictures are scaled; 128 by default.")
    ] = None,
    out: options.Out = Path("runs/classifier"),
    seed: Annotated[int, typer.Option(min=0, help="Of the first weights and the order of the pictures.")] = 0,
    steps: options.Steps = None,
    resume: options.Resume = False,
    settings: options.Settings = None,
    device: options.Device = "auto",
    precision: options.Precision = "auto",
) -> None:
    """Train a classifier that the color of the light cannot fool, and say how it does under colored light."""
    from lightfast._experiments.recognition.pictures import drawn_pictures
    from lightfast._experiments.recognition.strategies import choose
    from lightfast._experiments.recognition.study import check_settings
    from lightfast._experiments.recognition.workshop import RECORD, Workshop

    chosen = choose([strategy])
    if len(chosen) != 1:
        raise ValueError(f"{strategy!r} names {len(chosen)} strategies; train one at a time")
    names = {"paper": "paper", "best": "best", "quick": "demo" if data is None else "imagenet-quick"}
    plan = options.choose_plan(names, recipe, model, steps, settings)
    pictures = drawn_pictures() if data is None else options.load_pictures(data, size or 128)
    where = options.choose_device(device)
    plan = options.adapt(plan, precision, where)
    check_settings(out, pictures, plan)
    if (out / RECORD).exists():
        raise ValueError(f"{out} holds a trained classifier already: name another folder with --out, or delete it")
    workshop = Workshop(pictures, plan, out, resume=resume, device=where, say=options.say)
    workshop.run({(chosen[0].name, seed): out})
    options.say(f"written: {out}; try: lightfast classify PHOTO --model {out}")
