"""How a job on Ray fails in the eyes of who called run()."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from standfast import exits
from standfast.errors import StandfastError


class RayJobFailed(StandfastError):
    """A job on Ray did not end well; the message names the first cause.

    Fields besides those of StandfastError (rank, host: the first cause's; cause: how it ended):
        status: the exit status that `standfast run` gives the job.
        report: the whole report, as `standfast run --json` prints it.
    """

    kind = "ray_job"

    @classmethod
    def extra_fields(cls) -> Sequence[str]:
        """Names of the fields that this class adds."""
        return ("status", "report")


def failure_of(status: int, report: Mapping[str, Any]) -> RayJobFailed:
    """Return the error for a launcher's report. Pure."""
    if "generations" not in report:
        text = str(report.get("error", {}).get("message", "")) or exits.meaning(status)
        return RayJobFailed(text, cause=text, status=status, report=dict(report))
    last = report["generations"][-1]
    first: Mapping[str, Any] = next(
        (each for each in last["ranks"] if each["rank"] == last["first"]), {}
    )
    error = first.get("error") or {}
    why = _why(first, error)
    message = f"{report['headline']} (generation {last['generation']}){why}"
    return RayJobFailed(
        message,
        hint=error.get("hint") or exits.remedy(status) or None,
        rank=last["first"],
        host=first.get("host"),
        cause=report["headline"],
        generation=last["generation"],
        status=status,
        report=dict(report),
    )


def _why(first: Mapping[str, Any], error: Mapping[str, Any]) -> str:
    """Return what the first cause itself said."""
    if error:
        return f": {error['type']}: {error['message']}"
    lines = first.get("last_lines") or []
    return f": {lines[-1]}" if lines else ""
