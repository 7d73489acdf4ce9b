"""The arrows and bans of docs/design/design.md, checked from includes, imports and calls.

The tables come first. When a forbidden thing is right after all, the table changes, with a reason.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Who may include whom, besides itself: a layer, or one header of it.
ARROWS: dict[str, tuple[str, ...]] = {
    "base": (),
    "reduce": ("base",),
    "flight": ("base",),
    "fabric": ("base", "control/abort.h", "control/verdict.h"),
    # Of the fabrics it knows the interface, not one of them by name.
    # It tells the watch for whom it waits.
    "wait": ("base", "control/abort.h", "control/board.h", "control/verdict.h", "fabric/fabric.h"),
    "control": ("base",),
    # Measures the machine; nothing else uses it.
    "limits": ("base", "reduce", "wait/wait.h"),
    # A program of its own, which shares with the beacon what the word means and how one waits.
    "sentinel": ("base", "control/beacon_linux.h"),
    "collective": ("base", "reduce", "wait", "fabric"),
    # Its own data path over RDMA, beside fabric and collective.
    "jaccl": ("base", "reduce", "wait", "fabric"),
    "group": ("base", "reduce", "wait", "fabric", "collective", "control", "flight", "jaccl"),
    # Rendezvous, in Python, makes the segments, the beacons' memory, and what goes over RDMA before
    # there is a group. The machine alone is for tests.
    "bind": (
        *("base", "group", "limits", "fabric/shm/arena.h", "fabric/shm/segment.h"),
        "fabric/verbs/link.h",
        *("fabric/verbs/station.h", "control/beacon.h", "control/machine.h"),
        *("jaccl/engine.h", "jaccl/station.h"),
    ),
}

# What the core may take from outside: the C++ library (headers without an ending), the system,
# the processor.
SYSTEM_HEADERS = (
    "sys/*",
    "linux/*",
    "netinet/*",
    "arpa/*",
    "mach/*",
    *("dlfcn.h", "errno.h", "fcntl.h", "ifaddrs.h", "libproc.h", "limits.h", "net/if.h", "netdb.h"),
    *("poll.h", "pthread.h", "sched.h", "signal.h", "spawn.h", "time.h", "unistd.h"),
    *("immintrin.h", "arm_neon.h", "cpuid.h"),
)


@dataclass(frozen=True)
class Ban:
    """A thing that stands in C++ code only in the files that exist for it."""

    what: str
    pattern: str
    allowed: tuple[str, ...]


BANS = (
    Ban("environment", r"\b(secure_)?getenv\s*\(|\benviron\b", ()),
    Ban(
        "clock",
        r"\b(clock_gettime|clock_gettime_nsec_np|gettimeofday|mach_absolute_time|__rdtscp?)\s*\("
        r"|\b(steady|system|high_resolution|utc)_clock\b|(?<!\w)(std)?::time\s*\(",
        ("core/base/clock*",),
    ),
    # poll() with a limit of 0 only looks. A member named poll, or a select of fewer arguments, is
    # not the system call.
    Ban(
        "blocking call",
        r"\b(epoll_p?wait2?|ppoll|pselect|futex|nanosleep|clock_nanosleep|usleep|sleep_for|sleep_until"
        r"|pthread_cond_(timed)?wait|sem_(timed)?wait|sigwait(info)?|sigtimedwait|kevent)\s*\("
        r"|\bSYS_futex\b|\bcondition_variable(_any)?\b|\b(counting|binary)_semaphore\b"
        r"|(?:^|[;{}(=!,&|?:<]|(?<!-)>|\breturn)\s*(?<!\w)(?<!\w::)(::)?"
        r"(poll\s*\((?![^;]*,\s*0\s*\))|select\s*\((?=(?:[^,;]*,){4})|(sleep|pause)\s*\()",
        ("core/wait/*", "core/control/loop*", "core/control/poller*", "core/control/beacon*"),
    ),
)
# What native code of other distributions gets of us.
OUR_FACE = "standfast/native.h"
PYTHON_OR_NANOBIND = re.compile(r"(^|/)(Python\.h|structmember\.h|nanobind|pybind11)")

PACKAGE = "src/standfast"
MAY_READ_ENVIRONMENT = ("settings.py", "identity.py", "launch/*", "ray/*")
# The edges hand the whole of it to those who may read it; they pick nothing out of it.
MAY_HAND_ON_ENVIRONMENT = ("joining.py", "command.py", "rdma.py", "bench/command.py")
ENVIRONMENT = frozenset({"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"})
# These work where the native module cannot be loaded, so that they can say so.
WITHOUT_CORE = ("errors.py", "exits.py", "settings.py", "identity.py")
# What may be imported when the package is; all else is optional and imported where it is used.
THIRD_PARTY = frozenset({"msgspec", "click"})
# Nobody but these packages themselves imports these files, or `standfast bench` once it has looked.
PLUGINS = {
    "testing/pytest_plugin.py": frozenset({"pytest"}),
    **{f"bench/{name}.py": frozenset({"numpy"}) for name in ("adapters", "data", "rank")},
    **{f"mlx/{name}.py": frozenset({"mlx"}) for name in ("extension", "functions", "group")},
    "ray/collective.py": frozenset({"ray"}),
    # Whoever imports standfast.torch has torch.
    **{
        f"torch/{path.name}": frozenset({"torch"})
        for path in (ROOT / PACKAGE / "torch").glob("*.py")
    },
}
# These stand below everything else of ours.
PYTHON_ARROWS = {"exits.py": frozenset[str](), "errors.py": frozenset({"standfast.exits"})}

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]', re.MULTILINE)
NOT_CODE = re.compile(
    r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\[^'\n]{1,8}|[^'\\\n])'""", re.DOTALL
)

