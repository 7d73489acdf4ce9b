"""The picture of a death: what its script measures in a real run, and what it draws of it."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

from tests.docs.pages import ROOT

SCRIPT = ROOT / "docs" / "picture" / "path_of_a_death.py"
PICTURE = SCRIPT.with_name("path-of-a-death.svg")
SVG = "{http://www.w3.org/2000/svg}"
LINE = re.compile(r"^ *([\d.]+) ms  (rank \d|launcher) +(.+)$", re.MULTILINE)

SPEC = importlib.util.spec_from_file_location("path_of_a_death", SCRIPT)
assert SPEC is not None
assert SPEC.loader is not None
script = importlib.util.module_from_spec(SPEC)
sys.modules["path_of_a_death"] = script  # dataclasses look their module up
SPEC.loader.exec_module(script)


def texts(svg: str) -> list[str]:
    """Return what is written in a picture."""
    return [text.text or "" for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_a_real_run_is_drawn(tmp_path: Path) -> None:
    """Each survivor knows, then its program, then it ends; and the picture has all of it."""
    path = tmp_path / "death.svg"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(path)],
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    seen = [(float(ms), who, what) for ms, who, what in LINE.findall(done.stdout)]
    assert seen[0] == (0.0, "rank 2", "SIGKILL")
    for rank in (0, 1, 3):
        mine = [what for _, who, what in seen if who == f"rank {rank}"]
        assert mine == [script.WORDS[kind] for kind in ("knows", "raises", "ends")]
    told = [what for _, who, what in seen if who == "launcher"]
    assert told == ["peer_lost", "group_failed", "finished"]
    assert {"rank 0", "rank 1", "rank 2", "rank 3", "launcher", "SIGKILL"} <= set(
        texts(path.read_text(encoding="utf-8"))
    )


def test_the_committed_picture_is_of_this_script() -> None:
    """Its lanes and words are those that the script draws today."""
    committed = set(texts(PICTURE.read_text(encoding="utf-8")))
    cause = next(text.partition("it died, ")[2] for text in committed if "it died, " in text)
    marks = [script.Mark(2, 0, "kill"), script.Mark(0, 1.25, "knows"), script.Mark(0, 120, "ends")]
    drawn = texts(script.drawing(marks, cause))
    words = {each for each in drawn if not re.fullmatch(r"[\d.]+( ms)?", each)}
    assert len(words) > 10
    assert words - committed == set()
