"""What is released: source distributions, and the wheels that cibuildwheel is told to build.

`make release` makes them and tries the wheel (smoke.py); these tests need no compiler.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EPOCH = "1700000000"
BUILD = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
WHEELS = ("cp311", "cp312", "cp314t")
MLX_WHEELS = ("cp311", "cp312", "cp313", "cp314", "cp314t")


def needs(module: str) -> None:
    """Skip what needs a tool that is not here."""
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")


def copy_of_the_project(target: Path) -> Path:
    """Copy what is, or would be, in the repository."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    for name in listed.split("\0"):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target / name)
            shutil.copymode(ROOT / name, target / name)
    return target


def sdist(project: Path, target: Path) -> Path:
    """Build a source distribution."""
    environ = {**os.environ, "SOURCE_DATE_EPOCH": EPOCH}
    command = [sys.executable, "-c", BUILD, str(target)]
    subprocess.run(command, cwd=project, env=environ, check=True, capture_output=True, timeout=100)
    (made,) = target.glob("*.tar.gz")
    return made


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project."""
    needs("scikit_build_core")
    return copy_of_the_project(tmp_path_factory.mktemp("project"))


def names_in(archive: Path) -> set[str]:
    """List an archive's files, below its one folder."""
    with tarfile.open(archive) as opened:
        return {name.partition("/")[2] for name in opened.getnames()}


@pytest.mark.parametrize("folder", [".", "mlx"])
def test_the_sdist_is_reproducible(project: Path, tmp_path: Path, folder: str) -> None:
    """The same sources give the same bytes, whenever and wherever they were checked out."""
    once = sdist(project / folder, tmp_path / "once")
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(project / folder, elsewhere)
    for path in elsewhere.rglob("*"):
        os.utime(path, (1, 1))
        if path.is_file():
            path.chmod(path.stat().st_mode | 0o020)  # as another umask would have it
    again = sdist(elsewhere, tmp_path / "again")
    assert once.name == again.name
    assert once.read_bytes() == again.read_bytes()


def test_the_sdist_is_whole(project: Path, tmp_path: Path) -> None:
    """It has all that the wheel is built of, and the tests; and nothing that was built."""
    names = names_in(sdist(project, tmp_path))
    assert {
        *("LICENSE", "PKG-INFO", "README.md", "pyproject.toml", "CMakeLists.txt", "Makefile"),
        *("core/group.cpp", "bind/module.cpp", "bind/stub.pattern", "cmake/sources.cmake"),
        *("emulator/CMakeLists.txt", "emulator/exports.map", "core/sentinel/main_linux.cpp"),
        *("src/standfast/include/standfast/native.h", "src/standfast/py.typed"),
        *("src/standfast/_core.pyi", "tests/release/smoke.py", "mlx/native/group.cpp"),
    } <= names
    assert {name for name in names if name.endswith((".so", ".o", ".pyc"))} == set()
    assert not any(name.startswith(("build/", "dist/", ".venv/", ".git/")) for name in names)


def test_the_sdist_of_standfast_mlx_is_whole(project: Path, tmp_path: Path) -> None:
    """It has its licence, its sources and what its build asks, and nothing that builds leave."""
    mlx = tmp_path / "mlx"
    shutil.copytree(project / "mlx", mlx)
    leftovers = {"build/_group.so", "src/standfast_mlx/_group.so", "src/standfast_mlx/_built.py"}
    for name in leftovers:
        (mlx / name).parent.mkdir(exist_ok=True)
        (mlx / name).touch()
    names = names_in(sdist(mlx, tmp_path / "made"))
    assert names.isdisjoint(leftovers)
    assert {
        *("LICENSE", "PKG-INFO", "README.md", "pyproject.toml", "CMakeLists.txt"),
        *("facts.py", "built.py.in", "native/group.cpp", "src/standfast_mlx/__init__.py"),
    } <= names


def test_the_licences_are_one() -> None:
    """Both distributions carry the same licence."""
    assert (ROOT / "mlx" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


@pytest.mark.parametrize(
    ("folder", "platform", "archs", "expected"),
    [
        (".", "linux", "x86_64", [f"{each}-manylinux_x86_64" for each in WHEELS]),
        (".", "linux", "aarch64", [f"{each}-manylinux_aarch64" for each in WHEELS]),
        (".", "macos", "arm64", [f"{each}-macosx_arm64" for each in WHEELS]),
        ("mlx", "macos", "arm64", [f"{each}-macosx_arm64" for each in MLX_WHEELS]),
    ],
)
def test_which_wheels_are_built(
    folder: str, platform: str, archs: str, expected: list[str]
) -> None:
    """cibuildwheel builds these wheels, and no others."""
    needs("cibuildwheel")
    command = [sys.executable, "-m", "cibuildwheel", "--platform", platform, "--archs", archs]
    done = subprocess.run(
        [*command, "--print-build-identifiers", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == expected


def test_one_wheel_serves_all_later_pythons() -> None:
    """The wheel built with 3.12 is for every CPython from there on: cp312-abi3."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["tool"]["scikit-build"]["wheel"]["py-api"] == "cp312"
    assert "STABLE_ABI" in (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
