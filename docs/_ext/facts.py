"""What pages take from the code: settings, exit statuses, errors, hints, times of detection.

Each function returns Markdown; directives.py puts it where a page asks for it. Pure.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence

from standfast import errors, exits, hints, settings

ANSWER_S = 0.5
"""How long a rank waits for rank 0's verdict before it decides alone (docs/design/watch.md)."""

COMES_TO = {
    "frozen": "`PeerStalled` at the silence limit",
    "silent": "`PeerStalled` or `PeerUnreachable` at the silence limit",
    "unreachable": "`PeerUnreachable` at the silence limit",
    "late": "`PeerStalled` at the progress limit",
    "wedged": "`PeerStalled` at the progress limit",
    "cut": "nothing: its data shows that it lives",
}
PROFILES: Sequence[tuple[str, Mapping[str, object]]] = (
    ("the defaults", {}),
    ("`silence_s=5`", {"silence_s": 5}),
    ("`silence_s=5, progress_s=60`", {"silence_s": 5, "progress_s": 60}),
    ("`silence_s=1, progress_s=10`, the least for silence", {"silence_s": 1, "progress_s": 10}),
)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(each) for each in row) + " |" for row in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def settings_table() -> str:
    """List every setting: its variables, argument, default, meaning."""
    rows = []
    for row in settings.rows():
        variables = ", ".join(f"`{name}`" for name in row.variables)
        same = "; the same on all ranks" if row.shared else ""
        rows.append([variables, f"`{row.name}`", _default(row.default), f"{row.meaning}{same}"])
    return table(["variable", "argument of `init()`", "default", "meaning"], rows)


def _default(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return f"`{int(value)}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def exit_table() -> str:
    """List every exit status: what it means, what to do."""
    codes = sorted({*exits.MEANING, *exits.REMEDY})
    rows = [[f"`{code}`", exits.meaning(code), exits.remedy(code)] for code in codes]
    return table(["status", "meaning", "what to do"], rows)


def hints_table() -> str:
    """List every kind of hint: how it is worded, and what it comes to if it stays."""
    rows = [
        [f"`{kind}`", f"rank N on HOST **{words}**: ...", COMES_TO[kind]]
        for kind, words in hints.WORDS.items()
    ]
    return table(["kind", "the line", "if it stays"], rows)


def times_table() -> str:
    """List when a loss is known at the latest, for some choices of limits, in seconds."""
    rows = []
    for label, given in PROFILES:
        chosen = settings.load(given, {})
        beat = chosen.heartbeat_s
        silent = chosen.silence_s + beat + ANSWER_S
        stuck = chosen.progress_s + 3 * beat
        rows.append([label, f"{chosen.hint_s:g}", f"{silent:.3g}", f"{stuck:.4g}"])
    head = ["limits", "hint", "frozen, or its host or network gone", "alive but stuck, or late"]
    return table(head, rows)


def tree() -> list[type[errors.StandfastError]]:
    """List every class of errors.py, as they stand there."""
    found = [
        each
        for each in vars(errors).values()
        if inspect.isclass(each) and issubclass(each, errors.StandfastError)
    ]
    return sorted(found, key=lambda each: inspect.getsourcelines(each)[1])


def error_facts(name: str) -> str:
    """Say of a class what it is a kind of, what an uncaught one ends a rank with, its fields."""
    cls = getattr(errors, name)
    bases = ", ".join(f"`{base.__name__}`" for base in cls.__bases__)
    facts = [
        f"a {bases}",
        f"`kind` is `{cls.kind}`",
        f"uncaught, it ends the rank with status {cls.exit_code}",
    ]
    if cls.extra_fields():
        facts.append("more fields: " + ", ".join(f"`{field}`" for field in cls.extra_fields()))
    summary = (inspect.getdoc(cls) or "").partition("\n")[0].replace("``", "`")
    return f"{summary}\n\n*{{py:class}}`{cls.__module__}.{name}`*: " + "; ".join(facts) + "."
