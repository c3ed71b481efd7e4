"""A page of photographs before and after, each with a slider between the two: one HTML file that needs nothing else."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape

from lightfast._photographs.folder import BalancedFile, said_of

__all__ = ["slider_page"]

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Before and after</title>
<style>
  body {{ margin: 0; padding: 1.5rem; background: #1b1d22; color: #d8dbe2; font: 15px/1.4 system-ui, sans-serif }}
  main {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 320px), 1fr)); gap: 1.5rem }}
  figure {{ margin: 0 }}
  .pair {{ position: relative; display: block; width: fit-content; max-width: 100%; --at: 50% }}
  .pair img {{ display: block; max-width: 100% }}
  .pair .before {{ position: absolute; inset: 0; clip-path: inset(0 calc(100% - var(--at)) 0 0) }}
  .pair::after {{ content: ""; position: absolute; top: 0; bottom: 0; left: var(--at); width: 2px; background: #fff;
    pointer-events: none }}
  input {{ position: absolute; inset: 0; width: 100%; height: 100%; margin: 0; opacity: 0; cursor: ew-resize }}
  .pair:focus-within {{ outline: 3px solid #6aa9ff; outline-offset: 3px }}
  figcaption {{ margin-top: .4rem; overflow-wrap: anywhere }}
  small {{ color: #a4a9b5 }}
</style>
<h1>Before and after</h1>
<p>Drag across a photograph, or use Tab and the arrow keys: as it was on the left, balanced on the right.</p>
<main>
{figures}
</main>
<script>
  for (const slider of document.querySelectorAll("input"))
    slider.addEventListener("input", () => slider.parentNode.style.setProperty("--at", slider.value + "%"));
</script>
</html>
"""

_FIGURE = """<figure>
<label class="pair"><img loading="lazy" alt="{name}, balanced" src="{after}"><img class="before" loading="lazy" alt=""
 src="{before}"><input type="range" value="50" aria-label="{name}: how much is shown as it was"></label>
<figcaption>{name}<br><small>{said}</small></figcaption>
</figure>"""


def slider_page(results: Sequence[BalancedFile]) -> str:
    """The page, with small pictures of all photographs inside it."""
    return _PAGE.format(
        figures="\n".join(
            _FIGURE.format(
                name=escape(result.source.name),
                said=escape(said_of(result)),
                before=_inline(result.before),
                after=_inline(result.after),
            )
            for result in results
        )
    )


def _inline(content: bytes | None) -> str:
    return f"data:image/jpeg;base64,{base64.b64encode(content or b'').decode()}"
