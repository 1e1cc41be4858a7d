"""Faults of several acts: they begin when all is well, and end with as many nodes as before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.chaos.in_place_plan import Fault, Kind, Pace, Target

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.chaos.fleet import Node
    from tests.chaos.in_place_cluster import InPlaceCluster

# Longer than the time without a step that is a hang.
_SLOW = 6.0


def slow_replacement(cluster: InPlaceCluster) -> str:
    """A worker is killed, all others wait for its replacement, and that takes long."""
    count = len(cluster.elders)
    cluster.scale(cluster.limit, least=count)
    cluster.be_slow(_SLOW)
    done = cluster.act(Fault(Kind.KILL_WORKER, Target.LAST, Pace.CALM))
    cluster.until_calm()
    cluster.scale(cluster.limit)
    return done


def silent_then_left(cluster: InPlaceCluster) -> str:
    """The first node is silent; the others train on, save and leave; it is back, and goes on."""
    others = _without_first(cluster)
    cluster.take_out(others, Kind.ASK)
    return _again(cluster, others)


def silent_then_killed(cluster: InPlaceCluster) -> str:
    """The same, and the others are killed after they have saved."""
    others = _without_first(cluster)
    cluster.until_saved()
    cluster.take_out(others, Kind.KILL_NODE)
    return _again(cluster, others)


def spare_then_left(cluster: InPlaceCluster) -> str:
    """The first node is silent and comes back as a spare; the others save and leave."""
    others = _without_first(cluster)
    cluster.scale(len(others))
    cluster.resume()
    cluster.wait(lambda: cluster.is_spare(cluster.nodes[0]), "the first node as a spare")
    cluster.take_out(others, Kind.ASK)
    _until_gone(cluster, others)
    cluster.start(len(others))
    cluster.scale(cluster.most)
    return _names(others)


def _without_first(cluster: InPlaceCluster) -> list[Node]:
    """Silences the first node, and waits until the others train without it."""
    first = cluster.nodes[0]
    others = [node for node in cluster.elders if node is not first]
    number = cluster.round
    cluster.silence(first, whole=True)
    cluster.wait(lambda: _trains(cluster, number, others), "steps without the first node")
    return others


def _trains(cluster: InPlaceCluster, after: int, nodes: list[Node]) -> bool:
    cluster.read()
    newer = cluster.round > after and cluster.steps_here > 9
    return newer and cluster.trains(nodes, len(nodes))


def _again(cluster: InPlaceCluster, others: list[Node]) -> str:
    _until_gone(cluster, others)
    cluster.resume()
    cluster.start(len(others))
    return _names(others)


def _until_gone(cluster: InPlaceCluster, nodes: list[Node]) -> None:
    cluster.wait(lambda: not any(node.alive for node in nodes), f"the end of {_names(nodes)}")


def _names(nodes: list[Node]) -> str:
    return ", ".join(node.name for node in nodes)


PLAYS: dict[Kind, Callable[[InPlaceCluster], str]] = {
    Kind.SLOW: slow_replacement,
    Kind.SILENT_THEN_LEFT: silent_then_left,
    Kind.SILENT_THEN_KILLED: silent_then_killed,
    Kind.SPARE_THEN_LEFT: spare_then_left,
}
