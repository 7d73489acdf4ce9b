"""Every exit status that standfast gives a process, with one sentence each. Imports no layer."""

from __future__ import annotations

import signal

OK = 0
FAILURE = 1
USAGE = 2
UNAVAILABLE = 69
SOFTWARE = 70
RETRY = 75
MISMATCH = 76
CONFIG = 78
TIMEOUT = 124  # as timeout(1)
NOT_EXECUTABLE = 126  # as a shell
NOT_FOUND = 127
SIGNAL_BASE = 128

MEANING = {
    OK: "everything ended well",
    FAILURE: "the program itself failed; its own status is passed through where it has one",
    USAGE: "the command line was wrong",
    UNAVAILABLE: "the group could not be formed before the deadline, or RDMA is not available",
    SOFTWARE: "a bug in standfast; please report it",
    RETRY: "a peer was lost, left, failed or stalled; forming the group again is sensible",
    MISMATCH: "ranks disagree about an operation; trying again will not help",
    CONFIG: "arguments, environment or host file are wrong",
    TIMEOUT: "the job's time limit (--timeout-s) ended it, or the program's own exit status",
    NOT_EXECUTABLE: "the program could not be executed, or the program's own exit status",
    NOT_FOUND: "the program was not found, or the program's own exit status",
}

REMEDY = {
    FAILURE: "read the program's own output above the report; the report names the first rank",
    USAGE: "see the command's --help",
    UNAVAILABLE: "the message names the rank or host that did not come, and why; start it again"
    " when that one can be reached",
    SOFTWARE: "report the message and its traceback",
    RETRY: "start the job again, or let --restarts do so; a rank that is lost again and again has a"
    " reason of its own in its output",
    MISMATCH: "make all ranks call the same operations with the same sizes; the error lists who"
    " called what",
    CONFIG: "set right what the message names: it has the argument or variable, and its value",
    TIMEOUT: "give the job more time with --timeout-s, or find out what it was waiting for",
    NOT_EXECUTABLE: "chmod +x, or start it by its interpreter: -- python train.py",
    NOT_FOUND: "check the name and PATH, on every host of the job",
    SIGNAL_BASE + signal.SIGINT: "nothing: somebody pressed Ctrl-C",
    SIGNAL_BASE + signal.SIGKILL: "look for the kernel's out-of-memory killer (dmesg), or for who"
    " sent the signal",
    SIGNAL_BASE + signal.SIGSEGV: "a crash in native code: run with PYTHONFAULTHANDLER=1 to see"
    " where",
    SIGNAL_BASE + signal.SIGPIPE: "the reader of the job's output went away, or its disk is full",
}


def signal_name(number: int) -> str:
    """Return "SIGKILL" for 9; "signal 99" where there is no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def meaning(code: int) -> str:
    """Return the sentence for an exit status; statuses above 128 are signals."""
    if code in MEANING:
        return MEANING[code]
    if SIGNAL_BASE < code < SIGNAL_BASE + 65:
        number = code - SIGNAL_BASE
        return f"ended by signal {number} ({signal_name(number)})"
    return "the program's own exit status"


def remedy(code: int) -> str:
    """Return what to do about an exit status; empty if that is the program's matter."""
    return REMEDY.get(code, "")
