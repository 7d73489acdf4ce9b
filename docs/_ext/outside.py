"""Links from pages to files of the repository that are no pages: shown as the file's path.

A page such as ../bench/README.md is there for whoever reads these texts in the repository; a built
page has nowhere to send its reader, and says which file is meant.
"""

from __future__ import annotations

from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

REPOSITORY = Path(__file__).resolve().parents[2]


def name_the_file(app: Sphinx, doctree: nodes.document) -> None:
    """Turn each link that leads out of docs/ into the path of an existing file or folder."""
    source = Path(app.srcdir).resolve()
    page = Path(doctree["source"]).resolve().parent
    for link in list(doctree.findall(addnodes.pending_xref)) + list(
        doctree.findall(addnodes.download_reference)
    ):
        target = str(link.get("reftarget", "")).partition("#")[0]
        if not target or "://" in target or target.startswith("standfast"):
            continue
        path = (page / target).resolve()
        if not path.exists():
            path = path.with_name(f"{path.name}.md")  # MyST drops it from what it takes for a page
        if path.is_relative_to(source) or not path.is_relative_to(REPOSITORY) or not path.exists():
            continue
        said = link.astext()
        name = path.relative_to(REPOSITORY).as_posix()
        shown: list[nodes.Node] = [nodes.literal(name, name)]
        if said not in (name, path.name, path.stem, f"{path.name}/", f"{name}/"):
            shown = [
                nodes.inline("", f"{said} ("),
                nodes.literal(name, name),
                nodes.inline("", ")"),
            ]
        link.replace_self(shown)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register it."""
    app.connect("doctree-read", name_the_file, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
