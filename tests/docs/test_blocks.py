"""What a page's blocks are: the rules of blocks.py and compare.py."""

from __future__ import annotations

import pytest

from tests.docs.blocks import (
    PageError,
    blocks_of,
    indented_blocks,
    needs_of,
    steps_of,
)
from tests.docs.compare import difference

PAGE = """\
# A page

<!-- needs torch, mlx -->

```python
# a/b.py
print(1)
```

*Not run here: it needs
two Macs.*

```console
$ one
```

<!-- run on 3 ranks, after:
import os

x = 1
-->

```python
print(x)
```

```{toctree}
index
```
"""


def test_a_page_has_its_blocks() -> None:
    """Files, reasons, ranks and what comes before are read; directives are not blocks."""
    file, marked, piece = blocks_of(PAGE)
    assert (file.language, file.file, file.line) == ("python", "a/b.py", 5)
    assert marked.reason == "it needs\ntwo Macs."
    assert (piece.ranks, piece.preamble) == (3, "import os\n\nx = 1\n".rstrip("\n"))
    assert file.reason is None
    assert needs_of(PAGE) == ["torch", "mlx"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("```\nx\n```", "no such kind of block: ''"),
        ("```pyhton\nx\n```", "no such kind of block: 'pyhton'"),
        ("```python\nx", "the block has no end"),
    ],
)
def test_what_is_no_block_is_named(text: str, says: str) -> None:
    """A block that nothing would be done with is an error, with its line."""
    with pytest.raises(PageError, match=f"line 1: {says}"):
        blocks_of(text)


def test_indented_code_is_found() -> None:
    """Code that is only indented is found, and continued items of lists are not."""
    assert indented_blocks("text\n\n    make demo\n") == [3]
    assert indented_blocks("- an item\n\n    goes on\n") == []
    assert indented_blocks("```python\nif x:\n\n    y\n```\n") == []


def test_a_console_block_has_steps() -> None:
    """Commands may go on in the next line; what follows is their output."""
    (block,) = blocks_of("```console\n$ one \\\n> two\nout\n$ three\n```")
    first, second = steps_of(block)
    assert (first.command, first.output, first.line) == ("one \\\ntwo", ("out",), 2)
    assert (second.command, second.output) == ("three", ())
    with pytest.raises(PageError, match="begins with"):
        steps_of(blocks_of("```console\nout\n```")[0])


@pytest.mark.parametrize(
    ("said", "printed"),
    [
        (["[r0] a", "[r1] b"], ["[r1] b", "[r0] a"]),
        (["error after 1.6 ms, exit 75 after 2 s"], ["error after 13 ms, exit 75 after 0.4 s"]),
        (["its process 1 is ending"], ["its process 14339 is ending"]),
        (["a...z", "..."], ["a to z", "and more", "and more"]),
        (["a...", "ab"], ["ab", "ac"]),
        (["port 127.0.0.1:1"], ["port 127.0.0.1:54321"]),
        (
            [
                "died: its process 7 is ending: its beacon was passed on; seen first here; "
                "rank 1 was 1 s into a"
            ],
            [
                "died: data connection between rank 3 and rank 2 (shm): gone; seen first by rank 2;"
                " rank 1 waited 2.0 s for rank 2 over shm in a, 24 bytes received"
            ],
        ),
    ],
)
def test_what_may_differ(said: list[str], printed: list[str]) -> None:
    """Order, times, process numbers, and what stands for anything."""
    assert difference(said, printed) == ""


@pytest.mark.parametrize(
    ("said", "printed", "says"),
    [
        (["a"], [], "did not print: a"),
        ([], ["a"], "does not say: a"),
        (["a", "a"], ["a"], "did not print: a"),
        (["exit 75"], ["exit 76"], "did not print: exit 75"),
        (["rank 2 died", "..."], ["rank 3 died"], "did not print: rank 2 died"),
    ],
)
def test_what_may_not(said: list[str], printed: list[str], says: str) -> None:
    """Lines that are missing or too many, other ranks, other statuses."""
    assert says in difference(said, printed)
