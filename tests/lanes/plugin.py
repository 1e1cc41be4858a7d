"""Which tests run, in which order and in how many processes: a plugin of pytest.

A run of all tests without ``--all`` is the quick lane: the unit tests and models that are not
marked as slow, and the golden jobs. ``--also FILE`` adds the pieces that a file names, a line each.
What is named on the command line runs in any case.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests import zygote
from tests.lanes import changes, flaky, passed, seconds
from tests.lanes.pieces import ORDER, TOGETHER, Pieces, top_folder

if TYPE_CHECKING:
    from collections.abc import Container, Generator

    from xdist.scheduler import LoadScopeScheduling
    from xdist.workermanage import WorkerController

TESTS = Path(__file__).parents[1]
# Folders of which the quick lane runs all that is not marked as slow; of others, golden jobs.
QUICK = ("model", "unit")
# Tests wait at times. With more processes than that a run is not shorter, as the cores have no time
# left, and who waits for something begins to wait in vain.
PROCESSES_A_CORE = 2
# A test that may take more seconds than that runs with --all only.
LONGEST_S = 600
# Of a run that used more processor time than this the summary names so many folders and tests.
SOME_S = 20.0
FOLDERS, TESTS_NAMED = 25, 40
_PROCESSOR = "processor_s"
# Options of pytest with which a run is not one of all tests.
_NARROWING = ("collectonly", "deselect", "ignore", "ignore_glob", "keyword", "lf", "markexpr")
# How many bytes of the file of passed tests are from earlier runs.
_PASSED = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of the lanes."""
    group = parser.getgroup("lanes")
    group.addoption(
        "--all", action="store_true", dest="all_lanes", help="every test, and all schedules"
    )
    group.addoption(
        "--resume",
        action="store_true",
        help="with --all: without what has passed on this commit, in a clean tree",
    )
    # Write them with "=": pytest takes a file that stands alone for a test.
    group.addoption("--also", metavar="FILE", help="the quick lane, and the pieces in this file")
    group.addoption("--outcomes", metavar="FILE", help="write here how each test has ended")


def pytest_configure(config: pytest.Config) -> None:
    """The order is ours; xdist would begin with the files that have the most tests."""
    config.pluginmanager.register(_Processor())
    config.option.loadscopereorder = False
    if hasattr(config, "workerinput"):
        return
    config.pluginmanager.register(_Failures(config))
    config.pluginmanager.register(_Processes(config))
    config.pluginmanager.register(_Summary())
    if config.option.resume and not config.option.all_lanes:
        raise pytest.UsageError("--resume goes on with a run of --all: name both")
    if config.option.outcomes:
        config.pluginmanager.register(_Outcomes(Path(config.option.outcomes)))
    narrowed = any(getattr(config.option, option, None) for option in _NARROWING)
    if config.option.all_lanes and not (_named(config) or narrowed):
        try:
            differences = passed.differences()
        except subprocess.CalledProcessError as error:
            raise pytest.UsageError(f"--all asks git for the commit: {error.stderr}") from None
        if config.option.resume and differences:
            raise pytest.UsageError(
                "--resume skips what has passed on the commit that is checked out, and the files "
                f"differ from it: {', '.join(differences[:5])}; leave out --resume, or commit"
            )
        if not differences:
            commit = changes.git("rev-parse", "HEAD")
            size = passed.begin(passed.FILE, commit, resume=config.option.resume)
            config.stash[_PASSED] = size
        config.pluginmanager.register(_Whole(config, noting=not differences))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    """Tells a process of pytest-xdist what to skip, also one that comes later than the others."""
    node.workerinput["passed"] = node.config.stash.get(_PASSED, 0)


def _passed_before(config: pytest.Config) -> list[passed.Passed]:
    """What ``--resume`` skips."""
    size = getattr(config, "workerinput", {}).get("passed", config.stash.get(_PASSED, 0))
    return passed.read(passed.FILE, size)


# ------------------------------------------------------------------ what runs


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what is not in this lane, and puts the longest folders first."""
    if config.option.all_lanes:
        done = {test.test for test in _passed_before(config)}
        left_out = {item for item in items if item.nodeid in done}
    elif _named(config):
        left_out = set()
    else:
        also = _lines(config.option.also)
        left_out = {
            item
            for item in items
            if not is_quick(item.nodeid, item.keywords)
            and (seconds.piece_of(item.nodeid) not in also or runs_with_all_only(item))
        }
    config.hook.pytest_deselected(items=[*left_out])
    items[:] = [item for item in items if item not in left_out]

    def rank(item: pytest.Item) -> int:
        folder = top_folder(item.nodeid)
        return ORDER.index(folder) if folder in ORDER else -1

    items.sort(key=rank)


def is_quick(nodeid: str, markers: Container[str]) -> bool:
    """Whether the quick lane runs a test that has these markers."""
    return "slow" not in markers if top_folder(nodeid) in QUICK else "golden" in markers


def runs_with_all_only(item: pytest.Item) -> bool:
    """Whether a test may take so long that only ``--all`` runs it."""
    limit = item.get_closest_marker("timeout")
    if limit is None:
        return False
    return (limit.args[0] if limit.args else limit.kwargs.get("timeout", 0)) > LONGEST_S


def _lines(file: str | None) -> set[str]:
    return set(Path(file).read_text().splitlines()) if file else set()


def _named(config: pytest.Config) -> list[str]:
    """The folders, files and tests that were named on the command line."""
    return [name for name in config.args if Path(name).resolve() != TESTS]


# ------------------------------------------------------------------ where it runs


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """For ``-n auto``: for single files none, as these would be done before all had started."""
    named = _named(config)
    if not all(Path(name).is_dir() for name in named):
        return 0
    return PROCESSES_A_CORE * len(os.sched_getaffinity(0))


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling:
    """Hands out tests by pieces, whatever ``--dist`` says."""
    return Pieces(config, log)


# ------------------------------------------------------------------ what is seen, and kept


class _Failures:
    """Names each failed test when it fails, not only at the end of the run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)  # the letter F comes first
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        # With -v each test has a line of its own.
        if not report.failed or terminal is None or terminal.verbosity > 0:
            return
        crash = getattr(report.longrepr, "reprcrash", None)
        why = crash.message if crash else str(report.longrepr)
        where = f" in its {report.when}" if report.when in ("setup", "teardown") else ""
        first = (why.splitlines() or [""])[0]
        terminal.write(f"\n{report.nodeid} failed{where}: {first}\n", flush=True)


