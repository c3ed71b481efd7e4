"""`lightfast reproduce inpainting` and `lightfast train inpainting`: holes filled under any light."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lightfast._commands import options

if TYPE_CHECKING:
    import torch

    from lightfast._experiments.data.street import HoleImages
    from lightfast._experiments.inpainting.plans import InpaintingPlan

__all__ = ["inpainting", "load_images", "train_inpainting"]

Data = Annotated[
    Path | None,
    typer.Option(
        help="A folder that holds street128/train, street128/test and paris_eval, folders of photographs; by default, "
        "textures that lightfast draws itself."
    ),
]
Recipe = Annotated[
    str | None, typer.Option(help="best, slim or demo; by default best for photographs, demo for drawn textures.")
]
Graph = Annotated[bool, typer.Option(help="On a GPU, replay each step from a CUDA graph.")]
Half = Annotated[bool, typer.Option("--half", help="Save weights in 16 bits.")]


def inpainting(
    data: Data = None,
    networks: Annotated[
        str, typer.Option(help="Comma-separated: original, wrapped, equivariant, equivariant-free; or all.")
    ] = "all",
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each network.")] = 1,
    out: options.Out = Path("runs/inpainting"),
    recipe: Recipe = None,
    steps: options.Steps = None,
    only: options.Only = None,
    parallel: options.Parallel = 3,
    resume: options.Resume = False,
    settings: options.Settings = None,
    photographs: Annotated[bool, typer.Option(help="Show images of the data set in the report.")] = True,
    half: Half = False,
    graph: Graph = True,
    device: options.Device = "auto",
    precision: options.Precision = "auto",
) -> None:
    """Compare inpainting networks: train, relight the test images, fill the hole, measure, write a report.

    What is in the folder already is not done again.
    """
    from lightfast._experiments.inpainting.plans import FILLERS, choose_fillers
    from lightfast._experiments.inpainting.report import write_inpainting_report
    from lightfast._experiments.inpainting.study import InpaintingStudy
    from lightfast._experiments.recognition.study import parse_pairs

    where = options.choose_device(device)
    plan = _plan(recipe, data, steps, settings, where, precision, graph)
    chosen, pairs = choose_fillers(networks), None if only is None else parse_pairs(only, FILLERS)
    images = load_images(data)
    study = InpaintingStudy(
        images,
        plan,
        chosen,
        seeds,
        out,
        only=pairs,
        # Without a GPU trainings follow one another anyway, and each is then measured as soon as it is done.
        parallel=parallel if where.type == "cuda" else 1,
        resume=resume,
        half=half,
        device=where,
        say=typer.echo,
    )
    study.run()
    typer.echo("")
    typer.echo(write_inpainting_report(out, images, photographs))
    typer.echo(f"written: {', '.join(str(out / file) for file in ('table.md', 'results.json', 'report.html'))}")


def train_inpainting(
    data: Data = None,
    network: Annotated[
        str, typer.Option(help="original, wrapped, equivariant or equivariant-free.")
    ] = "equivariant-free",
    out: options.Out = Path("runs/inpainter"),
    name: Annotated[str, typer.Option(help="The name of the files in the folder.")] = "model",
    recipe: Recipe = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the first weights and the order of the images.")] = 0,
    steps: options.Steps = None,
    start: Annotated[
        str | None, typer.Option(help="Begin from a trained inpainter of the same kind: a folder, or a pretrained one.")
    ] = None,
    resume: options.Resume = False,
    settings: options.Settings = None,
    half: Half = False,
    graph: Graph = True,
    device: options.Device = "auto",
    precision: options.Precision = "auto",
) -> None:
    """Train an inpainter, and save it, as `lightfast inpaint --model` takes it."""
    from lightfast._experiments.inpainting.plans import choose_fillers
    from lightfast._experiments.inpainting.study import InpaintingStudy
    from lightfast._experiments.recognition.study import keep_settings
    from lightfast._experiments.recognition.workshop import RECORD
    from lightfast._pipelines.inpainter import Inpainter

    where = options.choose_device(device)
    plan = _plan(recipe, data, steps, settings, where, precision, graph)
    chosen = choose_fillers(network)
    if len(chosen) != 1:
        raise ValueError(f"{network!r} names {len(chosen)} networks; train one at a time")
    if (out / RECORD).exists():
        raise ValueError(f"{out} holds a trained inpainter already: name another folder with --out, or delete it")
    first = None if start is None else Inpainter.load(start)
    study = InpaintingStudy(
        load_images(data), plan, chosen, 1, out, resume=resume, half=half, start=first, device=where, say=typer.echo
    )
    keep_settings(out, study.settings())
    images, held_out = study.images.held_out(plan.held_out)
    study.train({(chosen[0], seed): out}, images, held_out, name)
    typer.echo(f"written: {out / name}.safetensors and {out / name}.json")


def _plan(
    recipe: str | None,
    data: Path | None,
    steps: int | None,
    settings: list[str] | None,
    device: torch.device,
    precision: str,
    graph: bool,
) -> InpaintingPlan:
    from lightfast._experiments.inpainting.plans import INPAINTING_PLANS

    recipe = recipe or ("demo" if data is None else "best")
    if recipe not in INPAINTING_PLANS:
        raise ValueError(f"the recipe is one of {', '.join(INPAINTING_PLANS)}, not {recipe!r}")
    if precision not in ("auto", "float32", "bfloat16"):
        raise ValueError(f"the precision is auto, float32 or bfloat16, not {precision!r}")
    plan = INPAINTING_PLANS[recipe]
    plan = plan if steps is None else plan.with_steps(steps)
    on_gpu = device.type == "cuda"
    chosen = precision if precision != "auto" else "bfloat16" if on_gpu else "float32"
    fitted = {"precision": chosen, "channels_last": on_gpu, "graph": on_gpu and graph}
    return plan.with_values(fitted | dict(options.parse_setting(text) for text in settings or []))


def load_images(data: Path | None) -> HoleImages:
    """The photographs in a folder, or textures that are drawn."""
    from lightfast._experiments.data.generated_textures import drawn_textures
    from lightfast._experiments.data.street import load_street

    return drawn_textures() if data is None else load_street(data)
