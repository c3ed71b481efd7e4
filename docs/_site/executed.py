"""Tutorials are executed while the site is built: what they print and draw follows the code that does it.

Every page in tutorials/ runs from top to bottom in an empty folder, its blocks sharing their names. An error ends the
build. Figures are those of matplotlib that are open at the end of a block; `<!-- figure: what it shows -->`
right after the block says in words what is seen.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

from _site.blocks import python_blocks

TUTORIALS = Path(__file__).parents[1] / "tutorials"
"""What pages import from each other's folder, such as fruit.py, is found here."""

_DESCRIPTION = re.compile(r"\s*<!-- figure: (.*?) -->\n?", re.DOTALL)


def execute(page: str, name: str, figures: Path) -> str:
    """The page with outputs after its blocks; figures are written to a folder, and linked as FIGURES/NAME."""
    import matplotlib

    matplotlib.use("Agg")
    sys.path.append(str(TUTORIALS))
    parts: list[str] = []
    end, names = 0, {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for number, block in enumerate(python_blocks(page)):
            described = _DESCRIPTION.match(page, block.end)
            parts.append(page[end : block.end])
            end = described.end() if described else block.end
            printed = _run("\n" * block.line + block.code, name, names)
            if printed:
                parts.append(f"\n```{{code-block}} text\n:class: output\n\n{printed}```\n")
            parts += _drawn(figures, f"{Path(name).stem}-{number}", described[1] if described else "")
    return "".join([*parts, page[end:]])


def _run(code: str, name: str, names: dict[str, Any]) -> str:
    """What a block prints."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            exec(compile(code, name, "exec"), names)
    except Exception as error:
        line = error.__traceback__.tb_next.tb_lineno if error.__traceback__ and error.__traceback__.tb_next else 0
        raise ExtensionError(f"{name}:{line}: {type(error).__name__}: {error}") from error
    text = printed.getvalue()
    return text if not text or text.endswith("\n") else text + "\n"


def _drawn(figures: Path, stem: str, description: str) -> list[str]:
    from matplotlib import pyplot

    shown = []
    for number in pyplot.get_fignums():
        if not description:
            raise ExtensionError(f"{stem} draws a figure: say what it shows, with <!-- figure: ... --> after the block")
        drawn = io.BytesIO()
        pyplot.figure(number).savefig(drawn, dpi=144, bbox_inches="tight")
        file = figures / f"{stem}-{hashlib.sha256(drawn.getvalue()).hexdigest()[:8]}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(drawn.getvalue())
        shown.append(f"\n![{' '.join(description.split())}](FIGURES/{file.name})\n")
    pyplot.close("all")
    return shown


def _on_source_read(app: Sphinx, docname: str, source: list[str]) -> None:
    if docname.startswith("tutorials/") and "```python" in source[0]:
        figures = Path(app.outdir).parent / "figures"
        there = Path(os.path.relpath(figures, (Path(app.srcdir) / docname).parent)).as_posix()
        source[0] = execute(source[0], f"docs/{docname}.md", figures).replace("(FIGURES/", f"({there}/")


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx calls this."""
    app.connect("source-read", _on_source_read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
