"""Pages that must have something for everything: errors, public names, events, settings."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import re
from types import ModuleType

import standfast
import standfast.jaccl
import standfast.ray
from standfast import errors, exits, hints, messages, settings
from standfast.launch import ledger
from tests.docs.pages import ROOT

SPEC = importlib.util.spec_from_file_location("facts", ROOT / "docs" / "_ext" / "facts.py")
assert SPEC is not None
assert SPEC.loader is not None
facts = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(facts)


def page(name: str) -> str:
    """Return a page's text."""
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def test_every_error_has_its_section() -> None:
    """The page of errors has a section, made from errors.py, for each class of it."""
    text = page("errors.md")
    for cls in facts.tree():
        section = f"### {cls.__name__}\n\n```{{facts-of}} {cls.__name__}\n```"
        assert section in text, cls.__name__
    assert set(errors.BY_KIND.values()) <= set(facts.tree())


def test_every_text_of_a_verdict_is_on_the_page() -> None:
    """Whoever searches the page for the headline or the hint of a verdict finds it."""
    text = page("errors.md")
    for kind, hint in messages._HINTS.items():
        if kind == "internal":
            continue  # says only: please report it
        wanted = re.escape(hint).replace(r"\{rank\}", r"\d").replace(r"\{host\}", r"[\w-]+")
        assert re.search(wanted, text), hint
    for words in ("died", "left", "raised", "is unreachable", "stalled", "aborted the group"):
        assert f"`rank N on HOST {words}`" in text


def test_every_code_of_a_fabric_error_is_on_the_page() -> None:
    """The codes that the core and the rendezvous give are in the table."""
    text = page("errors.md")
    found = set()
    for path in (ROOT / "core/fabric/verbs").glob("*.cpp"):
        source = path.read_text(encoding="utf-8")
        found |= set(re.findall(r'(?:return|VerbsError\()\s*\{\s*"([a-z_]+)"', source))
    for path in (ROOT / "src/standfast").rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        found |= set(re.findall(r'\bcode"?[=:] ?"([a-z_]+)"', source))
        found |= set(re.findall(r'self\._trouble\(\w+, "([a-z_]+)"', source))
    assert len(found) > 20
    assert sorted(code for code in found if f"`{code}`" not in text) == []


def packages() -> list[ModuleType]:
    """Return those that can be imported: standfast.mlx needs MLX, standfast.torch torch."""
    found = [standfast, standfast.jaccl, standfast.ray]
    for library, name in (("mlx.core", "standfast.mlx"), ("torch", "standfast.torch")):
        with contextlib.suppress(ImportError):
            importlib.import_module(library)
            found.append(importlib.import_module(name))
    return found


def test_every_public_name_is_in_the_reference() -> None:
    """What a package exports is named in a page of the reference."""
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs/reference").glob("*"))
    for package in packages():
        for name in package.__all__:
            value = getattr(package, name)
            if isinstance(value, type) and issubclass(value, errors.StandfastError):
                continue  # automodule:: standfast.errors has them all
            assert f"{package.__name__}.{name}" in text, name
    assert ".. automodule:: standfast.errors\n   :members:" in text


def test_every_event_is_on_its_page() -> None:
    """The page of events has each that the ledger tells, with its fields."""
    source = (ROOT / "src/standfast/launch/ledger.py").read_text(encoding="utf-8")
    told = re.findall(r"_tell\(\s*\"(\w+)\"", source)
    assert len(told) >= 7
    text = page("reference/events.md")
    assert [name for name in told if f"| `{name}` |" not in text] == []
    assert ledger.__name__ == "standfast.launch.ledger"


def test_tables_have_a_row_for_everything() -> None:
    """No setting, exit status or hint is missing from the tables that pages take from the code."""
    table = facts.settings_table()
    assert all(f"`{row.name}`" in table for row in settings.rows())
    assert all(f"`{code}`" in facts.exit_table() for code in {*exits.MEANING, *exits.REMEDY})
    assert all(f"`{kind}`" in facts.hints_table() for kind in hints.WORDS)
    assert "STANDFAST_KEY" in table
    assert not re.search(r"\n\n|^[^|]", table), "a cell has broken the table"


def test_times_follow_from_the_limits() -> None:
    """The table of detection times has the defaults: hint, silence, progress."""
    row = next(line for line in facts.times_table().split("\n") if "defaults" in line)
    assert [cell.strip() for cell in row.split("|")[2:5]] == ["3", "21", "601.5"]
