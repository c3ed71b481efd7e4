"""One self-contained page of HTML: nothing is loaded from anywhere, and it follows the reader's light or dark mode."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from lightfast._experiments.report.tables import Table


@dataclass(frozen=True)
class Picture:
    """A PNG on white, the same on black, and what it shows in words."""

    light: bytes
    dark: bytes
    description: str


@dataclass(frozen=True)
class Facts:
    """Names and what belongs to them, in words."""

    entries: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Chapter:
    """A heading and what comes below it: paragraphs, pictures, tables."""

    heading: str
    parts: Sequence[Any]


def page(title: str, lead: str, chapters: Sequence[Chapter]) -> str:
    """The page.

    >>> "<h1>Light &amp; color</h1>" in page("Light & color", "", [])
    True
    """
    body = "\n".join(
        f"<section>\n<h2>{escape(chapter.heading)}</h2>\n{''.join(map(_part, chapter.parts))}</section>"
        for chapter in chapters
    )
    return _TEMPLATE.format(title=escape(title), lead=escape(lead), style=_STYLE, body=body)


def _part(part: str | Picture | Table | Facts) -> str:
    if isinstance(part, Picture):
        return _picture(part)
    if isinstance(part, Table):
        return _table(part)
    if isinstance(part, Facts):
        entries = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in part.entries)
        return f"<dl>{entries}</dl>\n"
    return f"<p>{escape(part)}</p>\n"


def _picture(picture: Picture) -> str:
    light, dark = (
        f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}" for png in (picture.light, picture.dark)
    )
    return (
        f'<figure><picture><source srcset="{dark}" media="(prefers-color-scheme: dark)">'
        f'<img src="{light}" alt="{escape(picture.description, quote=True)}"></picture></figure>\n'
    )


def _table(table: Table) -> str:
    head, *rows = table.rows
    heads = "".join(f'<th scope="col">{escape(text)}</th>' for text in head)
    lines = [f"<tr>{heads}</tr>"]
    for number, (first, *others) in enumerate(rows, start=1):
        mark = ' class="strong"' if number in table.strong else ""
        cells = "".join(f"<td>{escape(text)}</td>" for text in others)
        lines.append(f'<tr{mark}><th scope="row">{escape(first)}</th>{cells}</tr>')
    caption = f"<caption>{escape(table.caption)}</caption>" if table.caption else ""
    return f'<div class="scroll"><table>{caption}{"".join(lines)}</table></div>\n'


_TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
<header>
<h1>{title}</h1>
<p class="lead">{lead}</p>
</header>
{body}
</main>
</body>
</html>
"""

_STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1f2430; --soft: #5d6675; --line: #e3e6ec; --mark: #eef4fd; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #16181d; --ink: #e4e7ee; --soft: #9aa3b2; --line: #2c313b; --mark: #1d2a3c; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 68rem; margin: 0 auto; padding: 3rem 1.5rem 4rem; }
h1 { font-size: 2rem; line-height: 1.2; letter-spacing: -0.01em; margin: 0 0 .75rem; }
h2 { font-size: 1.2rem; margin: 0 0 .75rem; }
.lead { font-size: 1.15rem; color: var(--soft); margin: 0; max-width: 46rem; }
section { margin-top: 3rem; }
p { margin: 0 0 1rem; max-width: 46rem; }
figure { margin: 0 0 1rem; }
figure img { display: block; width: 100%; height: auto; }
caption { color: var(--soft); font-size: .9rem; text-align: left; padding: .25rem 0 .5rem; }
.scroll { overflow-x: auto; margin-bottom: 1rem; }
table { border-collapse: collapse; width: 100%; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { padding: .45rem .55rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child { text-align: left; }
th[scope=col] { color: var(--soft); font-weight: 600; border-bottom-width: 2px; }
th[scope=row] { font-weight: 500; white-space: normal; min-width: 10rem; }
tr.strong th, tr.strong td { background: var(--mark); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .5rem 1.5rem; margin: 0; font-size: .92rem; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
@media print { main { max-width: none; padding: 0; } section { break-inside: avoid; } }
"""
