"""A pytest plugin for tests that run on several ranks: one that fails on a rank ends the run.

    standfast run -n 4 -- python -m pytest -p standfast.testing.pytest_plugin tests/

pytest catches what a test raises, so the peers would hear nothing of it and wait in their next
operation. With this plugin the failing rank prints its traceback at once and then tells its peers.
Theirs end with RemoteFailure, of which they print one line; and no rank begins another test, since
the group is over. Runs in pytest's main thread, on every rank.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator

import pytest

import standfast
from standfast import hooks
from standfast.errors import PeerError, StandfastError
from standfast.membership import Membership


@pytest.fixture(scope="session")
def standfast_group() -> Iterator[standfast.Group]:
    """The group of all ranks, formed by the first test that asks for it, for the whole session.

    Raises:
        ConfigError: nothing says which rank this is: the session was not started by a launcher.
        RendezvousError: the ranks did not all ask for it before the deadline.
    """
    with standfast.init() as group:
        yield group


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tell the peers of a test that has failed here, after its traceback was printed."""
    error = call.excinfo.value if call.excinfo is not None else None
    if isinstance(error, PeerError):
        _say_in_one_line(item, error)
    report = yield
    if error is None or not report.failed:
        return report
    groups = [group for group in hooks.open_groups() if isinstance(group, Membership)]
    if not groups:
        return report
    if not isinstance(error, StandfastError):
        _print(item, report, groups[-1])
        for group in groups:
            group.report_failure(error)
    item.session.shouldfail = f"the group of {groups[-1].size} ranks is over"
    return report


def _say_in_one_line(item: pytest.Item, error: PeerError) -> None:
    """Spare pytest the traceback, which is that of a rank to which nothing has happened."""
    line = f"{item.nodeid}: {type(error).__name__}: {error}"
    # pytest asks the first one for the test itself, the second for its fixtures.
    for name in ("repr_failure", "_repr_failure_py"):
        setattr(item, name, lambda *_, **__: line)


def _print(item: pytest.Item, report: pytest.TestReport, group: Membership) -> None:
    """Show the traceback now: the summary at the end may come after that of the peers."""
    terminal = item.config.pluginmanager.get_plugin("terminalreporter")
    if terminal is None:
        return
    terminal.ensure_newline()
    terminal.section(f"rank {group.rank} failed in {report.nodeid} ({report.when})", sep="=")
    report.toterminal(terminal._tw)
    terminal.flush()
    sys.stdout.flush()
