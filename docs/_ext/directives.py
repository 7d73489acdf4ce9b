"""Directives that put tables and sentences of facts.py into a page, parsed where they stand.

```{settings-table}
```
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import facts
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from standfast import errors


class Facts(SphinxDirective):
    """A directive whose content a function writes."""

    text: Callable[[], str]

    def run(self) -> list[nodes.Node]:
        """Parse the text where the directive stands."""
        self.env.note_dependency(facts.__file__)
        return self.parse_text_to_nodes(type(self).text(), allow_section_headings=False)


class ErrorFacts(SphinxDirective):
    """``{facts-of} PeerDied``: what errors.py says of that class."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Parse the text where the directive stands."""
        self.env.note_dependency(errors.__file__)
        return self.parse_text_to_nodes(facts.error_facts(self.arguments[0]))


DIRECTIVES: Mapping[str, Callable[[], str]] = {
    "settings-table": facts.settings_table,
    "exit-table": facts.exit_table,
    "hints-table": facts.hints_table,
    "times-table": facts.times_table,
}


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    for name, text in DIRECTIVES.items():
        app.add_directive(name, type(name, (Facts,), {"text": staticmethod(text)}))
    app.add_directive("facts-of", ErrorFacts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
