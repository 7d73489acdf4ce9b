"""Runs the code blocks of a page, in order, in a folder of its own.

    PYTHONPATH=src .venv/bin/python -m tests.docs.pages docs/tutorial/first-group.md

prints what each command really prints, and where that is not what the page says.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.docs.blocks import Block, Step, blocks_of, steps_of
from tests.docs.compare import difference

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 90.0
HOST = "host-a"
"""What pages call the machine on which they were run."""
# What a launcher around the tests would have said of them.
FOREIGN = re.compile(
    r"^(STANDFAST|MLX|JACCL|OMPI|PMI|PMIX|SLURM|TORCHELASTIC|RAY)_"
    r"|^(RANK|WORLD_SIZE|MASTER_\w+|PYTHONUNBUFFERED)$"
)
HERE = re.compile(r"\b127\.0\.0\.1:(\d+)")
MARK = "--- step "
TARGETS = """
import re, sys
text = open(sys.argv[1], encoding="utf-8").read()
missing = [t for t in sys.argv[2:] if "=" not in t and not re.search(rf"^{t}:", text, re.M)]
sys.exit(f"make: no target {missing}" if missing else 0)
"""


@dataclass(frozen=True)
class Outcome:
    """What came of a block. problem: "" if it did what the page says."""

    block: Block
    printed: str
    problem: str


class Folder:
    """A folder with what a reader would have at hand: commands, examples, and a page's files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        commands = path / ".bin"
        commands.mkdir()
        for name, words in {
            "python": [sys.executable],
            "standfast": [sys.executable, "-m", "standfast"],
            # Targets build and install for minutes, and CI runs them: here they must only be there.
            "make": [sys.executable, "-c", TARGETS, str(ROOT / "Makefile")],
        }.items():
            script = commands / name
            script.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
            script.chmod(0o755)
        for name in ("examples", "bench", "docs", "tests"):
            (path / name).symlink_to(ROOT / name)
        self.environ = {
            **{name: value for name, value in os.environ.items() if not FOREIGN.match(name)},
            "PATH": f"{commands}:{os.environ.get('PATH', os.defpath)}",
            "HOME": str(path),
            "NO_COLOR": "1",
            "COLUMNS": "100",
            "RAY_TMPDIR": str(path),
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        paths = self.environ.get("PYTHONPATH", "").split(os.pathsep)
        if paths != [""]:
            self.environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, paths))

    def run(self, script: str) -> tuple[str, int | None]:
        """Run a script of the shell; return what it prints, and its status, None if too late."""
        process = subprocess.Popen(
            ["bash", "-c", script],
            cwd=self.path,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        status: int | None = None
        try:
            printed, _ = process.communicate(timeout=LIMIT_S)
            status = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            printed, _ = process.communicate()
        text = printed.decode("utf-8", "replace")
        return re.sub(rf"\b{re.escape(socket.gethostname())}\b", HOST, text), status


def page_blocks(path: Path) -> list[Block]:
    """Return the blocks of a page."""
    return blocks_of(path.read_text(encoding="utf-8"), has_drawings=path.parent.name == "design")


def run_page(blocks: list[Block]) -> list[Outcome]:
    """Run a page's blocks; those after one that failed as well."""
    with tempfile.TemporaryDirectory(prefix="standfast-docs-") as path:
        folder = Folder(Path(path))
        return [run_block(folder, block) for block in blocks]


def run_block(folder: Folder, block: Block) -> Outcome:
    """Do with a block what it is there for."""
    if block.reason is not None:
        return Outcome(block, "", "")
    if block.language == "console":
        return _run_console(folder, block)
    if block.language == "python":
        return _run_python(folder, block)
    try:
        if block.language == "json":
            json.loads(block.text)
        elif block.language == "yaml":
            import yaml

            list(yaml.safe_load_all(block.text))
    except ValueError as error:
        return Outcome(block, "", f"this is no {block.language}: {error}")
    return Outcome(block, "", "")


def _run_python(folder: Folder, block: Block) -> Outcome:
    if block.file is not None:
        path = folder.path / block.file
        if not path.resolve().is_relative_to(folder.path):
            return Outcome(block, "", f"{block.file} is a file of the repository")
        path.write_text(f"{block.text}\n", encoding="utf-8")
        compile(block.text, block.file, "exec")
        return Outcome(block, "", "")
    script = folder.path / f"block_{block.line}.py"
    script.write_text(f"{block.preamble}\n{block.text}\n", encoding="utf-8")
    launcher = f"standfast run -n {block.ranks} -- " if block.ranks else ""
    printed, status = folder.run(f"{launcher}python {script.name}")
    return Outcome(block, printed, "" if status == 0 else f"it ended with {status}")


def _run_console(folder: Folder, block: Block) -> Outcome:
    steps = steps_of(block)
    printed, status = folder.run(with_free_ports(_script_of(steps)))
    parts = re.split(rf"^{MARK}\d+\n", printed, flags=re.MULTILINE)[1:]
    problems = []
    if status is None:
        problems.append(f"it was not over within {LIMIT_S:g} s")
    for number, step in enumerate(steps):
        said = parts[number].split("\n")[:-1] if number < len(parts) else []
        problem = difference(step.output, said)
        if problem:
            problems.append(f"line {step.line}: {step.command}\n{problem}")
    return Outcome(block, printed, "\n".join(problems))


def with_free_ports(script: str) -> str:
    """Return it with ports that are free in place of those that a page names for this machine."""
    with contextlib.ExitStack() as stack:
        ports = {}
        for named in dict.fromkeys(HERE.findall(script)):
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            ports[named] = str(listener.getsockname()[1])
    return HERE.sub(lambda found: f"127.0.0.1:{ports[found[1]]}", script)


def _script_of(steps: list[Step]) -> str:
    """Return one script for all steps, in which each finds the status of the one before in $?."""
    lines = ["status=0"]
    for number, step in enumerate(steps):
        lines += [f"echo '{MARK}{number}'", '(exit "$status")', step.command, "status=$?"]
    return "\n".join(lines)


def main() -> int:
    """Run the pages that are named, and print what came of it."""
    status = 0
    for name in sys.argv[1:]:
        for outcome in run_page(page_blocks(Path(name))):
            print(f"=== {name}:{outcome.block.line} {outcome.block.language}", flush=True)
            print(outcome.printed, end="")
            if outcome.problem:
                status = 1
                print(f"!!! {outcome.problem}")
    return status


if __name__ == "__main__":
    sys.exit(main())
