"""The final report as one JSON object, for --json. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from standfast import exits
from standfast.launch.block import headline
from standfast.launch.verdicts import GenerationRecord, RankVerdict, Verdict


def summary(
    job_id: str,
    status: int,
    began_ns: int,
    chapters: Sequence[tuple[GenerationRecord, Verdict]],
    restarts: int,
) -> str:
    """Return the report of a whole job, without newlines. `restarts`: how many were used."""
    record, verdict = chapters[-1]
    report = {
        "job_id": job_id,
        "status": status,
        "meaning": exits.meaning(status),
        "reason": "finished" if verdict.reason is None else verdict.reason.value,
        "headline": None if verdict.reason is None else headline(verdict),
        "seconds": round((record.over_ns - began_ns) / 1e9, 3),
        "restarts": restarts,
        "generations": [_generation(*chapter) for chapter in chapters],
    }
    return json.dumps(report)


def error_summary(error: Exception, status: int) -> str:
    """Return the report of a job that could not be started."""
    return json.dumps({"status": status, "error": {"type": "LaunchError", "message": str(error)}})


def _generation(record: GenerationRecord, verdict: Verdict) -> dict[str, Any]:
    return {
        "generation": record.generation,
        "reason": "finished" if verdict.reason is None else verdict.reason.value,
        "first": verdict.first,
        "seconds": round((record.over_ns - record.began_ns) / 1e9, 3),
        "leftovers": list(record.leftovers),
        "ranks": [_rank(each) for each in verdict.ranks],
    }


def _rank(each: RankVerdict) -> dict[str, Any]:
    end = each.end
    return {
        "rank": end.rank,
        "host": end.host or None,
        "pid": end.pid,
        "lost": end.lost or None,
        "hung": end.hung,
        "tag": each.tag.value,
        "exit_code": end.status if end.status >= 0 else None,
        "signal": exits.signal_name(-end.status) if end.status < 0 else None,
        "stopped_by": None if end.told_signal is None else exits.signal_name(end.told_signal),
        "seconds": round((end.ended_ns - end.started_ns) / 1e9, 3),
        "accused_of": each.accused,
        "error": None if each.report is None else dict(each.report.fields),
        "error_after_ms": each.error_ms,
        "exit_after_ms": each.exit_ms,
        "last_lines": list(end.last_lines),
    }
