"""Is what a command printed what the page says? Times, process numbers and order may differ. Pure.

Ranks print side by side, so lines are compared as a bag. In the page, `...` stands for anything
within a line, and alone on a line for any lines. What differs from run to run by its nature counts
as the same: ALIKE has it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

ANY = "..."
ALIKE = tuple(
    (re.compile(pattern), word)
    for pattern, word in (
        # A death has several signs; which is seen first, and by whom, is chance.
        (r"(?:its process \d+ |control link |data connection between )[^;]*", "(a sign of death)"),
        (r"seen first (?:here|by rank \d+)", "seen first"),
        (r"(?:waited [\d.]+ s for rank \d+ over \w+ in|was [\d.]+ s into)", "was in"),
        (r", \d+ bytes received", ""),
        (r"\b[\d.]*\d m?s\b", "(a time)"),
        (r"\b127\.0\.0\.1:\d+", "127.0.0.1:(port)"),
        (r"\b(process|pid|port) \d+", r"\1 (number)"),
    )
)


def alike(line: str) -> str:
    """Return a line without what differs from run to run."""
    for pattern, word in ALIKE:
        line = pattern.sub(word, line)
    return line.rstrip()


def pattern_of(line: str) -> re.Pattern[str]:
    """Return what a line of the page stands for; it is compared with lines that are made alike."""
    return re.compile(".*".join(re.escape(part) for part in alike(line).split(ANY)))


def difference(said: Sequence[str], printed: Sequence[str]) -> str:
    """Return "" if a command printed what the page says, else what is missing or too much."""
    shown = [alike(line) for line in printed]
    is_open = ANY in [line.strip() for line in said]
    wanted = [line for line in said if line.strip() != ANY]
    choices = {
        number: [each for each in range(len(shown)) if pattern_of(line).fullmatch(shown[each])]
        for number, line in enumerate(wanted)
    }
    taken: dict[int, int] = {}
    missing = [number for number in choices if not _place(number, choices, taken, set())]
    problems = [f"the page says, and it did not print: {wanted[number]}" for number in missing]
    if not is_open or missing:
        extra = [line for each, line in enumerate(printed) if each not in taken and line]
        problems += [f"it printed, and the page does not say: {line}" for line in extra]
    return "\n".join(problems)


def _place(
    number: int, choices: dict[int, list[int]], taken: dict[int, int], seen: set[int]
) -> bool:
    """Give a line of the page one of its printed lines, moving others' if need be (Kuhn)."""
    for each in choices[number]:
        if each in seen:
            continue
        seen.add(each)
        if each not in taken or _place(taken[each], choices, taken, seen):
            taken[each] = number
            return True
    return False
