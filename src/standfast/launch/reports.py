"""Reads what ranks wrote when they raised a standfast error; what makes no sense is ignored.

Only imported once something failed, so that msgspec costs a healthy start nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import msgspec

from standfast.launch.verdicts import Report

REPORT_BYTES_MAX = 1 << 20


class ReportFile(msgspec.Struct, frozen=True):
    """The file; `error` is what StandfastError.to_dict() gave."""

    error: dict[str, Any]
    raised_ns: int


class ErrorFields(msgspec.Struct, frozen=True):
    """Those fields of an error that decide something here."""

    kind: str
    type: str
    message: str
    rank: int | None = None
    missing: tuple[int, ...] = ()
    detected_ns: int | None = None


def read_reports(directory: str, *, generation: int, ranks: int) -> dict[int, Report]:
    """Return the reports of one generation by rank."""
    reports: dict[int, Report] = {}
    for rank in range(ranks):
        path = os.path.join(directory, f"rank-{rank}-gen{generation}.json")
        with contextlib.suppress(OSError, msgspec.MsgspecError), open(path, "rb") as file:
            reports[rank] = parse_report(file.read(REPORT_BYTES_MAX))
    return reports


def reports_of(files: Mapping[int, tuple[bytes, int]]) -> dict[int, Report]:
    """Return the reports by rank; each is a file's bytes, and how far its clock is ahead."""
    reports: dict[int, Report] = {}
    for rank, (data, ahead_ns) in files.items():
        with contextlib.suppress(msgspec.MsgspecError):
            report = parse_report(data)
            seen_ns = None if report.detected_ns is None else report.detected_ns - ahead_ns
            reports[rank] = dataclasses.replace(
                report, raised_ns=report.raised_ns - ahead_ns, detected_ns=seen_ns
            )
    return reports


def parse_report(data: bytes) -> Report:
    """Return a report; MsgspecError where the text is not one."""
    whole = msgspec.json.decode(data, type=ReportFile)
    error = msgspec.convert(whole.error, ErrorFields)
    named = (*(() if error.rank is None else (error.rank,)), *error.missing)
    detected_ns = error.detected_ns
    return Report(
        kind=error.kind,
        type=error.type,
        message=error.message,
        raised_ns=whole.raised_ns,
        names=tuple(dict.fromkeys(named)),
        detected_ns=None if detected_ns is None else min(detected_ns, whole.raised_ns),
        fields=whole.error,
    )
