"""torch's rendezvous interface: how it finds us, what it says to torchrun, and what it takes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
from torch.distributed.elastic.rendezvous import RendezvousParameters, registry
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousInfo,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from elastic_runtime.config import RDZV_CONF_TIMEOUTS, Endpoint, Timeouts, Tls
from elastic_runtime.errors import UsageError
from elastic_runtime.rendezvous.participant import NodeIdentity
from elastic_runtime.rendezvous.policy import Policy
from elastic_runtime.rendezvous.stores.memory_store import MemoryServer, MemoryStore
from elastic_runtime.rendezvous.torchrun.handler_entry_points import (
    C10D,
    ETCD_V3,
    endpoint_of,
    times_of,
)
from elastic_runtime.rendezvous.torchrun.torch_handler import ElasticRendezvousHandler
from tests.conformance import RESOLVER
from tests.processes import wait_for
from tests.unit.programs import python

PATIENCE = 60.0
assert RESOLVER  # importing it has set it

TIMEOUTS = Timeouts(last_call=0.2, join_batch=0.05, rejoin_timeout=5.0, connect_timeout=2.0)
POLICY = Policy(timeouts=TIMEOUTS, settle=0.5)

NewHandler = Callable[..., ElasticRendezvousHandler]


@pytest.fixture
def server() -> MemoryServer:
    return MemoryServer()


@pytest.fixture
def new_handler(server: MemoryServer) -> Iterator[NewHandler]:
    made: list[ElasticRendezvousHandler] = []

    def make(least: int, most: int, join: float = 60.0) -> ElasticRendezvousHandler:
        timeouts = replace(TIMEOUTS, join_timeout=join)
        settings = replace(POLICY, min_nodes=least, max_nodes=most, timeouts=timeouts)
        identity = NodeIdentity(f"n{len(made)}", "127.0.0.1", 1)
        store = MemoryStore(server, 2.0)
        made.append(ElasticRendezvousHandler("test", "run", store, settings, identity))
        return made[-1]

    yield make
    for handler in made:
        handler._depart()


@pytest.fixture
def enter() -> Iterator[Callable[..., list[RendezvousInfo]]]:
    """Lets handlers enter a round together; waits until all are in."""
    with ThreadPoolExecutor(16) as pool:

        def enter_all(*handlers: ElasticRendezvousHandler) -> list[RendezvousInfo]:
            entering = [pool.submit(handler.next_rendezvous) for handler in handlers]
            return [one.result(PATIENCE) for one in entering]

        yield enter_all


Enter = Callable[..., list[RendezvousInfo]]


def in_background(handler: ElasticRendezvousHandler) -> Future[RendezvousInfo]:
    future: Future[RendezvousInfo] = Future()

    def enter() -> None:
        try:
            future.set_result(handler.next_rendezvous())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=enter, daemon=True).start()
    return future


def fail(handler: ElasticRendezvousHandler) -> None:
    """As torch does when restarts are used up."""
    try:
        raise ValueError("this is why")
    except ValueError:
        handler.shutdown()


def asked_to_leave(handler: ElasticRendezvousHandler) -> None:
    """Waits until torch's agent would be told to restart its workers."""
    with handler._noticed:
        assert handler._noticed.wait_for(handler.num_nodes_waiting, PATIENCE)


def test_a_round_has_ranks_and_a_store_of_its_own(new_handler: NewHandler, enter: Enter) -> None:
    handlers = [new_handler(3, 3) for _ in range(3)]
    first = enter(*handlers)
    assert sorted(info.rank for info in first) == [0, 1, 2]
    assert {info.world_size for info in first} == {3}
    assert len({info.bootstrap_store_info.master_port for info in first}) == 1
    first[0].store.set("left from", "the first round")
    assert [handler.num_nodes_waiting() for handler in handlers] == [0, 0, 0]
    second = enter(*handlers)  # as after a failure of the workers
    assert not second[0].store.check(["left from"])
    for info in second:
        info.store.set(f"here/{info.rank}", "x")
    second[1].store.wait([f"here/{rank}" for rank in range(3)], timedelta(seconds=PATIENCE))


def test_a_failure_on_one_node_asks_the_others_out(new_handler: NewHandler, enter: Enter) -> None:
    handlers = [new_handler(2, 2) for _ in range(2)]
    enter(*handlers)
    failed = in_background(handlers[0])
    asked_to_leave(handlers[1])
    enter(handlers[1])
    assert failed.result(PATIENCE).world_size == 2
    assert handlers[0].num_nodes_waiting() == handlers[1].num_nodes_waiting() == 0


