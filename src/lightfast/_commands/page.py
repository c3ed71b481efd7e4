"""`lightfast page`: what the commands do, in a browser."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["page"]


def page(
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="The first free one from 7860 on, by default.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="A classifier of your own, by its folder, to see under any light.")
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open it in the browser at once.")] = True,
) -> None:
    """Open a page on this machine: balance and fill photographs, and see two networks under any light.

    It is shown to this machine alone (127.0.0.1), works without internet, and keeps no files. Ctrl-C ends it.
    """
    from lightfast._page.app import page

    page(port, model=model, open_browser=browser)
