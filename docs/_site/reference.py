"""Every public name has its place in the reference, which is made from docstrings.

`<!-- reference lightfast.nn: Conv1d Conv2d -->` becomes the documentation of these names, and
`<!-- reference lightfast.nn -->` that of all public names of the module that no page asks for.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.pycode import ModuleAnalyzer

PAGES = Path(__file__).parents[1] / "reference"

_NAMES = re.compile(r"^<!-- reference ([\w.]+)(?:: ([\w\s]+?))? -->$", re.MULTILINE)


def placed() -> dict[str, set[str]]:
    """The names that pages ask for, by module; a module without names stands for all its others."""
    found: dict[str, set[str]] = {}
    for page in sorted(PAGES.glob("*.md")):
        for module, names in _NAMES.findall(page.read_text(encoding="utf-8")):
            found.setdefault(module, set()).update(names.split() or ["*"])
    return found


def public_names(module: str) -> list[str]:
    """What a module offers, without modules."""
    home = importlib.import_module(module)
    return [name for name in home.__all__ if not isinstance(getattr(home, name), ModuleType)]


def is_of_torch(module: str, name: str) -> bool:
    """Whether a public name is one of torch's own, which torch documents."""
    return getattr(getattr(importlib.import_module(module), name), "__module__", "").startswith("torch.")


def documented(module: str, names: list[str]) -> str:
    """Directives for these names."""
    ours = [name for name in names if not is_of_torch(module, name)]
    lines = ["```{eval-rst}", *(line for name in ours for line in _directive(module, name)), "```"]
    if theirs := [name for name in names if name not in ours]:
        shown = ", ".join(f"`{name}`" for name in theirs)
        lines.append(f"\nThese follow offsets as they are, and are torch's own classes: {shown}.\n")
    return "\n".join(lines)


def _directive(module: str, name: str) -> list[str]:
    value = getattr(importlib.import_module(module), name)
    if inspect.isclass(value):
        members = [] if module == "lightfast.nn" else ["   :members:"]
        return [f".. autoclass:: {module}.{name}", "   :show-inheritance:", *members, ""]
    if inspect.isroutine(value):
        return [f".. autofunction:: {module}.{name}", ""]
    return [
        f".. py:data:: {name}",
        f"   :module: {module}",
        "",
        *(f"   {line}" for line in _data_docstring(name, value)),
        "",
    ]


def _data_docstring(name: str, value: object) -> list[str]:
    """What stands below a constant or a type where it is defined, which may be another module than the public one."""
    for module in [each for each in sys.modules if each.startswith("lightfast")]:
        if getattr(sys.modules[module], name, None) is value and sys.modules[module].__file__:
            documents = ModuleAnalyzer.for_module(module).find_attr_docs()
            if ("", name) in documents:
                return documents["", name]
    raise ExtensionError(f"{name} is public, but has no docstring: write one below it")


def _escape_stars(app: Sphinx, what: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """Shapes such as (N, m, *positions) are no emphasis."""
    lines[:] = [re.sub(r"(?<=[(,] )\*(?=\w)|(?<=\()\*(?=\w)", r"\*", line) for line in lines]


def _on_source_read(app: Sphinx, docname: str, source: list[str]) -> None:
    def fill(found: re.Match[str]) -> str:
        module, names = found.groups()
        others = [name for name in public_names(module) if name not in placed()[module]]
        return documented(module, names.split() if names else others)

    source[0] = _NAMES.sub(fill, source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx calls this."""
    app.connect("source-read", _on_source_read)
    app.connect("autodoc-process-docstring", _escape_stars)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
