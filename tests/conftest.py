"""Fixtures that several parts share: real etcd servers.

They run as containers. Where docker cannot run, a plain etcd process takes their place, and the
summary of the test run says so.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests import zygote
from tests.docker_engine import remove_leftovers
from tests.etcd_server import (
    EtcdCluster,
    EtcdContainer,
    EtcdProcess,
    EtcdServer,
    why_no_docker,
)

pytest_plugins = ["tests.lanes.plugin"]

# No test is about how long anything takes: machines are busy with other things, too.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

_REASON = pytest.StashKey[str]()
_ENDED = pytest.StashKey[str]()


def pytest_configure() -> None:
    """Undoes what a shell does to a command in the background: signals that it ignores would be
    ignored by every process that the tests start."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            own = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, own)


def pytest_collection_finish() -> None:
    """By now all that tests import is there."""
    zygote.take_environment()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """What is about a start is started as users start it."""
    zygote.start_as_users_do(exec_only=item.get_closest_marker("users_start") is not None)


@pytest.fixture(scope="session")
def docker_works(pytestconfig: pytest.Config) -> bool:
    """Whether containers can be started here."""
    reason = why_no_docker()
    pytestconfig.stash[_REASON] = reason
    return not reason


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Takes over what a process of pytest-xdist has learned, for the summary."""
    config, told = node.config, getattr(node, "workeroutput", {})
    for key, name in ((_REASON, "etcd_reason"), (_ENDED, "etcd_ended")):
        if name in told:
            config.stash[key] = told[name]


def pytest_unconfigure(config: pytest.Config) -> None:
    """Removes what processes of this run that were killed have left in docker."""
    shared = config.option.numprocesses and not hasattr(config, "workerinput")
    if shared or config.stash.get(_REASON, None) == "":
        remove_leftovers()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tells the main process, for the summary."""
    config = session.config
    reason = config.stash.get(_REASON, None)
    if hasattr(config, "workeroutput"):
        if reason is not None:
            config.workeroutput["etcd_reason"] = reason
        if words := config.stash.get(_ENDED, ""):
            config.workeroutput["etcd_ended"] = words


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Says what kind of etcd the tests had."""
    reason = config.stash.get(_REASON, None)
    if reason:
        terminalreporter.write_line(f"etcd ran as a plain process, not in a container: {reason}")
    elif reason is not None:
        terminalreporter.write_line("etcd ran in containers")
    if words := config.stash.get(_ENDED, ""):
        terminalreporter.write_line(f"the etcd that all tests share had ended before them: {words}")


NewEtcd = Callable[..., EtcdServer]


@pytest.fixture(scope="session")
def _make_etcd(docker_works: bool) -> NewEtcd:
    def make(*flags: str, scheme: str = "http", mounts: Sequence[str] = ()) -> EtcdServer:
        if docker_works:
            return EtcdContainer(*flags, scheme=scheme, mounts=mounts)
        return EtcdProcess(*flags, scheme=scheme)

    return make


@pytest.fixture(scope="session")
def etcd(_make_etcd: NewEtcd, pytestconfig: pytest.Config) -> Iterator[EtcdServer]:
    """One etcd for all tests that do not break it; each takes a run id of its own."""
    server = _make_etcd()
    yield server
    pytestconfig.stash[_ENDED] = server.last_words() or ""
    server.close()


@pytest.fixture
def new_etcd(_make_etcd: NewEtcd) -> Iterator[NewEtcd]:
    """Makes etcd servers for a test that breaks them; call it with further flags of etcd's."""
    servers: list[EtcdServer] = []

    def make(*flags: str, scheme: str = "http", mounts: Sequence[str] = ()) -> EtcdServer:
        servers.append(_make_etcd(*flags, scheme=scheme, mounts=mounts))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


@pytest.fixture
def etcd_cluster(docker_works: bool) -> Iterator[EtcdCluster]:
    """Three etcd members."""
    cluster = EtcdCluster(containers=docker_works)
    yield cluster
    cluster.close()