Checker = Callable[[str, str], Iterator[str]]


def layer_of(path: str) -> str | None:
    """Name the layer of a file, or None where the design has no place for it."""
    parts = path.split("/")
    if parts[0] == "bind":
        return "bind"
    if parts[0] != "core" or len(parts) < 2:
        return None
    name = re.split(r"[._]", parts[1])[0] if len(parts) == 2 else parts[1]
    return name if name in ARROWS and (len(parts) > 2 or name == "group") else None


def line_of(text: str, position: int) -> int:
    """Count lines from 1."""
    return text.count("\n", 0, position) + 1


def code_of(text: str) -> str:
    """Blank out comments and literals; everything else stays on its line."""
    return NOT_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def is_listed(path: str, patterns: tuple[str, ...]) -> bool:
    """Tell whether a path matches one of the patterns."""
    return any(fnmatchcase(path, pattern) for pattern in patterns)


def check_includes(path: str, text: str) -> Iterator[str]:
    """Complain about includes that go up, sideways or out."""
    layer = layer_of(path)
    if layer is None:
        yield f"{path}: the design has no such place"
        return
    for match in INCLUDE.finditer(text):
        bracket, header = match.groups()
        here = f"{path}:{line_of(text, match.start())}: {layer} includes {header}"
        if PYTHON_OR_NANOBIND.search(header):
            if layer != "bind":
                yield f"{here}: only bind knows Python"
        elif bracket == "<":
            if header == OUR_FACE and layer == "bind":
                continue
            if "." in header and not is_listed(header, SYSTEM_HEADERS):
                yield f"{here}: not of the system or the C++ library"
        else:
            yield from check_own_include(layer, header, here)


def check_own_include(layer: str, header: str, here: str) -> Iterator[str]:
    """Complain about an include of one of our files from a layer that has no arrow to it."""
    target = layer_of(header)
    if target is None:
        yield f'{here}: ours are included as "core/..." or "bind/...", all else in <>'
    elif (
        target not in (layer, *ARROWS[layer]) and header.removeprefix("core/") not in ARROWS[layer]
    ):
        yield f"{here}: no arrow from {layer} to {target}"


def check_bans(path: str, text: str) -> Iterator[str]:
    """Complain about calls outside the files that exist for them."""
    code = code_of(text)
    for ban in BANS:
        if is_listed(path, ban.allowed):
            continue
        for match in re.finditer(ban.pattern, code, re.MULTILINE):
            found = match[0].strip(" \n;{}(=!,&|?:<>")
            yield f"{path}:{line_of(code, match.end())}: {ban.what}: {found}"


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """List (line, module) of all imports; `from a import b` counts as a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.lineno, f"{'.' * node.level}{node.module or ''}.{alias.name}"


def handed_on(tree: ast.AST) -> set[ast.AST]:
    """Collect the nodes that are arguments of a call."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return {
        argument
        for call in calls
        for argument in (*call.args, *(keyword.value for keyword in call.keywords))
    }


def check_environment(path: str, text: str) -> Iterator[str]:
    """Complain about the environment being read or written outside the files that exist for it."""
    name = path.removeprefix(f"{PACKAGE}/")
    if is_listed(name, MAY_READ_ENVIRONMENT):
        return
    tree = ast.parse(text)
    fine = handed_on(tree) if is_listed(name, MAY_HAND_ON_ENVIRONMENT) else set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="os"), attr=attr) if attr in ENVIRONMENT:
                if node not in fine:
                    yield f"{path}:{node.lineno}: os.{attr}"
    for line, module in imported(tree):
        if module.startswith("os.") and module.removeprefix("os.") in ENVIRONMENT:
            yield f"{path}:{line}: {module}"


