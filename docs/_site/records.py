"""Pages of results are made from the files under results/: tables, figures, and the commands that made them.

`<!-- records recognition/drawn -->` in a page becomes all that is in that folder; `<!-- all other records -->` what no
page asks for. Links of any page to a folder of results lead to where it is shown.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

RESULTS = Path(__file__).parents[2] / "results"
PAGES = Path(__file__).parents[1] / "results"

_RECORDS = re.compile(r"^<!-- records (\S+) -->$", re.MULTILINE)
_REST = "<!-- all other records -->"
_LINK = re.compile(r"\]\((?:\.\./)+results/([\w-]+)((?:/[\w-]+)*)(?:/?|/\w+\.md)\)")
_HEADING = re.compile(r"^#+ .*\n", re.MULTILINE)


def shown_folders() -> list[str]:
    """Folders that pages ask for by name, such as `recognition/drawn`."""
    return [name for page in sorted(PAGES.glob("*.md")) for name in _RECORDS.findall(page.read_text(encoding="utf-8"))]


def all_folders() -> list[str]:
    """Folders that have tables to show."""
    return sorted(path.parent.relative_to(RESULTS).as_posix() for path in RESULTS.glob("*/**/table.md"))


def commands(folder: Path) -> list[str]:
    """What was typed to make the records of a folder, as a reader would type it.

    Folders of data become DIR and folders of runs RUN: where they were on that machine concerns nobody.
    """
    files = sorted(folder.rglob("*.json"))
    found = {text for file in files for text in _commands_in(json.loads(file.read_text(encoding="utf-8")))}
    return sorted({_as_typed(text) for text in found if text != "-"})


def _commands_in(record: Any) -> Iterator[str]:
    if isinstance(record, dict):
        yield from [record["command"]] if isinstance(record.get("command"), str) else []
        yield from record["commands"] if isinstance(record.get("commands"), list) else []
    for each in record.values() if isinstance(record, dict) else record:
        # Long lists of numbers are not walked through.
        if isinstance(each, dict) or (isinstance(each, list) and each and isinstance(each[0], dict | list)):
            yield from _commands_in(each)


def _as_typed(command: str) -> str:
    """As a reader would type it.

    >>> _as_typed("cli.py train inpainting --data /root/x --resume --out slim")
    'lightfast train inpainting --data DIR --resume --out RUN'
    >>> _as_typed("loader.py --batches 4")
    'python benchmarks/loader.py --batches 4'
    """
    program, _, arguments = command.partition(" ")
    name = Path(program).name
    if name == "cli.py":
        name = "lightfast"
    elif name.endswith(".py"):
        name = f"python benchmarks/{name}"
    arguments = re.sub(r"--data \S+", "--data DIR", arguments)
    return re.sub(r"--out \S+", "--out RUN", f"{name} {arguments}".strip())


def records(name: str, page: Path) -> str:
    """A folder of records as Markdown, for a page at that path."""
    folder = RESULTS / name
    here = Path(os.path.relpath(folder, page.parent)).as_posix()
    table = _HEADING.sub("", (folder / "table.md").read_text(encoding="utf-8"))
    parts = [f"({label(name)})=", table]
    parts += [file.read_text(encoding="utf-8") for file in sorted(folder.glob("profile.md"))]
    parts += [f"![{name}: {file.stem}]({here}/{file.name})" for file in sorted(folder.glob("*.png"))]
    if typed := commands(folder):
        parts += ["Made by", "```sh\n" + "\n".join(typed) + "\n```"]
    files = [file for file in sorted(folder.iterdir()) if file.suffix in (".json", ".jsonl")]
    parts.append("Every number: " + ", ".join(f"[{file.name}]({here}/{file.name})" for file in files) + ".")
    return "\n\n".join(parts)


def label(name: str) -> str:
    """Where a folder is shown."""
    return f"records-{name.replace('/', '-')}"


def fill_in(source: str, page: Path) -> str:
    """A page with its records, and links to them."""
    source = _RECORDS.sub(lambda found: records(found[1], page), source)
    if _REST in source:
        rest = [name for name in all_folders() if name not in shown_folders()]
        texts = [f"## {name}\n\n{records(name, page)}" for name in rest]
        source = source.replace(_REST, "\n\n".join(texts) or "There are none.")
    return _LINK.sub(_to_page, source)


def _to_page(link: re.Match[str]) -> str:
    """A link to a folder under results/ leads to where the site shows it."""
    task, below = link.groups()
    if (RESULTS / f"{task}{below}" / "table.md").exists():
        return f"](#{label(task + below)})"
    return f"](/results/{task}.md)" if (PAGES / f"{task}.md").exists() else link[0]


def _on_source_read(app: Sphinx, docname: str, source: list[str]) -> None:
    source[0] = fill_in(source[0], Path(app.srcdir) / f"{docname}.md")


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx calls this."""
    app.connect("source-read", _on_source_read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
