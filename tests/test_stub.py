"""src/standfast/_core.pyi is what nanobind's stubgen says of the native module."""

from __future__ import annotations

import ast
import difflib
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
STUB = ROOT / "src" / "standfast" / "_core.pyi"


def normal(text: str) -> list[str]:
    """Return a stub's code and docstrings, without its comments and whatever its layout."""
    return ast.unparse(ast.parse(text)).splitlines(keepends=True)


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What stubgen writes for the module that is tested."""
    if importlib.util.find_spec("nanobind") is None:
        pytest.skip("nanobind, which writes stubs, is not installed")
    target = tmp_path_factory.mktemp("stub") / "_core.pyi"
    pattern = ROOT / "bind" / "stub.pattern"
    command = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "standfast._core"]
    subprocess.run([*command, "-p", pattern, "-o", target], check=True, timeout=60)
    return target.read_text(encoding="utf-8")


def test_the_stub_is_that_of_the_module(generated: str) -> None:
    """Nothing of the module's face has changed without its stub."""
    changes = difflib.unified_diff(
        normal(STUB.read_text(encoding="utf-8")),
        normal(generated),
        "src/standfast/_core.pyi",
        "what the module says",
    )
    text = "".join(changes)
    assert not text, f"the stub is not that of the module; to renew it: make stubs\n{text}"


def test_no_type_was_left_out(generated: str) -> None:
    """Every argument and result has a type, and none is C++'s name of one."""
    assert "std::" not in generated
    assert "::" not in generated
    for node in ast.walk(ast.parse(generated)):
        if isinstance(node, ast.FunctionDef):
            assert node.returns is not None, node.name
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            missing = [each.arg for each in arguments if each.annotation is None]
            assert missing in ([], ["self"]), node.name