def check_without_core(path: str, text: str) -> Iterator[str]:
    """Complain when a module that has to work without the native one imports it."""
    if not is_listed(path.removeprefix(f"{PACKAGE}/"), WITHOUT_CORE):
        return
    for line, module in imported(ast.parse(text)):
        if "_core" in module.split("."):
            yield f"{path}:{line}: imports the native module"


def check_shop_window(path: str, text: str) -> Iterator[str]:
    """Complain about anything but a docstring, imports from ours and assignments of constants."""
    for number, node in enumerate(ast.parse(text).body):
        match node:
            case ast.Expr(value=ast.Constant(value=str())) if number == 0:
                pass
            case ast.ImportFrom(module="__future__"):
                pass
            case ast.ImportFrom(module=str(module), level=0) if module.startswith("standfast"):
                pass
            case ast.Assign(targets=[ast.Name(id="__all__" | "__version__")]):
                pass
            case _:
                yield f"{path}:{node.lineno}: {ast.unparse(node).splitlines()[0]}: only re-exports"


def check_python_arrows(path: str, text: str) -> Iterator[str]:
    """Complain when one of the lowest modules imports from those above it."""
    allowed = PYTHON_ARROWS.get(path.removeprefix(f"{PACKAGE}/"))
    if allowed is None:
        return
    for line, module in imported(ast.parse(text)):
        ours = module.startswith((".", "standfast"))
        if ours and module not in allowed:
            yield f"{path}:{line}: imports {module}"


def check_third_party(path: str, text: str) -> Iterator[str]:
    """Complain about packages that importing ours would need, though we do not depend on them."""
    host = PLUGINS.get(path.removeprefix(f"{PACKAGE}/"), frozenset())
    known = sys.stdlib_module_names | THIRD_PARTY | host | {"standfast"}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for line, module in imported(node):
                if not module.startswith(".") and module.split(".")[0] not in known:
                    yield f"{path}:{line}: imports {module} at once: not a dependency"


def files_of(folder: str, *endings: str) -> list[Path]:
    """List the files below a folder of the repository."""
    return sorted(
        path
        for path in (ROOT / folder).rglob("*")
        if path.suffix in endings and "__pycache__" not in path.parts
    )


