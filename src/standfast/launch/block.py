"""The block at the end of a failed generation, as lines of text. Pure."""

from __future__ import annotations

from standfast import exits
from standfast.launch.lines import printable
from standfast.launch.records import StopReason
from standfast.launch.verdicts import GenerationRecord, RankVerdict, Tag, Verdict

INDENT = " " * 19
RANKS_MAX = 64
WHY_STOPPED = {
    StopReason.INTERRUPT: "interrupted by SIGINT",
    StopReason.TERMINATE: "ended by SIGTERM to the launcher",
    StopReason.HANGUP: "ended by SIGHUP to the launcher",
    StopReason.TIMEOUT: "stopped at the job's time limit",
    StopReason.OUTPUT: "stopped because its output can't be written",
}
HOW_ACCUSED = {
    "left": "left with exit 0 while others still needed it",
    "died": "was lost by its peers",
    "stalled": "stalled: it was alive, but did not go on",
    "unreachable": "could not be reached by its peers",
    "rendezvous": "did not come to the rendezvous",
}


def block(record: GenerationRecord, verdict: Verdict) -> list[str]:
    """Return the report on a generation that did not end well."""
    lines = [f"standfast: {headline(verdict)} ({_when(record, verdict)})"]
    order = (Tag.CAUSE, Tag.VICTIM, Tag.STOPPED, Tag.FINISHED)
    ranks = [each for tag in order for each in _sorted(verdict, tag)]
    for each in ranks[:RANKS_MAX]:
        lines += _rank_lines(each, verdict)
    if len(ranks) > RANKS_MAX:
        lines.append(f"  and {len(ranks) - RANKS_MAX} ranks more; --json tells of all")
    lines += [
        f"  process group {group} could not be killed: nothing is started there any more"
        for group in record.leftovers
    ]
    return lines


def headline(verdict: Verdict) -> str:
    """Return who failed first and how, in one clause."""
    if verdict.stop is not None:
        detail = f": {verdict.stop.detail}" if verdict.stop.detail else ""
        return f"the job was {WHY_STOPPED[verdict.stop.reason]}{detail}"
    cause = verdict.cause
    if cause is None:
        return "the group failed, but no rank by itself: each error names another rank, or none"
    return f"the group failed: rank {cause.rank}{_where(cause)} {_how(cause)}"


def _where(each: RankVerdict) -> str:
    """Return " on host-b"; nothing on the launcher's own machine, and where _how() says it."""
    return f" on {each.end.host}" if each.end.host and not each.end.lost else ""


def ending(status: int, verdict: Verdict, *, used_up: bool) -> str:
    """Return the last line."""
    words = (
        "the restarts are used up" if used_up and status == exits.RETRY else exits.meaning(status)
    )
    return f"standfast: exit status {status} ({words})"


def _when(record: GenerationRecord, verdict: Verdict) -> str:
    at_ns = record.over_ns if verdict.first_ns is None else verdict.first_ns
    return (
        f"generation {record.generation}, {(at_ns - record.began_ns) / 1e9:.2f} s after its start"
    )


def _sorted(verdict: Verdict, tag: Tag) -> list[RankVerdict]:
    return sorted(verdict.tagged(tag), key=lambda each: each.rank != verdict.first)


def _rank_lines(each: RankVerdict, verdict: Verdict) -> list[str]:
    text = _cause_text(each, verdict) if each.tag is Tag.CAUSE else _follower_text(each)
    lines = [f"  rank {each.rank:<2} {each.tag.value:<8}  {text}{_where(each)}"]
    if each.report is not None and not _is_the_stops(each, verdict):
        message = [printable(line) for line in each.report.message.split("\n")]
        lines.append(f"{INDENT}{each.report.type}: {message[0]}")
        lines += [f"{INDENT}{line}" for line in message[1:]]
    elif each.tag is Tag.CAUSE and each.end.last_lines:
        lines.append(f"{INDENT}its last lines of stderr:")
        lines += [f"{INDENT}| {line}" for line in each.end.last_lines]
    return lines


def _is_the_stops(each: RankVerdict, verdict: Verdict) -> bool:
    """Tell whether a rank only saw others go that were stopped a moment before it."""
    stopped = verdict.first is None and each.tag is Tag.STOPPED
    return stopped and each.report is not None and each.report.type == "PeerLeft"


def _how(cause: RankVerdict) -> str:
    end = cause.end
    if end.status == 0 or (end.stopped and cause.accused not in ("died", "failed")):
        kind = cause.accused or ""
        return HOW_ACCUSED.get(kind, f"is named by its peers' errors ({kind})")
    return f"was {end.words()}" if end.status < 0 else f"failed with {end.words()}"


def _cause_text(each: RankVerdict, verdict: Verdict) -> str:
    text = _how(each)
    if each.end.stopped:
        text += f"; {_stopped_text(each)}"
    if each.rank != verdict.first:
        text += f", {_after(each.exit_ms)}; nothing says that it was a consequence"
    return text


def _follower_text(each: RankVerdict) -> str:
    if each.tag is Tag.FINISHED:
        return f"exit 0 {_after(each.exit_ms)}"
    error = "no error" if each.report is None else f"error {_after(each.error_ms)}"
    if each.tag is Tag.STOPPED:
        return f"{error}, {_stopped_text(each)}, {each.end.words()} {_after(each.exit_ms)}"
    if each.report is None and each.end.status == exits.RETRY:
        error = "no error told"
    return f"{error}, {each.end.words()} {_after(each.exit_ms)}"


def _stopped_text(each: RankVerdict) -> str:
    return f"{exits.signal_name(each.end.told_signal or 0)} from the launcher"


def _after(milliseconds: float | None) -> str:
    return "before that" if milliseconds is None else f"after {milliseconds:.1f} ms"
