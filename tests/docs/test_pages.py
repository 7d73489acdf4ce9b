"""Every code block of every page does what the page says, or says why it is not run."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path

import pytest

from tests.docs.blocks import blocks_of, indented_blocks, needs_of
from tests.docs.pages import ROOT, Folder, page_blocks, run_block, run_page, with_free_ports

SHOWN = r"`(examples|bench|docs|tests|emulator)/[a-zA-Z0-9_./-]+`"


def pages() -> list[str]:
    """List README.md and the pages of docs/."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path.relative_to(ROOT).as_posix() for path in found]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", pages())
def test_the_blocks_of_a_page(page: str) -> None:
    """Programs end well, and commands print what stands below them."""
    blocks = page_blocks(ROOT / page)
    text = (ROOT / page).read_text(encoding="utf-8")
    missing = [name for name in needs_of(text) if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{page} needs {', '.join(missing)}")
    bad = [outcome for outcome in run_page(blocks) if outcome.problem]
    told = [
        f"{page}:{each.block.line}\n{each.problem}\n--- it printed\n{each.printed}" for each in bad
    ]
    assert not bad, "\n\n".join(told)


@pytest.mark.parametrize("page", [page for page in pages() if "/design/" not in page])
def test_no_block_hides(page: str) -> None:
    """Code stands in fenced blocks, which are run; pages of the design have drawings, too."""
    assert indented_blocks((ROOT / page).read_text(encoding="utf-8")) == []


def test_a_wrong_page_fails(tmp_path: Path) -> None:
    """A program that ends badly, and output that is not what the page says, are found."""
    folder = Folder(tmp_path)
    page = (
        "```python\nraise SystemExit(3)\n```\n\n```console\n$ echo a; exit 4\nb\n$ echo $?\n4\n```"
    )
    ends_badly, prints_other = [run_block(folder, block) for block in blocks_of(page)]
    assert "ended with 3" in ends_badly.problem
    assert "did not print: b" in prints_other.problem
    assert "does not say: a" in prints_other.problem


def test_ports_of_a_page_are_free_ones() -> None:
    """A port of this machine that a page names is replaced, by the same one wherever it stands."""
    script = with_free_ports("a 127.0.0.1:29400 b 127.0.0.1:29400 c 10.0.0.1:29400")
    first, second = re.findall(r"127\.0\.0\.1:(\d+)", script)
    assert first == second != "29400"
    assert script.endswith("c 10.0.0.1:29400")


def test_every_file_that_a_page_shows_is_there() -> None:
    """Paths of the repository that pages name exist."""
    shown = subprocess.run(
        [*("git", "grep", "-hoE"), SHOWN, "--", "README.md", "docs"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if shown.returncode != 0:
        pytest.skip("not a git checkout")
    names = {name.strip("`").partition("::")[0] for name in shown.stdout.split()}
    assert sorted(name for name in names if not (ROOT / name).exists()) == []
