"""`lightfast zoo --library timm`: which networks of a library convert."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lightfast._experiments import names_in


def zoo(
    library: Annotated[str, typer.Option(help="timm, transformers or monai; it has to be installed.")] = "transformers",
    names: Annotated[
        str, typer.Option(help="Patterns such as 'resnet*,vit_tiny*'; by default all, of timm one of each family.")
    ] = "",
    out: Annotated[
        Path | None, typer.Option(help="A folder for results.json and table.md; by default nothing is written.")
    ] = None,
    limit: Annotated[float, typer.Option(help="Seconds after which a network is given up.")] = 300,
) -> None:
    """Convert the networks of an installed library one by one, with the time and the reason of each."""
    from lightfast._atomic import write_json, write_whole
    from lightfast._convert.sweep import record, sweep, table

    rows = []
    try:
        for row in sweep(library, names_in(names), limit):
            rows.append(row)
            says = f"{row.constrained} of {row.layers} layers constrained" if row.converts else f"no: {row.reason}"
            typer.echo(f"{row.name}: {says}, {row.seconds:.1f} s")
    except ImportError as error:
        raise typer.BadParameter(f"{library} is not installed: pip install {library} ({error})") from error
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if not rows:
        raise typer.BadParameter(f"no network of {library} is called {names}")
    found = record(library, rows)
    if out is not None:
        write_json(out / "results.json", found)
        write_whole(out / "table.md", table(found).encode())
    typer.echo(f"{sum(row.converts for row in rows)} of {len(rows)} networks convert")
