"""Blocks of Python in a page of Markdown, as tests and the site execute them."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["Block", "python_blocks"]

_PATTERN = re.compile(r"(<!-- not run -->\s*)?^```python\n(?P<code>.*?)^```\n?", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """Code, the line that it begins after, and where the text of the page goes on."""

    code: str
    line: int
    end: int


def python_blocks(page: str) -> list[Block]:
    """Those that are run: a block after `<!-- not run -->` is shown only."""
    return [
        Block(found["code"], page[: found.start("code")].count("\n"), found.end())
        for found in _PATTERN.finditer(page)
        if not found[1]
    ]
