"""`lightfast bench`: how fast the networks are, and the shortest way to an accurate one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lightfast._commands import options
from lightfast._commands.speedrun import speedrun
from lightfast._experiments import names_in

app = typer.Typer(help="How fast the networks are, as ratios to conventional ones.")
app.command("speedrun")(speedrun)


@app.callback(invoke_without_command=True)
def bench(
    context: typer.Context,
    device: options.Device = "auto",
    out: options.Out = Path("runs/speed"),
    json: Annotated[Path | None, typer.Option(help="Another file for the numbers than results.json in OUT.")] = None,
    networks: Annotated[
        str, typer.Option(help="Comma-separated, NETWORK or NETWORK:BATCH, such as resnet20:128; all by default.")
    ] = "",
    precisions: Annotated[str, typer.Option(help="Comma-separated: float32, bfloat16.")] = "",
    variants: Annotated[str, typer.Option(help="Comma-separated; all by default. plain is always there.")] = "",
    seconds: Annotated[
        float, typer.Option(min=1, help="Nothing more is begun after so long; what is left out is said.")
    ] = 1800,
    each: Annotated[
        float | None, typer.Option(min=0, help="Seconds of timing for each comparison, once it is warm.")
    ] = None,
    compiled: Annotated[bool, typer.Option(help="Measure torch.compile too, on the first network.")] = True,
    growth: Annotated[bool, typer.Option(help="Measure what the cost grows with.")] = True,
    levers: Annotated[bool, typer.Option(help="Measure what each lever gives, on the first network.")] = True,
    launches: Annotated[
        bool, typer.Option(help="Measure what launching kernels costs: a loop without CUDA graphs, on a GPU.")
    ] = True,
    profile: Annotated[bool, typer.Option(help="Write down where the time of a training step goes.")] = False,
    processor_time: Annotated[
        bool, typer.Option(help="Time by processor time: for a CPU that others use too, with OMP_NUM_THREADS=1.")
    ] = False,
    resume: options.Resume = False,
    quick: Annotated[
        bool, typer.Option(help="ResNet-20 in float32 alone, without compilers: a minute or two.")
    ] = False,
) -> None:
    """Time training steps and inference: plain, straightforward and ours, side by side in one process."""
    if context.invoked_subcommand is not None:
        return
    from lightfast._experiments.speed.run import Request, run

    where = options.choose_device(device)
    defaults = "float32" if quick else "float32,bfloat16" if where.type == "cpu" else "bfloat16,float32"
    request = Request(
        device=where,
        out=out,
        json=json,
        networks=names_in(networks or ("resnet20:128" if quick else "")),
        precisions=names_in(precisions or defaults),
        variants=names_in(variants),
        seconds=seconds,
        each=each if each is not None else 3.0 if where.type == "cuda" else 20.0,
        compiled=compiled and not quick,
        growth=growth,
        levers=levers,
        launches=launches,
        profile=profile,
        processor_time=processor_time,
        resume=resume,
    )
    typer.echo(run(request, say=typer.echo))
    typer.echo(f"written: {out}")
