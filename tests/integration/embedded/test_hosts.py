"""Which node hosts the store, and which one hosts it next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_runtime.rendezvous.store_contract import (
    Found,
    Lost,
    StoreSnapshot,
)
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


def test_of_several_on_one_machine_one_becomes_the_host(open_at: OpenAt) -> None:
    port = free_port()
    nodes = [open_at(port, f"n{i}", may_host=True) for i in range(5)]
    for node in nodes:
        node.ear.hears(StoreSnapshot)
    assert len(hosting(nodes)) == 1
    nodes[0].put("job", b"j")
    for node in nodes:
        node.ear.has("job", b"j")


def test_who_founds_a_store_is_not_told_of_a_loss(open_at: OpenAt) -> None:
    node = open_at(free_port(), "n", may_host=True)
    node.ear.hears(StoreSnapshot)
    assert node.ear.count(Lost) == 0


def test_when_the_host_dies_another_takes_over_with_an_empty_store(open_at: OpenAt) -> None:
    dying = HostProcess(free_port())
    nodes = [open_at(dying.port, f"n{i}", may_host=True) for i in range(3)]
    for node in nodes:
        node.ear.hears(StoreSnapshot)
        node.register()
    assert hosting(nodes) == []
    version = nodes[0].entry(nodes[0].key).version
    dying.kill()
    for node in nodes:
        node.ear.until(node.ear.was_forgotten, "that it forgot")
        node.ear.hears(Lost)
        node.ear.hears(Found)
    assert len(hosting(nodes)) == 1
    for node in nodes:
        node.register(b"again")
    assert len(nodes[0].store.read("")) == 3
    # What somebody remembers of the former store can be no condition that holds in this one.
    assert not nodes[0].put(nodes[0].key, b"late", version)


def test_of_three_that_lose_sight_of_a_host_two_go_on_and_it_comes_to_them(
    open_at: OpenAt,
) -> None:
    stopped = HostProcess(free_port())
    try:
        nodes = [open_at(stopped.port, f"n{i}", may_host=True) for i in range(2)]
        for node in nodes:
            node.ear.hears(StoreSnapshot)
            node.register()
        _wait_for_voters(nodes, 3)
        stopped.pause()
        for node in nodes:
            node.ear.until(node.ear.was_forgotten, "another host", 60.0)
        assert len(hosting(nodes)) == 1
        nodes[0].put("job", b"here")
        stopped.unpause()
        # Who comes to the former host is sent on: it takes no more writes.
        late = open_at(stopped.port, "late")
        late.ear.until(lambda: "job" in late.ear.known, "the store of the other host", 60.0)
        assert late.put("round", b"r", 0)
        nodes[0].ear.has("round", b"r")
    finally:
        stopped.kill()


def test_nobody_waits_for_a_former_host_to_stand_again(open_at: OpenAt) -> None:
    """It was stopped, and is still first in line when the next host dies; but it has no node."""
    stopped = HostProcess(free_port())
    try:
        nodes = [open_at(stopped.port, f"n{i}", may_host=True) for i in range(3)]
        for node in nodes:
            node.ear.hears(StoreSnapshot)
            node.register()
        _wait_for_voters(nodes, 4)
        stopped.pause()
        for node in nodes:
            node.ear.until(node.ear.was_forgotten, "another host", 60.0)
        (host,) = hosting(nodes)
        stopped.unpause()
        late = open_at(stopped.port, "late")
        late.ear.hears(StoreSnapshot)  # it sends on whoever comes
        others = [node for node in nodes if node is not host]
        before = [node.ear.count(Found) for node in others]
        host.store.close()
        for node, found in zip(others, before, strict=True):
            node.ear.until(lambda n=node, f=found: n.ear.count(Found) > f, "the next host", 60.0)
        assert len(hosting(others)) == 1
    finally:
        stopped.kill()


def test_of_two_the_one_that_loses_sight_of_the_host_waits(open_at: OpenAt) -> None:
    stopped = HostProcess(free_port())
    try:
        node = open_at(stopped.port, "n", may_host=True)
        node.ear.hears(StoreSnapshot)
        node.register()
        _wait_for_voters([node], 2)
        stopped.pause()
        node.ear.hears(Lost)
        # It has given itself its vote, under the second term, and that was not enough.
        processes.wait_for(lambda: hosting_of(node)._promised_term > 1, 60.0, "it stands for host")
        stopped.unpause()
        node.ear.hears(Found)
        node.ear.has(node.key)
        assert not node.ear.was_forgotten()
    finally:
        stopped.kill()


def test_a_store_that_is_founded_anew_at_the_endpoint_yields_to_the_one_that_goes_on(
    open_at: OpenAt,
) -> None:
    """The others took over on other machines; then a node starts where the first host was."""
    dying = HostProcess(free_port())
    nodes = [open_at(dying.port, f"n{i}", may_host=True) for i in range(2)]
    for node in nodes:
        node.ear.hears(StoreSnapshot)
        hosting_of(node)._endpoint_here = None  # as if the endpoint were on another machine
    _wait_for_voters(nodes, 3)
    dying.kill()
    for node in nodes:
        node.ear.until(node.ear.was_forgotten, "another host")
    nodes[0].put("job", b"j")
    again = HostProcess(dying.port)
    try:
        late = open_at(dying.port, "late")
        late.ear.until(lambda: "job" in late.ear.known, "the store of the job", 60.0)
    finally:
        again.kill()


def hosting_of(node: Node) -> Hosting:
    assert isinstance(node.store, EmbeddedStore)
    return node.store._hosting


def _wait_for_voters(nodes: list[Node], count: int) -> None:
    def known() -> bool:
        lists = [hosting_of(node)._voters for node in nodes]
        return all(one is not None and len(one.now) == count and not one.before for one in lists)

    processes.wait_for(known, 60.0, "all know who votes")


def test_who_must_not_host_waits_for_the_host_to_come_back(open_at: OpenAt) -> None:
    port = free_port()
    node = open_at(port, "n")
    node.ear.hears(Lost)
    host = HostProcess(port)
    try:
        node.ear.hears(StoreSnapshot)
        assert not node.ear.last_snapshot().forgot
        node.register()
    finally:
        host.kill()
