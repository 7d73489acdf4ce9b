"""Draw the path of a death from a real run: four ranks on this machine, one of them killed.

    python docs/picture/path_of_a_death.py docs/picture/path-of-a-death.svg

It starts `standfast run -n 4` with itself as the program, kills rank 2 from outside while the
others wait for it in an all_sum, and reads all times from one clock, CLOCK_MONOTONIC: the kill's
from here, those of the ranks from what they print, those of the launcher from its events. Needs a
machine with little else to do. Nothing is drawn that was not measured.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

RANKS, KILLED = 4, 2
LIMIT_S = 60.0
MARK = "TOLD "

LEFT, RIGHT, TOP, LANE, WIDTH = 150, 50, 114, 62, 960
AXIS = LEFT + 70
FIRST_MS = 0.1
"""The axis is logarithmic, and begins here, at AXIS; the kill itself stands left of it, at LEFT."""
COLOURS = {
    "kill": "#c0392b",
    "knows": "#2471a3",
    "raises": "#b9770e",
    "ends": "#566573",
    "says": "#1e8449",
}
WORDS = {
    "kill": "SIGKILL",
    "knows": "its watch has the verdict",
    "raises": "the error is raised into the program",
    "ends": "the process has ended, status 75",
    "says": "the launcher says so (events)",
}


@dataclass(frozen=True)
class Mark:
    """Something that happened. lane: a rank, or RANKS for the launcher; at_ms: after the kill."""

    lane: int
    at_ms: float
    kind: str
    text: str = ""


def tell(**said: Any) -> None:
    """Print a line that the script reads."""
    print(MARK + json.dumps(said), flush=True)


def be_a_rank() -> None:
    """Sum until a peer is lost; say when this rank knew of it, and when its program did."""
    import numpy as np

    import standfast

    x = np.ones(1 << 18, np.float32)
    with standfast.init() as group:
        group.all_sum(x)
        tell(rank=group.rank, pid=os.getpid(), ready=True)
        try:
            if group.rank == KILLED:
                signal.pause()
            group.all_sum(x)
        except standfast.PeerDied as error:
            raised_ns = time.monotonic_ns()
            tell(
                rank=group.rank,
                knew_ns=error.detected_ns,
                raised_ns=raised_ns,
                lost=error.rank,
                cause=error.cause,
            )
            raise SystemExit(75) from error


def run() -> tuple[list[Mark], str]:
    """Run the job; return what happened, and the cause that all survivors named."""
    with tempfile.TemporaryDirectory() as folder:
        events = Path(folder) / "events.jsonl"
        launcher = subprocess.Popen(
            [
                *(sys.executable, "-m", "standfast", "run", "-n", str(RANKS), "--json"),
                *("--events", str(events), "--", sys.executable, __file__, "--rank"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        said: list[dict[str, Any]] = []
        assert launcher.stderr is not None
        killed_ns = killed_at = 0.0
        pids: dict[int, int] = {}
        lines = []
        for line in launcher.stderr:
            lines.append(line)
            if MARK not in line:
                continue
            said.append(json.loads(line.partition(MARK)[2]))
            pids = {each["rank"]: each["pid"] for each in said if "ready" in each}
            if len(pids) == RANKS and not killed_ns:
                time.sleep(1)  # all others are asleep in their sum
                killed_at, killed_ns = time.time(), time.monotonic_ns()
                os.kill(pids[KILLED], signal.SIGKILL)
        printed, _ = launcher.communicate(timeout=LIMIT_S)
        if not killed_ns:
            sys.exit(f"the job did not come to its sum:\n{''.join(lines)}")
        report = json.loads(printed)
        told = [json.loads(line) for line in events.read_text(encoding="utf-8").splitlines()]
    return _marks(said, report, told, killed_ns, killed_at)


def _marks(
    said: list[dict[str, Any]],
    report: dict[str, Any],
    told: list[dict[str, Any]],
    killed_ns: float,
    killed_at: float,
) -> tuple[list[Mark], str]:
    marks = [Mark(KILLED, 0, "kill")]
    errors = [each for each in said if "lost" in each]
    assert {each["lost"] for each in errors} == {KILLED}, errors
    assert len(errors) == RANKS - 1, errors
    for each in errors:
        ended = next(
            end for end in report["generations"][-1]["ranks"] if end["rank"] == each["rank"]
        )
        assert ended["exit_code"] == 75, ended
        raised_ms = (each["raised_ns"] - killed_ns) / 1e6
        # Both of the launcher's times count from when anybody noticed, so their difference is used.
        ended_ms = raised_ms + ended["exit_after_ms"] - ended["error_after_ms"]
        marks.append(Mark(each["rank"], (each["knew_ns"] - killed_ns) / 1e6, "knows"))
        marks.append(Mark(each["rank"], raised_ms, "raises"))
        marks.append(Mark(each["rank"], ended_ms, "ends"))
    for each in told:
        if each["event"] in ("peer_lost", "group_failed", "finished"):
            at_ms = (each["time"] - killed_at) * 1e3
            marks.append(Mark(RANKS, at_ms, "says", each["event"]))
    return marks, errors[0]["cause"]


def place(at_ms: float, last_ms: float) -> float:
    """Return where on the axis a time stands."""
    share = math.log(max(at_ms, FIRST_MS) / FIRST_MS) / math.log(last_ms / FIRST_MS)
    return AXIS + share * (WIDTH - AXIS - RIGHT)


def shown(at_ms: float) -> str:
    """Return a time as the picture writes it."""
    return f"{at_ms:.1f}" if at_ms < 10 else f"{at_ms:.0f}"


def drawing(marks: list[Mark], cause: str) -> str:
    """Return the picture, an SVG."""
    last_ms = 10 ** math.ceil(math.log10(max(mark.at_ms for mark in marks)))
    bottom = TOP + (RANKS + 1) * LANE
    height = bottom + 92
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="20" y="28" font-size="17" fill="#1b2631">Rank {KILLED} of {RANKS} is killed: '
        "what the others know, and when</text>",
        '<text x="20" y="50" fill="#566573">A real run on one Linux machine. Milliseconds after '
        "the kill, on a logarithmic axis.</text>",
        f'<text x="20" y="68" fill="#566573">All survivors name the same rank: it died, '
        f"{escape(cause)}</text>",
    ]
    out.append(_tick(LEFT, "the kill", bottom))
    step = FIRST_MS
    while step <= last_ms * 1.01:
        out.append(_tick(place(step, last_ms), f"{step:g} ms", bottom))
        step *= 10
    for lane in range(RANKS + 1):
        out += _lane(lane, [mark for mark in marks if mark.lane == lane], last_ms)
    out += _legend(bottom + 28)
    return "\n".join([*out, "</svg>", ""])


def _tick(x: float, label: str, bottom: float) -> str:
    return (
        f'<line x1="{x:.1f}" y1="{TOP - 16}" x2="{x:.1f}" y2="{bottom}" stroke="#e5e8e8"/>\n'
        f'<text x="{x:.1f}" y="{TOP - 22}" text-anchor="middle" fill="#839192">{label}</text>'
    )


def _lane(lane: int, marks: list[Mark], last_ms: float) -> list[str]:
    y = TOP + lane * LANE + 18
    name = "launcher" if lane == RANKS else f"rank {lane}"
    ends = [mark.at_ms for mark in marks if mark.kind in ("ends", "kill")]
    until = place(max(ends), last_ms) if ends else WIDTH - RIGHT
    if lane == KILLED:
        until = LEFT
    out = [
        f'<text x="20" y="{y + 4}" fill="#1b2631">{name}</text>',
        f'<line x1="{LEFT - 55}" y1="{y}" x2="{until:.1f}" y2="{y}" stroke="#aeb6bf" '
        'stroke-width="4" stroke-linecap="round"/>',
    ]
    right = -1e9
    below = False
    for mark in sorted(marks, key=lambda each: each.at_ms):
        x = LEFT if mark.kind == "kill" else place(mark.at_ms, last_ms)
        label = "SIGKILL" if mark.kind == "kill" else f"{mark.text} {shown(mark.at_ms)}".strip()
        below = not below if x - right < 7 * len(label) else False
        right = x + 3.5 * len(label)
        colour = COLOURS[mark.kind]
        out.append(f'<circle cx="{x:.1f}" cy="{y}" r="6" fill="{colour}"/>')
        out.append(
            f'<text x="{x:.1f}" y="{y + (22 if below else -11)}" text-anchor="middle" '
            f'font-size="12" fill="{colour}">{escape(label)}</text>'
        )
    return out


def _legend(y: float) -> list[str]:
    out, x = [], 20.0
    for kind, words in WORDS.items():
        if x + 7 * len(words) > WIDTH - 20:
            x, y = 20.0, y + 24
        out.append(f'<circle cx="{x + 6}" cy="{y - 4}" r="6" fill="{COLOURS[kind]}"/>')
        out.append(f'<text x="{x + 18}" y="{y}" fill="#1b2631">{words}</text>')
        x += 7 * len(words) + 44
    return out


def main() -> None:
    """Be a rank, or run the job and write the picture."""
    parser = argparse.ArgumentParser(description="Draw the path of a death from a real run.")
    parser.add_argument("svg", nargs="?", type=Path, help="the file to write")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        be_a_rank()
        return
    marks, cause = run()
    for mark in sorted(marks, key=lambda each: each.at_ms):
        who = "launcher" if mark.lane == RANKS else f"rank {mark.lane}"
        print(f"{mark.at_ms:9.2f} ms  {who:9} {mark.text or WORDS[mark.kind]}")
    if options.svg is not None:
        options.svg.write_text(drawing(marks, cause), encoding="utf-8")


if __name__ == "__main__":
    main()
