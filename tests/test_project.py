"""What a user gets: the installed wheel, the documents, and a tree without leftovers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path, PurePath

import pytest

import standfast

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

CODE = (".py", ".pyi", ".h", ".cpp", ".inc", ".cmake")
FILE_LINES_MAX = 800
FILE_BYTES_MAX = 1 << 20
TOP_LEVEL = frozenset(
    {".ci", ".clang-format", ".gitignore", "CHANGELOG.md", "CMakeLists.txt", "CONTRIBUTING.md"}
    | {"LICENSE", "Makefile", "README.md", "bench", "bind", "cmake", "core", "docs", "emulator"}
    | {"examples", "mlx", "pyproject.toml", "src", "tests"}
)
LEFTOVER = re.compile(
    r"(^|/)(__pycache__|\.DS_Store|core\.\d+)(/|$)|\.(so|dylib|o|a|pyc|orig|rej|log|tmp|bak)$|~$"
)

installed_only = pytest.mark.skipif(
    "EXPECT_INSTALLED" not in os.environ, reason="the wheel is tested by `make pytest` only"
)


def project_files() -> list[Path]:
    """List the files that are, or would be, in the repository."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    paths = (ROOT / name for name in listing.stdout.split("\0") if name)
    return [path for path in paths if path.is_file()]


@installed_only
def test_the_installed_wheel_is_tested() -> None:
    """The tests import standfast from the environment, never from the source tree."""
    assert Path(standfast.__file__).resolve().is_relative_to(Path(sys.prefix).resolve())
    assert str(ROOT / "src") not in sys.path


@installed_only
def test_the_wheel_is_complete() -> None:
    """The wheel holds one native module, its stub, the typing marker, the license, and no junk."""
    files = [PurePath(file) for file in metadata.files("standfast") or ()]
    names = [file.name for file in files]
    assert sum(name.startswith("_core.") and name.endswith(".so") for name in names) == 1
    assert {"py.typed", "_core.pyi", "_librdma.so", "LICENSE"} <= set(names)
    if sys.platform == "linux":
        assert os.access(Path(standfast.__file__).with_name("_sentinel"), os.X_OK)
    assert {file.parts[0] for file in files if ".." not in file.parts} == {
        "standfast",
        f"standfast-{PROJECT['project']['version']}.dist-info",
    }


@installed_only
def test_versions_agree() -> None:
    """The installed version is that of pyproject.toml."""
    assert metadata.version("standfast") == PROJECT["project"]["version"]


@installed_only
def test_the_command_is_installed() -> None:
    """`standfast` is a command, and its entry point can be loaded."""
    (entry,) = metadata.entry_points(group="console_scripts", name="standfast")
    assert callable(entry.load())


def test_build_requirements_agree() -> None:
    """The wheel of `make` is built with what `pip install .` would use."""
    assert set(PROJECT["build-system"]["requires"]) <= set(PROJECT["dependency-groups"]["build"])


def test_readme_has_the_two_commands() -> None:
    """A reader finds both commands of a fresh clone in README.md."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in readme
    assert "make test" in readme


def test_changelog_has_a_place_for_the_next_line() -> None:
    """CHANGELOG.md has an Unreleased section."""
    assert "\n## [Unreleased]\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_no_stray_files() -> None:
    """Every file has its place: none was left at the top or made by a tool, and none is huge."""
    names = [path.relative_to(ROOT).as_posix() for path in project_files()]
    assert {name.split("/")[0] for name in names} <= TOP_LEVEL
    assert [name for name in names if LEFTOVER.search(name)] == []
    assert [name for name in names if (ROOT / name).stat().st_size > FILE_BYTES_MAX] == []


def test_no_file_is_too_long() -> None:
    """No file of code is over the limit of docs/design/style.md."""
    lengths = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8").count("\n")
        for path in project_files()
        if path.suffix in CODE
    }
    assert {name: lines for name, lines in lengths.items() if lines > FILE_LINES_MAX} == {}