def test_a_joiner_is_announced_and_let_in(new_handler: NewHandler, enter: Enter) -> None:
    first = new_handler(1, 2)
    (info,) = enter(first)
    assert info.world_size == 1
    joining = in_background(new_handler(1, 2))
    asked_to_leave(first)
    (info,) = enter(first)
    assert (info.rank, info.world_size) == (0, 2)
    assert joining.result(PATIENCE).rank == 1


def test_a_node_that_leaves_is_noticed(new_handler: NewHandler, enter: Enter) -> None:
    handlers = [new_handler(1, 2) for _ in range(2)]
    enter(*handlers)
    handlers[1]._depart()  # as at the end of a process that got a signal
    asked_to_leave(handlers[0])
    (info,) = enter(handlers[0])
    assert info.world_size == 1


def test_an_end_without_an_error_ends_the_job_well(new_handler: NewHandler, enter: Enter) -> None:
    handlers = [new_handler(2, 2) for _ in range(2)]
    enter(*handlers)
    waiting = new_handler(2, 2)
    spare = in_background(waiting)
    # One that comes only after the end would begin the next life of the job.
    wait_for(lambda: waiting._participant.state.own.stored, PATIENCE, "the spare is in the store")
    with ThreadPoolExecutor() as pool:
        assert all(pool.map(ElasticRendezvousHandler.shutdown, handlers))
    assert all(handler.is_closed() for handler in handlers)
    with pytest.raises(RendezvousGracefulExitError):
        spare.result(PATIENCE)
    with pytest.raises(RendezvousClosedError):
        handlers[0].next_rendezvous()


def test_an_end_with_an_error_ends_the_job_for_all(new_handler: NewHandler, enter: Enter) -> None:
    handlers = [new_handler(2, 2) for _ in range(2)]
    enter(*handlers)
    fail(handlers[0])
    asked_to_leave(handlers[1])
    with pytest.raises(RendezvousClosedError, match="ValueError"):
        handlers[1].next_rendezvous()


