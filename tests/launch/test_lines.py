"""Prefixes, partial and overlong lines, and the kept tail."""

from __future__ import annotations

import itertools
import random

import pytest

from standfast.launch.lines import LINE_BYTES_MAX, TAIL_LINES_MAX, Prefixer, Tail, printable


def whole(data: bytes, cuts: list[int]) -> bytes:
    """Feed data in pieces, then finish."""
    prefixer = Prefixer(b"> ")
    edges = [0, *cuts, len(data)]
    out = b"".join(prefixer.feed(data[a:b]) for a, b in itertools.pairwise(edges))
    return out + prefixer.finish()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", b""),
        (b"a\n", b"> a\n"),
        (b"a", b"> a\n"),
        (b"\n", b"> \n"),
        (b"a\n\nb\n", b"> a\n> \n> b\n"),
        (b"a\r\nb", b"> a\r\n> b\n"),
        (b"\x00\xff\n\xfe", b"> \x00\xff\n> \xfe\n"),
    ],
)
def test_every_line_has_its_prefix(data: bytes, expected: bytes) -> None:
    """Lines are prefixed, other bytes untouched, and a last line without newline is completed."""
    assert whole(data, []) == expected


def test_pieces_do_not_matter() -> None:
    """However the pipe cuts the data, the lines are the same."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    source = random.Random(seed)
    for _ in range(200):
        data = bytes(source.choices(b"ab\n", k=source.randrange(40)))
        cuts = sorted(source.choices(range(len(data) + 1), k=source.randrange(6)))
        assert whole(data, cuts) == whole(data, [])


def test_a_partial_line_is_held_back() -> None:
    """Nothing of a line is written before it is whole."""
    prefixer = Prefixer(b"> ")
    assert prefixer.feed(b"one\ntw") == b"> one\n"
    assert prefixer.feed(b"o\n") == b"> two\n"


def test_an_overlong_line_passes_in_pieces() -> None:
    """A line of megabytes goes through whole, with one prefix, and is not kept in memory."""
    prefixer = Prefixer(b"> ")
    piece = b"x" * 60000
    out = []
    for _ in range(100):
        out.append(prefixer.feed(piece))
        assert len(out[-1]) <= LINE_BYTES_MAX + len(piece) + 2
        assert prefixer.in_line or not out[-1]
    out.append(prefixer.feed(b"end\nnext\n"))
    assert b"".join(out) == b"> " + piece * 100 + b"end\n> next\n"
    assert not prefixer.in_line


def test_an_overlong_line_that_ends_with_the_stream() -> None:
    """It is completed too."""
    data = b"x" * (3 * LINE_BYTES_MAX)
    assert whole(data, [LINE_BYTES_MAX + 1]) == b"> " + data + b"\n"


def test_a_broken_line_goes_on_with_a_prefix() -> None:
    """After somebody else's line the rest of an overlong line is prefixed again."""
    prefixer = Prefixer(b"> ")
    prefixer.feed(b"x" * (LINE_BYTES_MAX + 1))
    prefixer.break_line()
    assert prefixer.feed(b"rest\n") == b"> rest\n"


def test_tail_keeps_the_last_lines() -> None:
    """The tail is bounded, starts with a whole line, and drops empty lines at its end."""
    tail = Tail()
    for number in range(5000):
        tail.feed(f"line {number}\n".encode())
    tail.feed(b"\n\n")
    assert tail.lines() == tuple(f"line {n}" for n in range(5000 - TAIL_LINES_MAX, 5000))


def test_tail_of_one_endless_line() -> None:
    """A line longer than the tail is cut, not lost."""
    tail = Tail()
    tail.feed(b"x" * 1_000_000)
    (line,) = tail.lines()
    assert line.startswith("xxxx")
    assert len(line) < 500


def test_printable() -> None:
    """Nothing in the report can act on a terminal."""
    assert printable(b"\x1b[31mred\x07 \xff \xc3\xa9\r") == "\\x1b[31mred\\x07 \\xff é"
