"""Which tests run, in which order and in how many processes: a plugin of pytest.

There are two lanes. Without ``--all``, a run of all tests leaves out the folders in ``SLOW``, the
tests that are marked as slow, and all cases but the first of those that are marked so, and the
models play a tenth of their schedules. What is named on the command line runs in any case.

Among several processes (pytest-xdist) tests are handed out file by file; what shares something
that exists only once as one piece; and single long tests one by one. The longest folders come
first, so that no process is left alone with a long test at the end. What runs many processes of its
own runs in half of the processes, rounded up: more jobs of several nodes at once would starve each
other until something is too late.
"""

from __future__ import annotations

import math
import os
import resource
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping

    from xdist.workermanage import WorkerController

TESTS = Path(__file__).parent
SLOW = ("chaos", "partitions", "images", "cluster")
# What takes longest comes first; a folder that is not listed comes before all of these.
ORDER = ("images", "cluster", "chaos", "partitions", "integration", "model", "unit")
# The images are built once, and for the cluster as well.
TOGETHER = {"cluster": "images", "images": "images"}
# A test of these is long, and shares nothing with its neighbours.
ONE_BY_ONE = ("chaos", "partitions", "model")
# Jobs of several nodes, each of many processes.
HEAVY = tuple(
    f"tests/{folder}/"
    for folder in (
        "chaos",
        "partitions",
        "integration/accelerate",
        "integration/hosts",
        "integration/in_place",
        "integration/lightning",
        "integration/slurm",
        "integration/snapshots",
        "integration/torchtitan",
        "integration/transformers",
    )
)
# Integration tests wait at times. With more processes than that a run is not shorter, as the cores
# have no time left, and who waits for something begins to wait in vain.
PROCESSES_A_CORE = 1.5
FEW_SCHEDULES = 0.1
# Seconds of processor time; a test that takes more says why.
LONG = 20.0
# How many folders and tests the summary names.
FOLDERS, TESTS_NAMED = 25, 40
_PROCESSOR = "processor_s"


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--all``."""
    what = f"run also {', '.join(SLOW)}, tests marked as slow, and all schedules of the models"
    parser.addoption("--all", action="store_true", dest="all_lanes", help=what)


def pytest_configure(config: pytest.Config) -> None:
    """The order is ours; xdist would begin with the files that have the most tests."""
    config.pluginmanager.register(_Processor())
    config.option.loadscopereorder = False
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Failures(config))


@pytest.fixture(scope="session")
def share_of_schedules(pytestconfig: pytest.Config) -> float:
    """How many of its schedules a model plays: 1 is all of them."""
    return 1.0 if pytestconfig.option.all_lanes else FEW_SCHEDULES


# ------------------------------------------------------------------ what runs


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out the folders that only ``--all`` runs."""
    slow = collection_path.parent == TESTS and collection_path.name in SLOW
    return True if slow and _is_quick(config) else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the slow tests, and puts the longest of the others first.

    The order is that of the folders, then files with slow tests; a file stays together.
    """
    slow = [item for item in items if item.get_closest_marker("slow")]
    if _is_quick(config):
        left_out = {*slow, *further_cases(items)}
        config.hook.pytest_deselected(items=[*left_out])
        items[:] = [item for item in items if item not in left_out]
    paths = {item.path for item in slow}

    def rank(item: pytest.Item) -> tuple[int, bool]:
        folder = _folder(item.nodeid)
        return ORDER.index(folder) if folder in ORDER else -1, item.path not in paths

    items.sort(key=rank)


def further_cases(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """The second and all further cases of the tests of which the quick lane runs one."""
    seen: set[str] = set()
    further = []
    for item in items:
        if item.get_closest_marker("first_case"):
            test = item.nodeid.partition("[")[0]
            if test in seen:
                further.append(item)
            seen.add(test)
    return further


def _is_quick(config: pytest.Config) -> bool:
    return not config.option.all_lanes and not _named(config)


def _named(config: pytest.Config) -> list[str]:
    """The folders, files and tests that were named on the command line."""
    return [name for name in config.args if Path(name).resolve() != TESTS]


# ------------------------------------------------------------------ where it runs


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """For ``-n auto``: for single files none, as these would be done before all had started."""
    named = _named(config)
    if not all(Path(name).is_dir() for name in named):
        return 0
    return math.ceil(PROCESSES_A_CORE * len(os.sched_getaffinity(0)))


class _Pieces(LoadScopeScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        folder = _folder(nodeid)
        path = nodeid.split("::")[0]
        return nodeid if folder in ONE_BY_ONE else TOGETHER.get(folder, path)

    def _assign_work_unit(self, node: WorkerController) -> None:
        pieces = (work for other, work in self.assigned_work.items() if other is not node)
        heavy = sum(any(map(_is_heavy, _unfinished(work))) for work in pieces)
        piece = next_piece(self.workqueue, heavy, len(self.nodes))
        self.workqueue.move_to_end(piece, last=False)
        super()._assign_work_unit(node)


def next_piece(waiting: Iterable[str], heavy: int, processes: int) -> str:
    """What a process runs next.

    Args:
        waiting: all pieces that nobody has yet, at least one, in order.
        heavy: how many other processes have a heavy one.
        processes: how many there are.
    """
    pieces = list(waiting)
    if 2 * heavy < processes:
        return pieces[0]
    return next((piece for piece in pieces if not _is_heavy(piece)), pieces[0])


def _is_heavy(piece: str) -> bool:
    return piece.startswith(HEAVY)


def _unfinished(work: Mapping[str, Mapping[str, bool]]) -> list[str]:
    """Of the pieces that a process was given, each with what it has done of it."""
    return [piece for piece, tests in work.items() if not all(tests.values())]


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling:
    """Hands out tests by pieces, whatever ``--dist`` says."""
    return _Pieces(config, log)


def _folder(nodeid: str) -> str:
    """The folder of ``tests/FOLDER/…``."""
    return nodeid.split("/", 2)[1]


# ------------------------------------------------------------------ what is seen


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


class _Processor:
    """Notes the processor time of each part of a test: how long it takes by the clock says more
    about the tests beside it. What processes use that outlive their test counts for the next."""

    def __init__(self) -> None:
        self._used = _processor_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        before, self._used = self._used, _processor_s()
        report.user_properties.append((_PROCESSOR, f"{self._used - before:.2f}"))
        return report


def _processor_s() -> float:
    """Seconds of this process and of all its children that have ended."""
    parts = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(part.ru_utime + part.ru_stime for part in parts)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says what used the processors: folders, and tests that do not say why; no failure, as
    machines differ."""
    reports = [*_reports(terminalreporter)]
    tests, folders = processor_time(reports)
    slow = {report.nodeid for report in reports if "slow" in report.keywords}
    long = [one for one in tests.most_common() if one[1] > LONG and one[0] not in slow]
    if long:
        terminalreporter.section(
            f'over {LONG:g} s of processor time without pytest.mark.slow("reason")'
        )
        for name, seconds in long:
            terminalreporter.write_line(f"{seconds:.0f} s  {name}")
    if sum(tests.values()) > LONG:
        terminalreporter.section("processor time")
        for name, seconds in (*folders.most_common(FOLDERS), *tests.most_common(TESTS_NAMED)):
            terminalreporter.write_line(f"{seconds:.0f} s  {name}")


def processor_time(reports: Iterable[pytest.TestReport]) -> tuple[Counter[str], Counter[str]]:
    """The seconds that each test has used, in all its parts, and each folder."""
    tests: Counter[str] = Counter()
    folders: Counter[str] = Counter()
    for report in reports:
        noted = (float(str(v)) for name, v in report.user_properties if name == _PROCESSOR)
        seconds: Any = sum(noted)  # Counter is typed for whole numbers
        tests[report.nodeid] += seconds
        folders[str(Path(report.nodeid.partition("::")[0]).parent)] += seconds
    return tests, folders


def _reports(terminalreporter: pytest.TerminalReporter) -> Iterator[pytest.TestReport]:
    for reports in terminalreporter.stats.values():
        yield from (report for report in reports if isinstance(report, pytest.TestReport))
