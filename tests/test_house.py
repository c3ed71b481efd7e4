"""Imports go one way: each room of the house knows those above it in the table, and none below."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import lightfast

HOUSE = Path(lightfast.__file__).parent

LAYERS: dict[str, tuple[str, ...]] = {
    "tools of no room": ("_atomic", "_compilers", "_version"),
    "the idea": ("_groups", "functional", "fields", "_response"),
    "the seam": ("_backends",),
    "the layers": ("nn",),
    "color": ("color", "light", "metrics", "_metric_classes", "constancy"),
    "made with it": (
        "models",
        "_equivariance",
        "_project",
        "_notice",
        "_wrap",
        "_fuse",
        "_tracing",
        "_certify",
        "_convert",
    ),
    "pipelines": ("_pipelines",),
    "photographs": ("_photographs",),
    "page": ("_page",),
    "the public names": ("",),
    "experiments": ("_experiments.engine", "_experiments.data", "_experiments.shared", "_experiments.tasks"),
    "commands": ("_commands", "cli"),
}
"""Every room under `lightfast`, in order: what is in a room imports from the same one and from those before it.

The empty name is `lightfast` itself. Of the experiments, `shared` are the files that all of them use (plan, study,
provenance, report, ...), and `tasks` the other folders, which do not import each other.
"""

SHARED_FOLDERS = ("report",)
"""Folders of the experiments that are no task."""

KNOWN: set[tuple[str, str]] = set()
"""(file, module) of imports that go the wrong way and are not mended yet."""

NO_EXPERIMENTS = ("balance", "certify", "classify", "export", "inpaint", "page")
"""Commands for users of finished models, which work without what experiments need."""

MUTUAL = {("metrics", "_metric_classes")}
"""A room that is two files: its classes need torchmetrics, and are loaded when somebody asks for them."""

ORDER = [room for rooms in LAYERS.values() for room in rooms]


class Import(NamedTuple):
    """A module or name of ours that a file imports."""

    file: str
    line: int
    target: str

    def __str__(self) -> str:
        return f"src/lightfast/{self.file}:{self.line} imports lightfast.{self.target}".rstrip(".")


def _module_of(file: str) -> str:
    parts = Path(file).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _is_module(name: str) -> bool:
    path = HOUSE.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def imports_of(file: str, source: str) -> Iterator[Import]:
    """Imports of our own modules, also those inside functions; `from lightfast import x` is of `x` if that is one."""
    package = ["lightfast", *Path(file).parent.parts]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            base = ".".join(filter(None, (above, node.module)))
            inner = [f"{base}.{alias.name}" for alias in node.names]
            names = [name if _is_module(name.removeprefix("lightfast.")) else base for name in inner]
        else:
            continue
        for name in dict.fromkeys(names):
            if name.split(".")[0] == "lightfast":
                yield Import(file, node.lineno, name.removeprefix("lightfast").removeprefix("."))


def room_of(module: str) -> str:
    """The room of the table that a module lies in."""
    first, _, rest = module.partition(".")
    if first != "_experiments":
        return first
    folder = rest.partition(".")[0]
    if f"_experiments.{folder}" in ORDER:
        return f"_experiments.{folder}"
    is_task = folder not in SHARED_FOLDERS and (HOUSE / "_experiments" / folder / "__init__.py").exists()
    return "_experiments.tasks" if folder and is_task else "_experiments.shared"


def goes_wrong(found: Import) -> bool:
    """Whether an import goes down the house, from one task to another, or from a command for users to experiments."""
    module, target = _module_of(found.file), found.target
    room, other = room_of(module), room_of(target)
    if (room, other) in MUTUAL:
        return False
    if room == other == "_experiments.tasks":
        return module.split(".")[1] != target.split(".")[1]
    if room == "_commands" and module.split(".")[-1] in NO_EXPERIMENTS and other.startswith("_experiments"):
        return True
    return ORDER.index(other) > ORDER.index(room)


def _all_imports() -> list[Import]:
    files = sorted(HOUSE.rglob("*.py"))
    named = [(path.relative_to(HOUSE).as_posix(), path.read_text()) for path in files]
    return [found for file, source in named for found in imports_of(file, source)]


def test_every_file_lies_in_a_room_of_the_table():
    rooms = {room_of(_module_of(path.relative_to(HOUSE).as_posix())) for path in HOUSE.rglob("*.py")}
    assert sorted(rooms - set(ORDER)) == [], "give these a place in LAYERS, and a line in docs/design.md"
    assert sorted(set(ORDER) - rooms) == [], "these rooms are gone: take them out of LAYERS"


def test_names_say_once_that_they_are_private():
    inside = [path.relative_to(HOUSE) for path in HOUSE.rglob("_*.py") if not path.name.startswith("__")]
    assert [str(path) for path in inside if any(part.startswith("_") for part in path.parent.parts)] == []


def test_imports_go_one_way():
    wrong = [found for found in _all_imports() if goes_wrong(found)]
    new = [str(found) for found in wrong if (found.file, found.target) not in KNOWN]
    assert not new, "imports that go the wrong way:\n" + "\n".join(new)
    stale = KNOWN - {(found.file, found.target) for found in wrong}
    assert not stale, f"mended, so they can leave KNOWN: {sorted(stale)}"


def test_the_tree_in_the_docs_is_the_house():
    page = (Path(__file__).parents[1] / "docs" / "design.md").read_text()
    tree = page.split("```\nsrc/lightfast/\n")[1].split("```")[0].split("\ntests/")[0]
    named = set(re.findall(r"[\w*]+\.py|\b\w+(?=/)", tree))
    there = {path.name for path in HOUSE.rglob("*.py")} | {path.name for path in HOUSE.rglob("*") if path.is_dir()}
    assert sorted(name for name in named if "*" not in name and name not in there) == []
    # Where a folder's files are not listed one by one, the folder stands for them.
    top = {path.name for path in HOUSE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert sorted(top - named) == []


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("functional.py", "from lightfast.nn import Conv2d"),
        ("_groups.py", "from lightfast import functional"),
        ("nn/_conv.py", "def late():\n    import lightfast.models"),
        ("fields/_bases.py", "from .. import _backends"),
        ("_pipelines/hub.py", "import lightfast as lf"),
        ("_photographs/fill.py", "from lightfast._commands import options"),
        ("_experiments/engine/loop.py", "from lightfast._experiments.data import load_folder"),
        ("_experiments/data/scene_folder.py", "from lightfast._experiments.settings import settings"),
        ("_experiments/inpainting/study.py", "from lightfast._experiments.recognition import study"),
        ("_commands/balance.py", "from lightfast._experiments.data import load_folder"),
    ],
)
def test_what_goes_the_wrong_way_is_seen(file, source):
    assert any(goes_wrong(found) for found in imports_of(file, source))


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("nn/_conv.py", "from lightfast.functional import center"),
        ("_pipelines/hub.py", "from lightfast import models"),
        ("_experiments/speed/steps.py", "from lightfast import fuse"),
        ("_experiments/speed/run.py", "from lightfast._experiments.speed import timing"),
        ("_commands/bench.py", "from lightfast._experiments.speed.run import run"),
        ("cli.py", "import torch"),
    ],
)
def test_what_goes_the_right_way_is_not(file, source):
    assert not any(goes_wrong(found) for found in imports_of(file, source))
