"""The tab *About*: what is measured, in the tables of the results."""

from __future__ import annotations

import re
from pathlib import Path

import gradio as gr

from lightfast import _version

__all__ = ["about_tab"]


def about_tab() -> None:
    """Build the tab, from `about.md`, whose tables `docs/render.py` fills in from the results."""
    text = Path(__file__).with_name("about.md").read_text(encoding="utf-8")
    gr.Markdown(
        re.sub(r"<!--.*?-->\n?", "", text, flags=re.S).replace("VERSION", _version.__version__), elem_id="about"
    )
