"""Sphinx's configuration, for `make docs`. The reference is read from standfast as installed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "_ext"))

from standfast.version import version as installed  # noqa: E402 - needs nothing of the above

project = "standfast"
author = "standfast contributors"
project_copyright = author
release = version = installed()

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "directives",  # _ext/directives.py: tables that are made from the code
    "outside",  # _ext/outside.py: links to files that are no pages
]
root_doc = "index"
exclude_patterns = ["_build", "README.md"]
nitpicky = True
# Names of other projects have no pages here, and a build asks no network for theirs.
nitpick_ignore_regex = [
    ("py:.*", r"(?!standfast\.).*"),
    ("py:.*", r"standfast\.(_core|membership|async_forms|matrix|handles\.T\b).*"),
]

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "deflist"]
suppress_warnings = ["myst.strikethrough"]

# MLX has no wheels for some systems.
autodoc_mock_imports = [] if importlib.util.find_spec("mlx") else ["mlx"]
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
maximum_signature_line_length = 88
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Fields", "params_style")]

smartquotes = False  # would make one dash of the two before an option
html_theme = "furo"
html_title = "standfast"
html_static_path = ["_static"]
html_css_files = ["standfast.css"]
html_show_sphinx = False
html_show_copyright = False
pygments_style = "friendly"
