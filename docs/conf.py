"""The documentation site: `make docs` builds it into build/site, and fails on any warning or dead link."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from lightfast import __version__  # noqa: E402

project = "Lightfast"
author = "the Lightfast authors"
copyright = author
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "_site.commands",
    "_site.executed",
    "_site.records",
    "_site.reference",
]
exclude_patterns = ["_site", "_static"]
nitpicky = True
nitpick_ignore_regex = [
    # Torch, numpy and Python are documented elsewhere, and nothing is fetched to build this site.
    (r"py:.*", r"(?!lightfast).*"),
    # What is private is explained where it is used.
    (r"py:.*", r"lightfast\.(_|.*\._).*"),
]

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
# Docstrings say `x` for code, as Markdown does.
default_role = "code"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 80
python_use_unqualified_type_names = True
napoleon_use_ivar = True
napoleon_use_rtype = False

copybutton_exclude = ".linenos, .gp, .go"
copybutton_prompt_text = ">>> |\\.\\.\\. |\\$ "
copybutton_prompt_is_regexp = True

html_theme = "furo"
html_title = "Lightfast"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["filter.js"]
html_show_sphinx = False
html_copy_source = False
pygments_style = "friendly"
pygments_dark_style = "monokai"