def test_who_hosts_the_store_leaves_last(
    new_handler: NewHandler, enter: Enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a node that has not read the end of the job yet would wait for another round."""
    host, other = (new_handler(2, 2) for _ in range(2))
    enter(host, other)
    monkeypatch.setattr(MemoryStore, "hosted_here", property(lambda store: store is host._store))
    has_left = threading.Event()

    def end() -> None:
        fail(host)
        has_left.set()

    threading.Thread(target=end, daemon=True).start()
    asked_to_leave(other)
    assert not has_left.wait(0.5)
    with pytest.raises(RendezvousClosedError, match="ValueError"):
        other.next_rendezvous()
    other.shutdown()
    assert has_left.wait(PATIENCE)


def test_the_job_is_closed_by_who_has_not_joined(new_handler: NewHandler, enter: Enter) -> None:
    member = new_handler(1, 2)
    enter(member)
    closing = new_handler(1, 2)
    closing.set_closed()
    assert closing.is_closed()
    with pytest.raises(RendezvousClosedError, match="torchrun closed the rendezvous on n1"):
        closing.next_rendezvous()
    asked_to_leave(member)
    with pytest.raises(RendezvousClosedError, match="torchrun closed the rendezvous on n1"):
        member.next_rendezvous()
    assert closing.shutdown()


def test_a_job_that_is_not_there_can_be_closed(
    server: MemoryServer, new_handler: NewHandler
) -> None:
    closing = new_handler(1, 2)
    closing.set_closed()
    assert closing.is_closed()
    with pytest.raises(RendezvousClosedError):
        closing.next_rendezvous()
    assert closing.shutdown()
    assert not MemoryStore(server, 2.0).read("")  # nobody is kept from beginning it


def test_who_waits_for_the_first_round_hears_of_the_end(new_handler: NewHandler) -> None:
    waiting = new_handler(2, 2)
    joining = in_background(waiting)
    wait_for(lambda: waiting._participant.state.job_record, PATIENCE, "the job is there")
    waiting.set_closed()
    assert waiting.is_closed()
    with pytest.raises(RendezvousClosedError):
        joining.result(PATIENCE)


def test_a_closing_that_nobody_hears_of_is_an_error(
    server: MemoryServer, new_handler: NewHandler
) -> None:
    server.stop()
    closing = new_handler(1, 2)
    with pytest.raises(RendezvousConnectionError, match="on this node only"):
        closing.set_closed()
    assert closing.is_closed()


def test_who_never_had_a_part_can_leave(server: MemoryServer, new_handler: NewHandler) -> None:
    server.stop()
    assert new_handler(1, 1).shutdown()


def test_too_few_nodes_time_out(new_handler: NewHandler) -> None:
    with pytest.raises(RendezvousTimeoutError, match="1 of at least 2 nodes"):
        new_handler(2, 2, join=0.3).next_rendezvous()


def test_a_store_that_never_answers(server: MemoryServer, new_handler: NewHandler) -> None:
    server.stop()
    with pytest.raises(RendezvousConnectionError, match="the rendezvous store does not answer"):
        new_handler(1, 1).next_rendezvous()


# ---------------------------------------------------------------- how torch finds it


@pytest.mark.parametrize("name", [ETCD_V3, C10D])
def test_torch_finds_the_handlers_by_name(name: str) -> None:
    handler = get_rendezvous_handler(RendezvousParameters(name, "127.0.0.1:1", "run", 1, 2))
    assert handler.get_backend() == name
    assert handler.get_run_id() == "run"
    assert not handler.use_agent_store
    assert not handler.is_closed()
    handler.shutdown()


def test_torch_may_register_the_handlers_again(caplog: pytest.LogCaptureFixture) -> None:
    registry._register_out_of_tree_handlers()  # as at its import
    assert not caplog.records


def test_who_only_uses_torch_does_not_load_the_rendezvous() -> None:
    program = (
        "import sys, torch.distributed.elastic.rendezvous.registry\n"
        "print(*(m for m in sys.modules if m.startswith('elastic_runtime')))"
    )
    done = python("-c", program)
    loaded = set(done.stdout.split())
    assert "elastic_runtime.rendezvous.torchrun.handler_entry_points" in loaded
    assert not loaded & {
        "elastic_runtime.rendezvous.core.node_state",
        "elastic_runtime.rendezvous.stores.embedded.embedded_adapter",
    }
    assert "Exception" not in done.stderr


def params(endpoint: str, **conf: object) -> RendezvousParameters:
    return RendezvousParameters("x", endpoint, "run", 1, 2, **conf)


@pytest.mark.parametrize(
    ("name", "given", "endpoint"),
    [
        (ETCD_V3, params("h"), Endpoint("etcd", ("h:2379",))),
        (ETCD_V3, params("h:1,[::1]:2, k"), Endpoint("etcd", ("h:1", "[::1]:2", "k:2379"))),
        (
            ETCD_V3,
            params("h:1", protocol="https", ca_cert="a", ssl_cert="b", ssl_cert_key="c"),
            Endpoint("etcd", ("h:1",), secure=True, tls=Tls("a", "b", "c")),
        ),
        (
            ETCD_V3,
            params("h:1", prefix="/p/", user="u", password="w"),
            Endpoint("etcd", ("h:1",), prefix="p", user="u", password="w"),
        ),
        (C10D, params("h"), Endpoint("c10d", ("h:29400",))),
        (C10D, params("h:1", is_host="false"), Endpoint("c10d", ("h:1",), hosted_here=True)),
        (C10D, params("h:1", is_host="1"), Endpoint("c10d", ("h:1",))),
    ],
)
def test_endpoints(name: str, given: RendezvousParameters, endpoint: Endpoint) -> None:
    assert endpoint_of(name, given) == endpoint


@pytest.mark.parametrize(
    ("name", "text"), [(ETCD_V3, ""), (ETCD_V3, "h:x"), (ETCD_V3, ":1"), (C10D, "a:1,b:2")]
)
def test_wrong_endpoints(name: str, text: str) -> None:
    with pytest.raises(UsageError, match="--rdzv-endpoint"):
        endpoint_of(name, params(text))


def test_times_have_units_as_elsewhere() -> None:
    given = params("h", join_timeout="7", lease_ttl="2.5", fence_timeout=".5h", timeout="900")
    assert times_of(given) == Timeouts(join_timeout=7.0, lease_ttl=2.5, fence_timeout=1800.0)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("option", sorted(RDZV_CONF_TIMEOUTS.keys() - {"timeout"}))
def test_no_option_leads_to_a_former_name(option: str) -> None:
    assert getattr(times_of(params("h", **{option: "2.5"})), RDZV_CONF_TIMEOUTS[option]) == 2.5


@pytest.mark.parametrize("text", ["soon", "0", "-1", "1e400", "inf", "99999d"])
def test_wrong_times_and_endless_ones(text: str) -> None:
    with pytest.raises(UsageError, match=rf"--rdzv-conf join_timeout={text}"):
        times_of(params("h", join_timeout=text))
