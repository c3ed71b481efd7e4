"""The code blocks of the documentation run, page by page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]


def blocks(page: Path) -> list[tuple[int, str]]:
    """(line, code) of each Python block. A block after `<!-- not run -->` is shown, but not run."""
    text = page.read_text()
    pattern = re.compile(r"(<!-- not run -->\s*)?^```python\n(.*?)^```", re.S | re.M)
    return [(text[: found.start(2)].count("\n"), found[2]) for found in pattern.finditer(text) if not found[1]]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_code_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a page share their names, as a reader would type them one after another."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": f"docs_{page.stem}"}
    for line, code in blocks(page):
        # Blank lines in front, so that an error points to the line of the page.
        exec(compile("\n" * line + code, str(page), "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        if "://" not in target and not target.startswith("mailto:"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which does not exist"