def complaints(check: Checker, paths: list[Path]) -> str:
    """Run a check over files and return what it says, a line each."""
    assert paths
    return "\n".join(
        complaint
        for path in paths
        for complaint in check(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
    )


CXX = (".h", ".cpp", ".inc")


def test_includes_follow_the_arrows() -> None:
    """Every include in core and bind goes along an arrow of the design."""
    assert complaints(check_includes, files_of("core", *CXX) + files_of("bind", *CXX)) == ""


def test_core_has_no_clock_wait_or_environment_of_its_own() -> None:
    """Clocks, blocking calls and the environment stay in the files that exist for them."""
    assert complaints(check_bans, files_of("core", *CXX)) == ""


@pytest.mark.parametrize(
    "check", [check_environment, check_without_core, check_python_arrows, check_third_party]
)
def test_python_keeps_to_its_places(check: Checker) -> None:
    """Environment, native module and optional packages are used only where the design says."""
    assert complaints(check, files_of(PACKAGE, ".py")) == ""


def test_importing_the_package_does_nothing() -> None:
    """`standfast/__init__.py` holds re-exports only."""
    assert complaints(check_shop_window, [ROOT / PACKAGE / "__init__.py"]) == ""


FORBIDDEN: list[tuple[Checker, str, str]] = [
    (check_includes, "core/base/fd.h", '#include "core/wait/wait.h"'),
    (check_includes, "core/reduce/loops.cpp", '#include "core/fabric/fabric.h"'),
    (check_includes, "core/wait/wait.cpp", '#include "core/control/loop.h"'),
    (check_includes, "core/wait/wait.cpp", '#include "core/fabric/tcp/wire.h"'),
    (check_includes, "core/fabric/tcp/wire.cpp", '#  include "core/wait/wait.h"'),
    (check_includes, "core/collective/ring.cpp", '#include "core/control/loop.h"'),
    (check_includes, "core/collective/ring.cpp", '#include "core/group.h"'),
    (check_includes, "core/control/loop.cpp", '#include "core/wait/wait.h"'),
    (check_includes, "core/group.cpp", '#include "bind/group.h"'),
    (check_includes, "core/group.cpp", "#include <Python.h>"),
    (check_includes, "core/group.cpp", "#include <nanobind/nanobind.h>"),
    (check_includes, "core/group.cpp", "#include <infiniband/verbs.h>"),
    (check_includes, "core/group.cpp", "#include <standfast/native.h>"),
    (check_includes, "core/group.cpp", '#include "helper.h"'),
    (check_includes, "core/helper.h", ""),
    (check_includes, "core/misc/helper.h", ""),
    (check_includes, "bind/module.cpp", '#include "core/collective/ring.h"'),
    (check_bans, "core/group.cpp", 'auto x = std::getenv("HOME");'),
    (check_bans, "core/group.cpp", "clock_gettime(CLOCK_MONOTONIC, &t);"),
    (check_bans, "core/wait/wait.cpp", "auto t = std::chrono::steady_clock::now();"),
    (check_bans, "core/wait/wait.cpp", "auto t = std::time(nullptr);"),
    (check_bans, "core/group.cpp", "  const int n = poll(fds, 2, 100);"),
    (check_bans, "core/group.cpp", "  ::poll(fds, 2, wait_ms);"),
    (check_bans, "core/group.cpp", "  if (poll(fds, 2, -1) > 0) {"),
    (check_bans, "core/group.cpp", "  select(n, r, w, e, &time);"),
    (check_bans, "core/fabric/tcp/wire.cpp", "epoll_wait(fd, events, 8, -1);"),
    (check_bans, "core/group.cpp", "std::this_thread::sleep_for(delay);"),
    (check_bans, "core/group.h", "  std::condition_variable ready_;"),
    (check_bans, "core/control/machine.cpp", "usleep(10);"),
    (check_bans, "core/group.cpp", "syscall(SYS_futex, word, 0);"),
    (check_environment, f"{PACKAGE}/group.py", "import os\nx = os.environ['A']"),
    (check_environment, f"{PACKAGE}/group.py", "import os\nx = os.getenv('A')"),
    (check_environment, f"{PACKAGE}/joining.py", "import os\nx = f(os.environ['A'])"),
    (check_environment, f"{PACKAGE}/arrays.py", "import os\nx = f(os.environ)"),
    (check_environment, f"{PACKAGE}/group.py", "from os import environ"),
    (check_without_core, f"{PACKAGE}/settings.py", "from standfast import _core"),
    (check_without_core, f"{PACKAGE}/settings.py", "import standfast._core"),
    (check_without_core, f"{PACKAGE}/settings.py", "from standfast._core import Group"),
    (check_shop_window, f"{PACKAGE}/__init__.py", "import os"),
    (check_shop_window, f"{PACKAGE}/__init__.py", "print('hello')"),
    (check_shop_window, f"{PACKAGE}/__init__.py", "def init(): ..."),
    (check_python_arrows, f"{PACKAGE}/errors.py", "from standfast import group"),
    (check_python_arrows, f"{PACKAGE}/exits.py", "from standfast import errors"),
    (check_third_party, f"{PACKAGE}/arrays.py", "import numpy as np"),
]


@pytest.mark.parametrize(("check", "path", "text"), FORBIDDEN)
def test_a_forbidden_thing_is_found(check: Checker, path: str, text: str) -> None:
    """Each check reports a file that breaks its rule, by path and line."""
    found = list(check(path, f"{text}\n"))
    assert len(found) == 1
    assert found[0].startswith(f"{path}:")


ALLOWED: list[tuple[Checker, str, str]] = [
    (check_includes, "core/wait/wait.h", '#include "core/control/abort.h"'),
    (check_includes, "core/group_async.cpp", '#include "core/control/loop.h"'),
    (check_includes, "core/base/fd.cpp", "#include <sys/socket.h>\n#include <vector>"),
    (check_includes, "bind/module.cpp", '#include <nanobind/nanobind.h>\n#include "core/group.h"'),
    (check_bans, "core/group.cpp", '// poll(fds, 1, 9); getenv("A")\nlog("usleep(1)");'),
    (check_bans, "core/group.cpp", "  wire.poll(done); wire->poll(done);"),
    (check_bans, "core/fabric/tcp/wire.h", "  int poll(Completion* done, int most);"),
    (check_bans, "core/fabric/tcp/wire.cpp", "int TcpWire::poll(Completion* done, int most) {"),
    (check_bans, "core/reduce/half.inc", "  return select(mask, a, b);"),
    (check_bans, "core/base/fd.cpp", "  if (poll(&ready, 1, 0) != 1) return;"),
    (check_bans, "core/wait/wait.cpp", "  poll(fds, 2, 100);"),
    (check_bans, "core/base/clock.cpp", "clock_gettime(CLOCK_MONOTONIC, &t);"),
    (check_environment, f"{PACKAGE}/launch/local.py", "import os\nx = os.environ['A']"),
    (check_environment, f"{PACKAGE}/joining.py", "import os\nx = f(1, environ=os.environ)"),
    (check_without_core, f"{PACKAGE}/group.py", "from standfast import _core"),
    (check_third_party, f"{PACKAGE}/arrays.py", "def f():\n    import numpy"),
]


@pytest.mark.parametrize(("check", "path", "text"), ALLOWED)
def test_an_allowed_thing_is_not_found(check: Checker, path: str, text: str) -> None:
    """The checks raise no false alarm."""
    assert not list(check(path, f"{text}\n"))
