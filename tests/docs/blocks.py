"""The code blocks of a page of Markdown, and what each is there for. Pure.

    ```python                 the first line is `# name.py`: a file, for the blocks below it;
                              else run by itself, with a comment above the block that may say
                                  <!-- run on 4 ranks, after: (lines that come before it) -->
    ```console                `$ command` is run, the lines below it are what it prints
    ```json, ```yaml          must be what they say they are
    ```text, ```toml, ...     is only read

A line `*Not run here: the reason.*` above a block keeps it from being run, and the page shows it.
A comment `<!-- needs torch -->` anywhere on a page names a package without which it is not run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

RUN = ("python", "console")
PARSED = ("json", "yaml")
READ = ("text", "ini", "toml", "c++")
FENCE = re.compile(r"^( *)(`{3,}|~{3,})\s*([^`\s]*)\s*$")
DIRECTIVE = re.compile(r"^\{[\w-]+\}")
NOT_RUN = re.compile(r"^\*Not run here: (?P<reason>.+)\*$", re.DOTALL)
RUN_ON = re.compile(
    r"^<!-- run on (?P<ranks>\d+) ranks?(?:, after:\s(?P<before>.*?))?\s*-->$", re.DOTALL
)
NEEDS = re.compile(r"<!-- needs ([\w., -]+?) -->")
FILE = re.compile(r"^# ([\w./-]+\.py)$")
COMMAND = "$ "
CONTINUED = "> "


class PageError(ValueError):
    """A page has a block that is not as blocks are."""


@dataclass(frozen=True)
class Block:
    """One fenced block. `before`: the paragraph or comment above it."""

    language: str
    line: int
    text: str
    before: str = ""

    @property
    def reason(self) -> str | None:
        """Why it is not run, as the page says; None: it is run."""
        found = NOT_RUN.match(self.before)
        return found["reason"] if found else None

    @property
    def file(self) -> str | None:
        """The name of the file that it is, or None."""
        found = FILE.match(self.text.partition("\n")[0]) if self.language == "python" else None
        return found[1] if found else None

    @property
    def ranks(self) -> int:
        """On how many ranks it is run; 0: by itself, without a launcher."""
        found = RUN_ON.match(self.before)
        return int(found["ranks"]) if found else 0

    @property
    def preamble(self) -> str:
        """What is run before it."""
        found = RUN_ON.match(self.before)
        return (found["before"] or "") if found else ""


@dataclass(frozen=True)
class Step:
    """A command of a console block, and what the page says that it prints."""

    line: int
    command: str
    output: tuple[str, ...]


def blocks_of(text: str, *, has_drawings: bool = False) -> list[Block]:
    """Return the fenced blocks of a page, in order; those of directives are the builder's.

    has_drawings: blocks without a language are drawings and lists, as in the pages of the design.

    Raises:
        PageError: a block has no language, one that is not known, or no end.
    """
    lines = text.split("\n")
    found, number = [], 0
    while number < len(lines):
        fence = FENCE.match(lines[number]) or re.match(r"^( *)(`{3,}|:{3,})(\{.*)$", lines[number])
        if fence is None:
            number += 1
            continue
        end = _end_of(lines, number, fence[2])
        language = fence[3].strip()
        if not DIRECTIVE.match(language):
            if language not in RUN + PARSED + READ and not (has_drawings and not language):
                raise PageError(f"line {number + 1}: no such kind of block: {language!r}")
            indent = len(fence[1])
            body = "\n".join(line[indent:] for line in lines[number + 1 : end])
            found.append(Block(language, number + 1, body, _above(lines, number)))
        number = end + 1
    return found


def _end_of(lines: list[str], start: int, fence: str) -> int:
    for number in range(start + 1, len(lines)):
        text = lines[number].strip()
        if text.startswith(fence) and not text.strip(fence[0]):
            return number
    raise PageError(f"line {start + 1}: the block has no end")


def _above(lines: list[str], number: int) -> str:
    """Return the paragraph above a line, or the whole comment."""
    end = number
    while end > 0 and not lines[end - 1].strip():
        end -= 1
    begin = end
    is_comment = end > 0 and lines[end - 1].rstrip().endswith("-->")
    while begin > 0 and (lines[begin - 1].strip() or is_comment):
        begin -= 1
        if is_comment and lines[begin].startswith("<!--"):
            break
    return "\n".join(lines[begin:end]).strip()


def indented_blocks(text: str) -> list[int]:
    """Return the lines at which code stands that is only indented: such blocks are not run."""
    found, is_fenced, was_blank, in_list = [], False, True, False
    for number, line in enumerate(text.split("\n"), 1):
        if FENCE.match(line) or line.lstrip().startswith(("```{", ":::")):
            is_fenced = not is_fenced
        elif not is_fenced:
            in_list = bool(re.match(r"^\s*([-*]|\d+\.) ", line)) or (
                in_list and (not line.strip() or line.startswith(" "))
            )
            if line.startswith("    ") and was_blank and not in_list and line.strip():
                found.append(number)
        was_blank = not line.strip()
    return found


def steps_of(block: Block) -> list[Step]:
    """Return the commands of a console block; `> ` and a final backslash go on with one.

    Raises:
        PageError: it does not begin with a command.
    """
    steps: list[tuple[int, list[str], list[str]]] = []
    for number, line in enumerate(block.text.split("\n"), block.line + 1):
        if line.startswith(COMMAND):
            steps.append((number, [line.removeprefix(COMMAND)], []))
        elif not steps:
            raise PageError(f"line {number}: a console block begins with `$ command`")
        elif line.startswith(CONTINUED) and not steps[-1][2]:
            steps[-1][1].append(line.removeprefix(CONTINUED))
        else:
            steps[-1][2].append(line)
    return [Step(line, "\n".join(command), tuple(said)) for line, command, said in steps]


def needs_of(text: str) -> list[str]:
    """Return the packages that a page's blocks need."""
    return [name for names in NEEDS.findall(text) for name in re.split(r"[ ,]+", names) if name]
