"""What tests that kill workers of a job in place cannot help: a lost error of gloo.

Where a killed peer resets the connection just while gloo sends on it, gloo forgets to tell the
thread that waits for the sending, about twice in a thousand deaths (``signalException`` of its TCP
pair passes over unbound buffers that are being sent). Nothing can release that worker; its agent
replaces it after some seconds, and says so. A test that counts on the memory of this worker then
fails. Once in each process of a test run that is an expected failure; more often it is a defect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

# The words of the agent (``hang_detection``).
_SIGN = "it waits for ranks that are gone"
_REASON = "gloo kept the death of a peer to itself (see tests/integration/conftest.py)"
_EXCUSED = pytest.StashKey[str]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Takes the first such failure for an expected one."""
    report = yield
    # There it is the subject.
    subject = item.path.name == "test_stuck.py"
    if report.failed and report.when == "call" and not subject and _SIGN in report.longreprtext:
        if item.config.stash.setdefault(_EXCUSED, item.nodeid) == item.nodeid:
            report.outcome, report.wasxfail = "skipped", _REASON
    return report
