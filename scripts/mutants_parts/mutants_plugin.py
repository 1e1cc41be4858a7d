"""A plugin of pytest: runs chosen tests, and notes how long each took and which lines it reached.

It imports nothing from here, as it runs in copies of the project.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--notes`` and ``--chosen``: files to write and to read."""
    parser.addoption("--notes", help="write how long each test took, and which failed")
    parser.addoption("--chosen", help="run only the tests that this file lists, in its order")


def pytest_configure(config: pytest.Config) -> None:
    """Takes notes, if asked."""
    if config.option.notes:
        config.pluginmanager.register(_Notes(Path(config.option.notes)))


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
    """Chooses the tests, after all others have ordered them."""
    yield
    if config.option.chosen:
        chosen = json.loads(Path(config.option.chosen).read_text())
        order = {test: n for n, test in enumerate(chosen)}
        items[:] = [item for item in items if item.nodeid in order]
        items.sort(key=lambda item: order[item.nodeid])


class _Notes:
    """Tells coverage which test runs, and notes how long it took and whether it failed."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._failed: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        import coverage

        if measured := coverage.Coverage.current():
            measured.switch_context(item.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._failed.append(report.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        if report.failed:
            self._failed.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._file.write_text(json.dumps({"seconds": self._seconds, "failed": self._failed}))
