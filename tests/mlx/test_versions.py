"""Which MLX a build of standfast-mlx takes, and what it says to the others."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from standfast.mlx_versions import foreign_abi, objection, parse

ROOT = Path(__file__).resolve().parents[2]


def facts() -> ModuleType:
    """Load mlx/facts.py, a program of the build."""
    spec = importlib.util.spec_from_file_location("facts", ROOT / "mlx" / "facts.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("found", ["0.32.4", "0.32.9", "0.32.5.dev20261130+1a"])
def test_versions_that_fit(found: str) -> None:
    """Any MLX of the same minor version, from the first that survives errors on."""
    assert objection(found, "0.32.4") is None


@pytest.mark.parametrize(
    ("found", "built", "says"),
    [
        ("0.32.3", "0.32.4", "MLX 0.32.3 is too old: before 0.32.4 an error"),
        ("0.30.6", "0.32.4", "can abort the whole process; pip install 'mlx>=0.32.4'"),
        ("0.33.0", "0.32.4", "was built for MLX 0.32.4, and this is 0.33.0"),
        ("1.32.4", "0.32.4", "was built for MLX 0.32.4, and this is 1.32.4"),
        ("nightly", "0.32.4", "MLX calls itself 'nightly'"),
    ],
)
def test_versions_that_do_not(found: str, built: str, says: str) -> None:
    """The others are refused, with the reason and the way out."""
    assert says in str(objection(found, built))


def test_another_nanobind() -> None:
    """Both versions are named, and how to build for this MLX."""
    text = foreign_abi("0.32.2", "0.32.4", "22")
    assert "built for MLX 0.32.4 and version 22 of nanobind's internals" in text
    assert "MLX 0.32.2 has another one" in text
    assert "pip install --force-reinstall --no-binary standfast-mlx" in text


def test_numbers_of_a_version() -> None:
    """The first three count."""
    assert parse("0.32.10") == (0, 32, 10)
    assert parse("0.32") is None


def test_the_internals_of_a_module(tmp_path: Path) -> None:
    """The build finds the version of nanobind's internals in MLX's module, among other versions."""
    text = b"\x7fELF\0symbol_v0\0nanobind_system_libstdcpp_gxx_abi_1xxx_use_cxx11_abi_1_a1_v22\0"
    (tmp_path / "core.abi.so").write_bytes(text)
    assert facts().abi_of_mlx(tmp_path) == "22"


def test_a_module_without_internals(tmp_path: Path) -> None:
    """Where MLX's module does not say what it was built with, no version is made up."""
    (tmp_path / "core.abi.so").write_bytes(b"\x7fELF\0symbol_v0\0")
    with pytest.raises(SystemExit, match="has no module that names its nanobind"):
        facts().abi_of_mlx(tmp_path)


def test_the_build_refuses_another_nanobind(tmp_path: Path) -> None:
    """facts.py, which CMake asks, names both versions of the internals and the nanobind to take."""
    pytest.importorskip("mlx.core", reason="MLX is not installed")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "nb_internals.h").write_text("#  define NB_INTERNALS_VERSION 3\n")
    done = subprocess.run(
        [sys.executable, ROOT / "mlx" / "facts.py", tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert re.search(r"was built with version \d+ of nanobind's internals", done.stderr)
    assert "the nanobind here has 3" in done.stderr
    assert "hint: pip install" in done.stderr
