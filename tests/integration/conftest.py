"""Takes a failure that a lost error of gloo has caused for an expected one, once, and gives jobs
more time that wait for other clocks than ours or import much."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.lost_errors import SEVERAL, SIGN

if TYPE_CHECKING:
    from collections.abc import Generator

_REASON = "gloo kept the death of a peer to itself (see tests/integration/lost_errors.py)"
_EXCUSED = pytest.StashKey[str]()
# Slurm has clocks of its own; trainers are imported for ten seconds by each process of a job.
_LONG = ("accelerate", "lightning", "slurm", "torchtitan", "trainers", "transformers")
_LONG_S = 300


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives the tests of some folders more time."""
    for item in items:
        if item.path.parent.name in _LONG and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_LONG_S))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Takes the first such failure for an expected one."""
    report = yield
    # There it is the subject.
    subject = item.path.name == "test_stuck.py"
    said = report.longreprtext if report.failed and report.when == "call" else ""
    if not subject and SIGN in said and SEVERAL not in said:
        if item.config.stash.setdefault(_EXCUSED, item.nodeid) == item.nodeid:
            report.outcome, report.wasxfail = "skipped", _REASON
    return report
