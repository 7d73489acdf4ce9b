"""Every exit status that standfast gives a process, with one sentence each. Imports nothing."""

from __future__ import annotations

OK = 0
FAILURE = 1
USAGE = 2
UNAVAILABLE = 69
SOFTWARE = 70
RETRY = 75
MISMATCH = 76
CONFIG = 78
SIGNAL_BASE = 128

MEANING = {
    OK: "everything ended well",
    FAILURE: "the program itself failed; its own status is passed through where it has one",
    USAGE: "the command line was wrong",
    UNAVAILABLE: "the group could not be formed before the deadline",
    SOFTWARE: "a bug in standfast; please report it",
    RETRY: "a peer was lost, left, failed or stalled; forming the group again is sensible",
    MISMATCH: "ranks disagree about an operation; trying again will not help",
    CONFIG: "arguments, environment or host file are wrong",
}


def meaning(code: int) -> str:
    """Return the sentence for an exit status; statuses above 128 are signals."""
    if code in MEANING:
        return MEANING[code]
    if SIGNAL_BASE < code < SIGNAL_BASE + 65:
        return f"ended by signal {code - SIGNAL_BASE}"
    return "the program's own exit status"
