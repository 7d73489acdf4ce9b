"""Tell CMake what is installed: MLX's folder; its version; native.h's folder; nanobind's ABI.

Called by CMakeLists.txt with the folder of nanobind, whose internals must be those of MLX's module.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import sys
from pathlib import Path

from standfast.mlx_versions import objection

# As a module built with nanobind 3 has it in its text.
NAMED = re.compile(rb"nanobind_[ -~]*?_v(\d+)(?:_[a-z_]+)?\x00")
HINT = {
    "22": "nanobind>=3.0,<3.2",
}


def folder_of(package: str, header: str) -> Path:
    """Return where a package with this header lies, without importing it.

    MLX has no __init__.py: any folder of that name on the path counts as a part of it.
    """
    spec = importlib.util.find_spec(package)
    for place in (spec.submodule_search_locations or []) if spec is not None else []:
        if (Path(place) / "include" / header).exists():
            return Path(place)
    raise SystemExit(f"error: {sys.executable} has no package {package} with {header}")


def abi_of_mlx(folder: Path) -> str:
    """Return the version of nanobind's internals in MLX's module: "22"."""
    for module in sorted(folder.glob("core.*.so")):
        found = NAMED.search(module.read_bytes())
        if found:
            return found[1].decode()
    raise SystemExit(f"error: {folder} has no module that names its nanobind")


def abi_of_nanobind(folder: Path) -> str:
    """Return the version of the internals of the nanobind that this is built with."""
    text = (folder / "src" / "nb_internals.h").read_text(encoding="utf-8")
    found = re.search(r"define\s+NB_INTERNALS_VERSION\s+(\d+)", text)
    if found is None:
        raise SystemExit(f"error: {folder} does not name its internals")
    return found[1]


def main() -> None:
    """Print the facts, or say what does not fit together."""
    mlx, version = folder_of("mlx", "mlx/version.h"), importlib.metadata.version("mlx")
    native = folder_of("standfast", "standfast/native.h") / "include"
    if trouble := objection(version, built_for=version):
        raise SystemExit(f"error: {trouble}")
    ours, theirs = abi_of_nanobind(Path(sys.argv[1])), abi_of_mlx(mlx)
    if ours != theirs:
        raise SystemExit(
            f"error: mlx {version} was built with version {theirs} of nanobind's internals, "
            f"the nanobind here has {ours}: the two could not exchange objects\n"
            f"hint: pip install '{HINT.get(theirs, 'the nanobind that this mlx was built with')}'"
        )
    print(mlx, version, native, theirs, sep=";")


if __name__ == "__main__":
    main()
