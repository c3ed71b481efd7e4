"""Fill the tables of README and docs in from the files under results/, so that no number is ever typed.

A block starts with `<!-- table N of PATH -->` and ends with `<!-- end of table -->`; what is between them becomes the
N-th table of the Markdown file at PATH, counted from 1. A single number is between
`<!-- cell N of PATH: ROW; COLUMN -->` and `<!-- end of cell -->`. Run `make docs` after results changed; a test sees
that it was done.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"(<!-- table (\d+) of (\S+) -->\n).*?(<!-- end of table -->)", re.DOTALL)

CELL = re.compile(r"(<!-- cell (\d+) of (\S+): (.*?); (.*?) -->).*?(<!-- end of cell -->)")


def tables(markdown: str) -> list[str]:
    """The tables of a Markdown text, in order."""
    return re.findall(r"(?:^\|.*\n)+", markdown, re.MULTILINE)


def render(page: str) -> str:
    """A page with its blocks filled in."""

    def fill(block: re.Match[str]) -> str:
        start, number, path, end = block.groups()
        return f"{start}\n{tables((ROOT / path).read_text(encoding='utf-8'))[int(number) - 1]}\n{end}"

    def fill_cell(block: re.Match[str]) -> str:
        start, number, path, row, column, end = block.groups()
        return f"{start}{cell(tables((ROOT / path).read_text(encoding='utf-8'))[int(number) - 1], row, column)}{end}"

    return CELL.sub(fill_cell, BLOCK.sub(fill, page))


def cell(table: str, row: str, column: str) -> str:
    """What a table has in the row that begins with a name, below the head of a column."""
    head, _, *rows = ([text.strip() for text in line.strip("| ").split("|")] for line in table.strip().splitlines())
    found = [line for line in rows if line[0] == row]
    if len(found) != 1 or column not in head:
        raise ValueError(
            f"no table with one row {row!r} and a column {column!r}, but {head} and {[r[0] for r in rows]}"
        )
    return found[0][head.index(column)]


def pages() -> list[Path]:
    """Everything that may hold blocks."""
    about = ROOT / "src" / "lightfast" / "_page" / "about.md"
    return [ROOT / "README.md", about, *sorted((ROOT / "docs").rglob("*.md"))]


def main() -> None:
    """Write every page anew; with --check, only say which would change, and fail."""
    changed = []
    for page in pages():
        before = page.read_text(encoding="utf-8")
        after = render(before)
        if after != before:
            changed.append(page.relative_to(ROOT).as_posix())
            if "--check" not in sys.argv:
                page.write_text(after, encoding="utf-8")
    if changed and "--check" in sys.argv:
        sys.exit(f"not up to date with results/: {', '.join(changed)}; run make docs")
    print("\n".join(changed) or "nothing changed")


if __name__ == "__main__":
    main()
