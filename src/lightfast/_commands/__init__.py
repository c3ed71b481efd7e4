"""The commands of `lightfast`, one a file. Importing them is cheap: what a command needs is imported when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from lightfast._commands import bench, experiments
from lightfast._commands.balance import balance
from lightfast._commands.certify import certify
from lightfast._commands.classify import classify
from lightfast._commands.convert import convert
from lightfast._commands.data import data
from lightfast._commands.evaluate import evaluate
from lightfast._commands.export import export
from lightfast._commands.inpaint import inpaint
from lightfast._commands.page import page
from lightfast._commands.zoo import zoo

__all__ = ["app"]

app = typer.Typer(
    help="Networks that the color of the light cannot fool.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from lightfast import __version__

        typer.echo(f"lightfast {__version__}")
        raise typer.Exit


@app.callback()
def _lightfast(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    pass


app.add_typer(experiments.reproduce, name="reproduce")
app.add_typer(experiments.train, name="train")
app.add_typer(bench.app, name="bench")
for command in (evaluate, classify, data, balance, inpaint, page, certify, convert, zoo, export):
    app.command()(command)
