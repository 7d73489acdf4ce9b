"""What Slurm's variables mean: host lists, tasks per node, and a port. Pure; launchers.py calls it.

`scontrol show hostnames` would expand a host list too, at the price of a process in every rank.
A test compares the two where Slurm is installed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

from standfast.errors import ConfigError

HOSTS_MAX = 100_000
BRACKETS = re.compile(r"\[([^\[\]]*)\]")
RANGE = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)
REPEATED = re.compile(r"(\d{1,9})(?:\(x(\d{1,9})\))?", re.ASCII)


def hosts(name: str, text: str) -> list[str]:
    """Expand a host list such as ``gpu[10,20-22],login1`` or ``r[1-2]n[01-16]``.

    Raises:
        ConfigError: the text of the variable `name` is no host list.
    """
    found: list[str] = []
    for word in _words(name, text):
        found.extend(_expanded(name, text, word))
        if len(found) > HOSTS_MAX:
            raise ConfigError(f"{name}={text!r} names more than {HOSTS_MAX} hosts")
    return found


def _words(name: str, text: str) -> Iterator[str]:
    """Cut a host list at the commas that are outside of brackets."""
    for word in re.split(r",(?![^\[]*\])", text):
        if not word or any(c.isspace() for c in word):
            raise ConfigError(f"{name}={text!r} is not a host list: {word!r} is no host")
        yield word


def _expanded(name: str, text: str, word: str) -> Iterator[str]:
    """Expand the first brackets of a word, and the rest of it for each of their values."""
    match = BRACKETS.search(word)
    if match is None:
        if "[" in word or "]" in word:
            raise ConfigError(f"{name}={text!r} is not a host list: brackets do not match")
        yield word
        return
    for number in chain.from_iterable(_range(name, text, part) for part in match[1].split(",")):
        yield from _expanded(name, text, word[: match.start()] + number + word[match.end() :])


def _range(name: str, text: str, part: str) -> Iterator[str]:
    """Return the numbers of ``7`` or ``08-11``, as wide as they are written."""
    match = RANGE.fullmatch(part)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if match is None or not first <= last < first + HOSTS_MAX:
        raise ConfigError(f"{name}={text!r} is not a host list: {part!r} is no range")
    return (f"{value:0{len(match[1])}}" for value in range(first, last + 1))


def tasks_per_node(name: str, text: str) -> list[int]:
    """Expand ``2(x3),1`` to the number of tasks of each node: [2, 2, 2, 1].

    Raises:
        ConfigError: the text of the variable `name` is not of that form.
    """
    counts: list[int] = []
    for part in text.split(","):
        match = REPEATED.fullmatch(part)
        times = int(match[2] or 1) if match else 0
        if match is None or times > HOSTS_MAX:
            raise ConfigError(f"{name}={text!r} is not of the form 2(x3),1")
        counts.extend([int(match[1])] * times)
    return counts


def port(job_id: int) -> int:
    """Return the port at which the ranks of a job meet.

    The rule is that of JAX's Slurm cluster, so that one opening in a firewall serves both.
    """
    return job_id % 4096 + 61440
