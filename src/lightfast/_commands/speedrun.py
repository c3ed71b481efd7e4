"""`lightfast bench speedrun`: the shortest time to an accurate classifier under any light."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from lightfast._commands import options
from lightfast._experiments import names_in


def speedrun(
    data: Annotated[
        Path | None,
        typer.Option(help="CIFAR-10 (the folder that holds cifar-10-batches-bin); by default, drawn pictures."),
    ] = None,
    network: Annotated[str, typer.Option(help="Comma-separated networks to try, such as resnet9,resnet9-wide.")] = (
        "resnet9"
    ),
    epochs: Annotated[str, typer.Option(help="Comma-separated lengths to try, such as 24,32.")] = "30",
    strategy: Annotated[str, typer.Option(help="One that no light can fool.")] = "wrapped-plane",
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each.")] = 1,
    target: Annotated[float, typer.Option(min=0, max=100, help="Per cent right, under every light.")] = 94.0,
    held_out: Annotated[
        bool, typer.Option(help="Test on a tenth of the training images, which are not trained on: for choices.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Another value for a part of the attempt: --set lr=0.3 --set ema=0.99"),
    ] = None,
    out: options.Out = Path("runs/speedrun"),
    resume: options.Resume = False,
    device: options.Device = "auto",
) -> None:
    """Train against the clock until a network is right often enough under white and under colored light."""
    from lightfast import models
    from lightfast._atomic import write_json
    from lightfast._experiments.engine import Interrupted
    from lightfast._experiments.plan import parse_setting
    from lightfast._experiments.provenance import provenance
    from lightfast._experiments.recognition.pictures import drawn_pictures, load_pictures
    from lightfast._experiments.recognition.speedrun import Attempt, attempt
    from lightfast._experiments.recognition.speedrun_report import write_speedrun_report

    changes = dict(parse_setting(text) for text in settings or [])
    known = {field.name for field in dataclasses.fields(Attempt)} - {"network", "epochs", "strategy", "seed"}
    if set(changes) - known:
        raise ValueError(f"an attempt has no {', '.join(set(changes) - known)}; it has {', '.join(sorted(known))}")
    names = names_in(network)
    unknown = [name for name in names if name not in models.names()]
    if unknown or not names:
        raise ValueError(f"there is no network {', '.join(unknown)}; there are {', '.join(models.names())}")
    attempts = [
        Attempt(name, strategy, length, seed, **changes)
        for name in names
        for length in _lengths(epochs)
        for seed in range(seeds)
    ]
    where = options.choose_device(device)
    pictures = drawn_pictures() if data is None else load_pictures(data)
    pictures = pictures.held_out() if held_out else pictures
    out.mkdir(parents=True, exist_ok=True)
    path = out / "results.json"
    records = json.loads(path.read_text(encoding="utf-8"))["attempts"] if path.exists() else []
    if records and not resume:
        raise ValueError(f"{out} holds attempts already: go on with --resume, or name another folder with --out")
    left = [how for how in attempts if not any(_is_of(record, how) for record in records)]
    if len(left) < len(attempts):
        typer.echo(f"{len(attempts) - len(left)} of {len(attempts)} attempts are in {out} already")
    table = write_speedrun_report(out, records) if records else ""
    for how in left:
        try:
            record = attempt(how, pictures, where, target, typer.echo)
        except Interrupted as error:
            kept = f"interrupted: {len(records)} attempts are in {out}; to go on, give the same command with --resume"
            raise Interrupted(kept, error.number) from None
        records.append({**record, "provenance": provenance()})
        write_json(path, {"attempts": records})
        table = write_speedrun_report(out, records)
    typer.echo("")
    typer.echo(table)
    typer.echo(f"written: {out}")


def _is_of(record: dict[str, Any], how: Any) -> bool:
    """Whether a record is of that attempt."""
    return all(record.get(name) == value for name, value in dataclasses.asdict(how).items())


def _lengths(text: str) -> list[float]:
    try:
        lengths = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        lengths = []
    if not lengths or min(lengths) <= 0:
        raise ValueError(f"epochs are numbers above 0 such as 24,32, not {text!r}")
    return lengths
