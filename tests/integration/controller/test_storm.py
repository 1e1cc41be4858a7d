"""Everything at once: pods that go, edits, refusals, broken watches, and controllers that die."""

from __future__ import annotations

import random
import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.controller.conftest import NAMESPACE, SHORT_LEASE, wait_until_running
from tests.kube.kinds import JOB, LEASE, POD

if TYPE_CHECKING:
    from tests.integration.controller.conftest import Scene
    from tests.kube.cluster import FakeCluster
    from tests.kube.server import Request
    from tests.kube.store import Change

_JOBS = 5
_BLOWS = 150


def _is(job: dict[str, Any], condition: str) -> bool:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return any(one["type"] == condition and one["status"] == "True" for one in conditions)


@pytest.mark.parametrize("seed", [1, 2])
def test_after_the_storm_all_is_as_it_was_asked_for(seed: int, cluster: Scene) -> None:
    dice = random.Random(seed)
    wrong: list[str] = []

    def see(change: Change) -> None:
        if change.kind == JOB and change.type == "MODIFIED" and change.before is not None:
            name, before = change.item["metadata"]["name"], change.before
            ended = [one for one in ("Succeeded", "Failed") if _is(before, one)]
            wrong.extend(
                f"{name} is not {one} any more" for one in ended if not _is(change.item, one)
            )

    cluster.store.listeners.append(see)
    wanted = {f"job-{number}": dice.randint(1, 4) for number in range(_JOBS)}
    controller = cluster.start(*SHORT_LEASE)

    def refused(request: Request) -> bool:
        return request.kind != LEASE and request.verb != "watch" and dice.random() < 0.2

    with (
        cluster.trouble(refused, 500, "InternalError", "a storm"),
        cluster.trouble(
            lambda asked: refused(asked) and asked.verb == "patch", 409, "Conflict", ""
        ),
    ):
        for name, replicas in wanted.items():
            cluster.submit(name, replicas)
        for blow in range(_BLOWS):
            _strike(cluster, dice, wanted)
            if blow == _BLOWS // 2:
                controller.end(signal.SIGKILL)
                controller = cluster.start(*SHORT_LEASE)

    for name, replicas in wanted.items():
        wait_until_running(cluster, name, replicas)
    expected = {f"{name}-worker-{i}" for name, number in wanted.items() for i in range(number)}
    workers = cluster.store.list(POD, selector="app.kubernetes.io/component=worker")
    assert {pod["metadata"]["name"] for pod in workers} == expected
    assert wrong == []
    assert "Traceback" not in controller.log.read_text()


def _strike(cluster: FakeCluster, dice: random.Random, wanted: dict[str, int]) -> None:
    """One thing happens, at once; then the controller has a moment: a request of its."""
    seen = sum(cluster.counts().values())
    with cluster.store.lock:
        pods = sorted(pod["metadata"]["name"] for pod in cluster.store.list(POD))
        what = dice.choice(("lose", "lose", "end", "scale", "scale", "break", "forget"))
        if what == "lose" and pods:
            cluster.kubelet.lose(NAMESPACE, dice.choice(pods))
        elif what == "end" and pods:
            pod = dice.choice([name for name in pods if "worker" in name] or pods)
            cluster.kubelet.finish(NAMESPACE, pod, dice.choice((137, 143, 5)))
        elif what == "scale":
            name = dice.choice(sorted(wanted))
            wanted[name] = dice.randint(1, 4)
            cluster.scale(name, wanted[name])
        elif what in ("break", "forget"):
            cluster.break_watches(forget=what == "forget")
    if dice.random() < 0.3:
        with cluster.store.changed:
            cluster.store.changed.wait_for(lambda: sum(cluster.counts().values()) > seen, 2)
