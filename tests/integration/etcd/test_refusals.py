"""An etcd that answers, and takes no writes: what people are told, and how it goes on."""

from __future__ import annotations

import json
import secrets
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar

import pytest

from elastic_runtime.cli.ctl.elasticctl import main
from elastic_runtime.protocol.records import KILLED, FaultReport
from elastic_runtime.rendezvous.core.membership_events import Join, LeftRound
from elastic_runtime.rendezvous.core.notices import Notice, Sealed, StoreState, Waiting
from elastic_runtime.rendezvous.participant import NodeIdentity, Participant
from elastic_runtime.rendezvous.policy import Policy
from elastic_runtime.rendezvous.stores.etcd.etcd_adapter import EtcdStore
from tests.conformance.store_contract import beating
from tests.etcd_server import etcdctl
from tests.integration.etcd.listening import allow, endpoint
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import NewEtcd
    from tests.etcd_server import EtcdCluster

pytestmark = pytest.mark.etcd

PATIENCE = 60.0
_N = TypeVar("_N")


class Seat:
    """A real participant on a real etcd, with all that it was told.

    Args:
        hosts: "host:port,…".
        **account: the user and password of etcd's.
    """

    def __init__(self, hosts: str, **account: str) -> None:
        self.run_id = secrets.token_hex(8)
        store = EtcdStore(endpoint(hosts, **account), self.run_id, 5.0, PATIENCE)
        self._heard: list[Notice] = []
        self.part = Participant(
            store, Policy(), NodeIdentity("a", "127.0.0.1", 1), self._heard.append
        )
        self.part.say(Join())

    def told(self, kind: type[_N], fits: Callable[[_N], bool]) -> _N:
        """Waits for a notice."""

        def found() -> list[_N]:
            return [one for one in self._heard if isinstance(one, kind) and fits(one)]

        return wait_for(found, PATIENCE, f"a {kind.__name__}", lambda: str(self._heard))[0]

    def sealed(self, number: int) -> None:
        """Waits for a round."""
        self.told(Sealed, lambda notice: notice.round.number == number)

    def leaves(self, number: int) -> None:
        """Says that the workers of a round have ended."""
        self.part.say(LeftRound(number, FaultReport(number, KILLED, "killed")))


@pytest.fixture
def seated() -> Iterator[Callable[..., Seat]]:
    with ExitStack() as stack:

        def sit(hosts: str, **account: str) -> Seat:
            seat = Seat(hosts, **account)
            stack.callback(seat.part.close)
            stack.enter_context(beating(seat.part.beat))
            return seat

        yield sit


def _fill(where: str) -> None:
    with pytest.raises(RuntimeError, match="database space exceeded"):
        for _ in range(1000):
            etcdctl(where, "put", "filler", stdin="x" * 1_000_000)


def _make_room(where: str) -> None:
    etcdctl(where, "del", "filler")
    status = json.loads(etcdctl(where, "endpoint", "status", "-w", "json"))[0]
    etcdctl(where, "compact", str(status["Status"]["header"]["revision"]))
    etcdctl(where, "defrag")
    etcdctl(where, "alarm", "disarm")


def test_a_write_that_is_too_large_is_told_and_not_swallowed(
    new_etcd: NewEtcd, seated: Callable[..., Seat]
) -> None:
    seat = seated(new_etcd("--max-request-bytes", "4000").endpoint)
    seat.sealed(1)
    seat.part.say(LeftRound(1, FaultReport(1, KILLED, "killed", traceback="x" * 6000)))
    said = seat.told(Waiting, lambda notice: "request is too large" in notice.reason)
    assert "--max-request-bytes" in said.reason
    assert "giving up in" in said.reason


def test_a_full_etcd_is_named_and_the_job_goes_on_once_there_is_room(
    new_etcd: NewEtcd, seated: Callable[..., Seat], capsys: pytest.CaptureFixture[str]
) -> None:
    server = new_etcd("--quota-backend-bytes", str(8 << 20))
    seat = seated(server.endpoint)
    seat.sealed(1)
    _fill(server.endpoint)
    seat.leaves(1)
    said = seat.told(Waiting, lambda notice: "database space exceeded" in notice.reason)
    assert "etcdctl alarm disarm" in said.reason
    assert "giving up in" in said.reason
    where = f"etcd://{server.endpoint}/test"
    assert main(["status", "--rdzv-endpoint", where, "--run-id", seat.run_id]) == 0
    assert "NOSPACE" in capsys.readouterr().out
    _make_room(server.endpoint)
    seat.sealed(2)
    main(["status", "--rdzv-endpoint", where, "--run-id", seat.run_id])
    assert "NOSPACE" not in capsys.readouterr().out


def test_a_user_who_may_only_read_is_told_so_and_takes_part_once_it_may_write(
    new_etcd: NewEtcd, seated: Callable[..., Seat]
) -> None:
    where = new_etcd().endpoint
    allow(where, "reader:reader-pw", "read", "/")
    seat = seated(where, user="reader", password="reader-pw")
    said = seat.told(Waiting, lambda notice: "permission denied" in notice.reason)
    assert "user 'reader'" in said.reason
    assert "giving up in" in said.reason
    may = "role grant-permission --prefix=true trains readwrite /"
    etcdctl(where, "--user", "root:root-pw", *may.split())
    seat.sealed(1)


def test_an_etcd_without_a_leader_is_named(
    etcd_cluster: EtcdCluster, seated: Callable[..., Seat]
) -> None:
    alone, *others = etcd_cluster.members
    seat = seated(alone.endpoint)
    seat.sealed(1)
    for member in others:
        member.pause()
    said = seat.told(StoreState, lambda notice: "no leader" in notice.why)
    assert "start them again" in said.why
    seat.leaves(1)
    for member in others:
        member.unpause()
    seat.sealed(2)
