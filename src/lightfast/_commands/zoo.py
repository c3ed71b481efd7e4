"""`lightfast zoo --library timm`: which networks of a library convert."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

import typer

from lightfast._commands.options import Resume
from lightfast._experiments import names_in


def zoo(
    library: Annotated[
        str,
        typer.Option(
            help="timm, torchvision, transformers, monai or lightfast, or several with commas; or package.module:name, "
            "a mapping from names to functions that give a network and an example. By default all that are installed."
        ),
    ] = "",
    names: Annotated[
        str, typer.Option(help="Patterns such as 'resnet*,vit_tiny*'; by default one network of each family.")
    ] = "",
    all_networks: Annotated[bool, typer.Option("--all", help="All networks instead of one of each family.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="A folder for a record per library and table.md; by default nothing is written.")
    ] = None,
    resume: Resume = False,
    limit: Annotated[float, typer.Option(min=1, help="Seconds after which a network is given up.")] = 300,
    memory: Annotated[float, typer.Option(min=1, help="GiB that a network may take.")] = 16,
    processes: Annotated[int, typer.Option(min=1, help="How many networks at a time, each on one core.")] = 1,
) -> None:
    """Convert the networks of installed libraries one by one: what is proved, how long it takes, and why others fail.

    Without any of the libraries, the networks of lightfast itself are converted.
    """
    from lightfast._convert import coverage
    from lightfast._convert.libraries import LIBRARIES, networks, one_per_family
    from lightfast._convert.sweep import sweep
    from lightfast._experiments.provenance import provenance

    tried, works = 0, 0
    for source in names_in(library) or list(LIBRARIES):
        try:
            found = networks(source)
        except ImportError as error:
            if library:
                raise typer.BadParameter(f"{source} cannot be imported: {error}") from error
            typer.echo(f"{source} is missing, so its networks are left out: pip install {source}")
            continue
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        chosen = list(found) if names or all_networks else one_per_family(found)
        if names:
            chosen = [name for name in chosen if any(fnmatchcase(name, pattern) for pattern in names_in(names))]
        record = coverage.read(out, source, provenance()) if out is not None else None
        if record is not None and resume:
            # Those that were given up may go on if they have longer now.
            known = {row["name"] for row in record["networks"] if row["converts"] or row["limit"] >= limit}
            chosen = [name for name in chosen if name not in known]
            tried += sum(row["built"] for row in record["networks"] if row["name"] in known)
            works += sum(row["converts"] for row in record["networks"])
        for row in sweep(source, chosen, limit, memory, processes):
            tried, works = tried + row.built, works + row.converts
            says = f"{row.constrained} of {row.layers} layers constrained" if row.converts else f"no: {row.reason}"
            typer.echo(f"{source} {row.name}: {says}, {row.seconds:.1f} s")
            if out is not None and record is not None:
                coverage.add(out, record, row, found)
    if not tried:
        raise typer.BadParameter(f"no network of {library or 'the libraries that are installed'} is called {names}")
    typer.echo(f"{works} of {tried} networks convert")