class _Processes:
    """A process of pytest-xdist that ends too early fails the run. Xdist replaces it, and says no
    more if it was in no test."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: WorkerController, error: object) -> None:
        if error:
            name, why = node.gateway.id, f"the process ended: {error}"
            report = pytest.CollectReport(name, "failed", why, [])
            self._config.hook.pytest_collectreport(report=report)


class _Outcomes:
    """Writes how each part of a test has ended, a line of JSON each: ``second_try`` reads it. What
    failed outside of tests is written as well, as it is not to be excused with them."""

    def __init__(self, file: Path) -> None:
        self._file = file
        file.write_text("")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.pytest_runtest_logreport(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        said = (f"{name}\n{words}" for name, words in report.sections)
        line = {
            "test": report.nodeid,
            "when": report.when,
            "outcome": report.outcome,
            "text": "\n\n".join((report.longreprtext, *said)) if report.failed else "",
        }
        with self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")


class _Whole:
    """A run of everything: notes what has passed, updates the table, looks at the list of flaky
    tests."""

    def __init__(self, config: pytest.Config, *, noting: bool) -> None:
        self._noting = noting
        self._tests = {test.test: test for test in _passed_before(config)}
        self._ran: set[str] = set()
        self._not_passed: set[str] = set()
        self._broken = False
        self._troubles: list[str] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._broken = self._broken or report.failed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid
        self._ran.add(name)
        before = self._tests[name].seconds if name in self._tests else 0.0
        test = passed.Passed(name, before + noted(report), is_quick(name, report.keywords))
        self._tests[name] = test
        if report.outcome != "passed":
            self._not_passed.add(name)
        elif report.when == "teardown" and self._noting and name not in self._not_passed:
            passed.note(passed.FILE, test)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self._tests:
            session.exitstatus = exitstatus = pytest.ExitCode.OK  # all have passed before
        if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            return  # it is not whole
        if self._broken or len(self._ran) < session.testscollected:
            return  # nor is this: what could not be collected, or came after -x, has not run
        old = seconds.read(seconds.TABLE.read_text())
        seconds.TABLE.write_text(seconds.written(seconds.by_row(self._tests.values(), old)))
        rows = flaky.read(flaky.PAGE.read_text())
        self._troubles = flaky.overdue(rows, changes.commit_time())
        if self._troubles:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for trouble in self._troubles:
            terminalreporter.write_line(f"tests/FLAKY.md: {trouble}", red=True)


class _Summary:
    """Says at the end what used the processors: folders, in each lane, and the dearest tests."""

    def __init__(self) -> None:
        self._tests: Counter[str] = Counter()
        self._folders: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        used: Any = noted(report)  # Counter is typed for whole numbers
        folder = str(Path(report.nodeid.partition("::")[0]).parent)
        self._tests[report.nodeid] += used
        self._folders[is_quick(report.nodeid, report.keywords)][folder] += used

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        quick, rest = self._folders[True], self._folders[False]
        both = quick + rest
        if both.total() < SOME_S:
            return
        terminalreporter.section("processor time: the quick lane's, the others'")
        for name, _ in both.most_common(FOLDERS):
            terminalreporter.write_line(f"{quick[name]:6.0f} s {rest[name]:6.0f} s  {name}")
        terminalreporter.write_line(f"{quick.total():6.0f} s {rest.total():6.0f} s  in all")
        for name, used in self._tests.most_common(TESTS_NAMED):
            terminalreporter.write_line(f"{used:6.0f} s  {name}")


def noted(report: pytest.TestReport) -> float:
    """The processor seconds of a part of a test, as far as they were noted."""
    return sum(float(str(value)) for name, value in report.user_properties if name == _PROCESSOR)


class _Processor:
    """Notes the processor time of each part of a test: how long it takes by the clock says more
    about the tests beside it. What processes use that outlive their test counts for the next."""

    def __init__(self) -> None:
        self._used = _processor_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        before, self._used = self._used, _processor_s()
        # What containers use is not seen here.
        in_containers = top_folder(item.nodeid) in TOGETHER
        used = report.duration if in_containers else self._used - before
        report.user_properties.append((_PROCESSOR, f"{used:.2f}"))
        return report


def _processor_s() -> float:
    """Seconds of this process and of all its children that have ended."""
    parts = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return zygote.processor_seconds() + sum(part.ru_utime + part.ru_stime for part in parts)
