"""`<!-- commands -->` becomes what every command says of itself with --help."""

from __future__ import annotations

from collections.abc import Iterator

from sphinx.application import Sphinx


def command_help() -> Iterator[tuple[str, str]]:
    """Every command that does something, as it is typed, and its help."""
    import click
    import typer

    from lightfast._commands import app

    def below(command: click.Command, name: str) -> Iterator[tuple[str, str]]:
        for inner, each in getattr(command, "commands", {}).items():
            yield from below(each, f"{name} {inner}")
        if not hasattr(command, "commands"):
            context = click.Context(command, info_name=name, terminal_width=100, max_content_width=100)
            yield name, command.get_help(context)

    yield from below(typer.main.get_command(app), "lightfast")


def _on_source_read(app: Sphinx, docname: str, source: list[str]) -> None:
    if "<!-- commands -->" in source[0]:
        texts = [f"## {name}\n\n```text\n{help.rstrip()}\n```\n" for name, help in command_help()]
        source[0] = source[0].replace("<!-- commands -->", "\n".join(texts))


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx calls this."""
    app.connect("source-read", _on_source_read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
