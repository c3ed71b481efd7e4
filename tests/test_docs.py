"""Pages run as they stand, lead somewhere, and leave no public name, no example and no record out."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lightfast as lf

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
TUTORIALS = [page for page in PAGES if page.parent.name == "tutorials" and page.stem != "index"]
PUBLIC = ["lightfast", *(f"lightfast.{name}" for name in lf.__all__ if inspect.ismodule(getattr(lf, name)))]

sys.path.insert(0, str(ROOT / "docs"))

from _site import records, reference  # noqa: E402
from _site.blocks import python_blocks  # noqa: E402

NO_EXAMPLE = {
    "a type, or a constant": """
        lightfast.color.EPSILON lightfast.color.SRGB_TO_XYZ lightfast.fields.FieldSpec
        lightfast.functional.ConstraintKind
        lightfast.functional.PoolKind lightfast.functional.Scope lightfast.light.LIGHT_KINDS lightfast.light.LightKind
        lightfast.constancy.CLASSICAL
    """,
    "what a function returns, whose example shows it": """
        lightfast.Balanced lightfast.Certificate lightfast.Conversion lightfast.Filled lightfast.Photo
        lightfast.light.VaryingLight
    """,
    "writes files, and is run in docs/deploy.md and a tutorial": "lightfast.export",
    "runs until it is stopped": "lightfast.page",
}
"""Public names whose docstring has no example, by the reason."""


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def run_blocks(page: Path) -> None:
    """Blocks of a page share their names, as a reader would type them one after another."""
    names: dict[str, object] = {"__name__": f"docs_{page.stem}"}
    for code, line, _ in python_blocks(page.read_text(encoding="utf-8")):
        # Blank lines in front, so that an error points to the line of the page.
        exec(compile("\n" * line + code, str(page), "exec"), names)


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page not in TUTORIALS and python_blocks(page.read_text(encoding="utf-8"))],
    ids=name_of,
)
def test_code_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_blocks(page)


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """Which executes the tutorials."""
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "-q", str(ROOT / "docs"), str(tmp_path / "site")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "site" / "_images").glob("classifier-*.png")), "a tutorial shows no figure"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
        if "://" not in target and not target.startswith("mailto:"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which does not exist"


def test_every_page_is_found_from_the_first() -> None:
    """By toctrees, whose patterns stand for what they match."""
    listed: set[Path] = {ROOT / "docs" / "index.md"}
    for page in PAGES:
        for tree in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            for entry in (line for line in tree.splitlines() if line and not line.startswith(":")):
                listed.update(page.parent.glob(f"{entry}.md"))
    lost = [name_of(page) for page in PAGES[1:] if page not in listed]
    assert not lost, f"no page leads to {lost}: put them into a toctree"


def test_every_public_name_is_in_the_reference() -> None:
    placed = reference.placed()
    for module in PUBLIC:
        assert "*" in placed[module], f"no page of docs/reference shows the rest of {module}"
        unknown = placed[module] - set(reference.public_names(module)) - {"*"}
        assert not unknown, f"docs/reference asks for {unknown}, which {module} does not have"


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_has_an_example(module: str) -> None:
    """Which the doctests run; or a reason for having none."""
    excused = " ".join(NO_EXAMPLE.values()).split()
    for name in reference.public_names(module):
        if reference.is_of_torch(module, name):
            continue
        docstring = inspect.getdoc(getattr(importlib.import_module(module), name)) or ""
        has_example, path = ">>> " in docstring, f"{module}.{name}"
        assert has_example or path in excused, f"{path} has no example: write one, or a reason into NO_EXAMPLE"
        assert not (has_example and path in excused), f"{path} has an example: it needs no reason in NO_EXAMPLE"


def test_every_record_says_how_it_was_made() -> None:
    for folder in records.all_folders():
        text = (records.RESULTS / folder / "table.md").read_text(encoding="utf-8")
        notes = [path.read_text(encoding="utf-8") for path in (records.RESULTS / folder).glob("results.json")]
        said = any(word in each for each in (text, *notes) for word in ("lightfast ", "python ", "script"))
        assert records.commands(records.RESULTS / folder) or said, f"results/{folder} names no command"


def test_no_page_asks_for_records_that_are_not_there() -> None:
    assert sorted(set(records.shown_folders()) - set(records.all_folders())) == []


def test_commands_are_shown_as_a_reader_types_them() -> None:
    assert records._as_typed("cli.py train x --data /some/where --out here") == "lightfast train x --data DIR --out RUN"
    assert records._as_typed("loader.py --batches 4") == "python benchmarks/loader.py --batches 4"
    folder = records.RESULTS / "recognition" / "cifar10-paper"
    assert all(command.startswith("lightfast reproduce recognition --data DIR") for command in records.commands(folder))


def test_tutorials_show_what_they_print_and_draw(tmp_path: Path) -> None:
    from _site.executed import execute
    from sphinx.errors import ExtensionError

    page = "```python\nimport matplotlib.pyplot as plt\nplt.plot([1, 2])\nprint('hello')\n```\n"
    page += "<!-- figure: a line -->\nend\n"
    shown = execute(page, "docs/tutorials/x.md", tmp_path)
    assert "hello" in shown and "![a line](FIGURES/x-0-" in shown and shown.endswith("end\n")
    assert len(list(tmp_path.glob("x-0-*.png"))) == 1
    with pytest.raises(ExtensionError, match=r"x\.md:2: ZeroDivisionError"):
        execute("```python\n1 / 0\n```\n", "docs/tutorials/x.md", tmp_path)
    with pytest.raises(ExtensionError, match="say what it shows"):
        execute(page.replace("<!-- figure: a line -->", ""), "docs/tutorials/x.md", tmp_path)
