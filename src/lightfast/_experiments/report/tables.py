"""Tables: of text, in Markdown, and of what is compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lightfast._experiments.summary import Summary

Rows = list[list[str]]


@dataclass(frozen=True)
class Table:
    """Rows of text, the first being the head, and a caption; `strong` are rows (from 1) to stand out."""

    rows: Sequence[Sequence[str]]
    caption: str = ""
    strong: tuple[int, ...] = ()

    def __str__(self) -> str:
        return markdown([list(row) for row in self.rows])


def comparison(
    summaries: Sequence[Summary],
    head: Sequence[str],
    cells: Callable[[Summary], Sequence[str]],
    caption: str,
    seeds: bool = False,
) -> Table:
    """A row for everything that is compared: its title and its cells, and with `seeds` its parameters and seeds."""
    more = ["parameters", "seeds"] if seeds else []
    rows = [[*head, *more]]
    for summary in summaries:
        sizes = [f"{summary.parameters:,}", str(summary.seeds or "")] if seeds else []
        rows.append([summary.title, *cells(summary), *sizes])
    return Table(rows, caption, tuple(place for place, summary in enumerate(summaries, start=1) if summary.ours))


def markdown(rows: Rows) -> str:
    """A table whose first row is the head; all columns but the first are numbers, set to the right.

    >>> print(markdown([["strategy", "error"], ["original", "8.70"]]))
    | strategy | error |
    |:---------|------:|
    | original |  8.70 |
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]

    def line(row: Sequence[str]) -> str:
        first, *others = (
            text.ljust(width) if column == 0 else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        return f"| {' | '.join([first, *others])} |"

    rule = "|".join(
        f":{'-' * (widths[0] + 1)}" if column == 0 else f"{'-' * (width + 1)}:" for column, width in enumerate(widths)
    )
    return "\n".join([line(rows[0]), f"|{rule}|", *(line(row) for row in rows[1:])])
