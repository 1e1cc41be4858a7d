"""Which node hosts the store, and which one hosts it next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_runtime.rendezvous.store_contract import Found, Lost, StoreSnapshot
from elastic_runtime.rendezvous.stores.embedded.embedded_adapter import EmbeddedStore
from tests import processes
from tests.etcd_server import free_port
from tests.integration.embedded.hosting import HostProcess

if TYPE_CHECKING:
    from elastic_runtime.rendezvous.stores.embedded.store_hosting import Hosting
    from tests.conformance.store_contract import Node
    from tests.integration.embedded.conftest import OpenAt


def hosting(nodes: list[Node]) -> list[Node]:
    return [node for node in nodes if node.store.hosted_here]


def hosting_of(node: Node) -> Hosting:
    assert isinstance(node.store, EmbeddedStore)
    return node.store._hosting


def voting(open_at: OpenAt, host: HostProcess, count: int) -> list[Node]:
    """Nodes that have registered at a host, and know that all of them and the host vote."""
    nodes = [open_at(host.port, f"n{i}", may_host=True) for i in range(count)]
    for node in nodes:
        node.register()

    def known() -> bool:
        lists = [hosting_of(node)._voters for node in nodes]
        return all(
            one is not None and len(one.now) == count + 1 and not one.before for one in lists
        )

    processes.wait_for(known, 60.0, "all know who votes")
    return nodes


def have_another_host(nodes: list[Node]) -> None:
    """Waits until the nodes have one that knows nothing of what was."""
    for node in nodes:
        node.ear.until(node.ear.was_forgotten, "another host")
    assert len(hosting(nodes)) == 1


def test_of_several_on_one_machine_one_becomes_the_host(open_at: OpenAt) -> None:
    port = free_port()
    nodes = [open_at(port, f"n{i}", may_host=True) for i in range(5)]
    assert len(hosting(nodes)) == 1
    nodes[0].put("job", b"j")
    for node in nodes:
        node.ear.has("job", b"j")


def test_who_founds_a_store_is_not_told_of_a_loss(open_at: OpenAt) -> None:
    assert open_at(free_port(), "n", may_host=True).ear.count(Lost) == 0


def test_when_the_host_dies_another_takes_over_with_an_empty_store(open_at: OpenAt) -> None:
    with HostProcess(free_port()) as dying:
        nodes = [open_at(dying.port, f"n{i}", may_host=True) for i in range(3)]
        for node in nodes:
            node.register()
        assert hosting(nodes) == []
        version = nodes[0].entry(nodes[0].key).version
    for node in nodes:
        node.ear.hears(Lost)
        node.ear.hears(Found)
    have_another_host(nodes)
    for node in nodes:
        node.register(b"again")
    assert len(nodes[0].store.read("")) == 3
    # What somebody remembers of the former store can be no condition that holds in this one.
    assert not nodes[0].put(nodes[0].key, b"late", version)


def test_of_three_that_lose_sight_of_a_host_two_go_on_and_it_comes_to_them(
    open_at: OpenAt,
) -> None:
    with HostProcess(free_port()) as stopped:
        nodes = voting(open_at, stopped, 2)
        stopped.pause()
        have_another_host(nodes)
        nodes[0].put("job", b"here")
        stopped.unpause()
        # Who comes to the former host is sent on: it takes no more writes.
        late = open_at(stopped.port, "late")
        late.ear.has("job")
        assert late.put("round", b"r", 0)
        nodes[0].ear.has("round", b"r")


def test_nobody_waits_for_a_former_host_to_stand_again(open_at: OpenAt) -> None:
    """It was stopped, and is still first in line when the next host dies; but it has no node."""
    with HostProcess(free_port()) as stopped:
        nodes = voting(open_at, stopped, 3)
        stopped.pause()
        have_another_host(nodes)
        (host,) = hosting(nodes)
        stopped.unpause()
        open_at(stopped.port, "late")  # it sends on whoever comes
        others = [node for node in nodes if node is not host]
        before = [len(node.ear.events) for node in others]
        host.store.close()
        for node, since in zip(others, before, strict=True):
            node.ear.hears(Found, since)
        assert len(hosting(others)) == 1


def test_of_two_the_one_that_loses_sight_of_the_host_waits(open_at: OpenAt) -> None:
    with HostProcess(free_port()) as stopped:
        (node,) = voting(open_at, stopped, 1)
        stopped.pause()
        node.ear.hears(Lost)
        # It has given itself its vote, under the second term, and that was not enough.
        processes.wait_for(lambda: hosting_of(node)._promised_term > 1, 60.0, "it stands for host")
        stopped.unpause()
        node.ear.hears(Found)
        node.ear.has(node.key)
        assert not node.ear.was_forgotten()


def test_a_store_that_is_founded_anew_at_the_endpoint_yields_to_the_one_that_goes_on(
    open_at: OpenAt,
) -> None:
    """The others took over on other machines; then a node starts where the first host was."""
    with HostProcess(free_port()) as dying:
        nodes = voting(open_at, dying, 2)
        for node in nodes:
            hosting_of(node)._endpoint_here = None  # as if the endpoint were on another machine
    have_another_host(nodes)
    nodes[0].put("job", b"j")
    with HostProcess(dying.port):
        open_at(dying.port, "late", waits=False).ear.has("job")


def test_who_must_not_host_waits_for_the_host_to_come_back(open_at: OpenAt) -> None:
    port = free_port()
    node = open_at(port, "n", waits=False)
    node.ear.hears(Lost)
    with HostProcess(port):
        node.ear.hears(StoreSnapshot)
        assert not node.ear.last_snapshot().forgot
        node.register()
