"""The patch of a status, and what is tried again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.controller.cluster_state import ClusterState
from elastic_runtime.controller.controller_metrics import ControllerMetrics
from elastic_runtime.controller.decide.job_types import (
    ApplyManifest,
    CreatePod,
    JobPlan,
    NoteTopology,
    Observed,
)
from elastic_runtime.controller.reconcile import Reconciler, difference
from elastic_runtime.controller.workqueue import WorkQueue
from elastic_runtime.kubernetes.api_errors import ApiError
from tests.kube.patches import merged
from tests.unit.controller.loops import in_loop
from tests.unit.controller.small_api import SmallApi

if TYPE_CHECKING:
    from elastic_runtime.controller.decide.job_types import Action

_VALUES = st.recursive(
    st.integers() | st.text("xyz", max_size=3) | st.lists(st.integers(), max_size=2),
    lambda below: st.dictionaries(st.sampled_from("abcd"), below, max_size=3),
    max_leaves=8,
)
_STATUS = st.dictionaries(st.sampled_from("abcd"), _VALUES, max_size=4)

A = ("default", "a")


@given(_STATUS, _STATUS)
def test_the_patch_makes_the_new_status_of_the_old_one(before: Any, after: Any) -> None:
    assert merged(before, difference(before, after)) == after
    assert difference(after, after) == {}


class _Scene:
    """A reconciler whose plan is always the same.

    Args:
        server: an API server, as far as the plan needs one.
        actions: the plan.
    """

    def __init__(self, server: SmallApi, *actions: Action) -> None:
        self.now, self.told, self.seen = 1e9, list[str](), list[Observed]()
        self.server, self.queue, self.actions = server, WorkQueue(), actions
        self.state = ClusterState(self.queue.add)
        self.metrics = ControllerMetrics(
            self.queue.__len__, self.state.conditions, self.state.states
        )
        self.reconciler = Reconciler(
            cast("Any", server),
            self.state,
            self.queue,
            self._decide,
            lambda: self.now,
            self.metrics,
            lambda event: self.told.append(type(event).__name__),
        )
        server.owners = []  # so that what is made is no reason for another look
        self.learn()

    def _decide(self, _: Any, observed: Observed, __: float) -> JobPlan:
        self.seen.append(observed)
        return JobPlan(actions=self.actions)

    def learn(self, uid: str = "u", generation: int = 1, version: int = 1) -> None:
        """The job is there, and looks so."""
        meta = {"namespace": "default", "name": "a", "uid": uid, "generation": generation}
        self.state.update(
            {"metadata": {**meta, "resourceVersion": str(version)}, "spec": {}, "status": {}}
        )

    async def look(self) -> None:
        """The next look at the job, when there is a reason for one."""
        async with asyncio.timeout(10):
            assert await self.queue.get() == A
            await self.reconciler.reconcile(A)
            self.queue.done(A)


REFUSES = ApiError(500, "InternalError", "no", "POST")
FORBIDS = ApiError(403, "Forbidden", "exceeded quota", "POST")
POD: dict[str, Any] = {"kind": "Pod", "metadata": {"name": "p"}}


def makes(**refusals: ApiError) -> _Scene:
    """A plan to make something, and what of that is refused."""
    service = ApplyManifest({"kind": "Service", "metadata": {"name": "a"}})
    return _Scene(SmallApi(**refusals), CreatePod(0, POD, "wanted"), service)


@in_loop
async def test_a_clock_that_is_set_back_holds_up_no_try() -> None:
    scene = makes(create=REFUSES)
    for tries in (1, 2):
        await scene.look()
        assert scene.server.count("create") == tries
        scene.now -= 3600


@pytest.mark.parametrize(
    ("uid", "generation", "tries"),
    [("u", 1, 1), ("u", 2, 2), ("another", 1, 2)],
    ids=["the same", "edited", "another of this name"],
)
@in_loop
async def test_what_is_asked_for_otherwise_is_tried_at_once(
    uid: str, generation: int, tries: int
) -> None:
    scene = makes(create=FORBIDS)
    await scene.look()
    scene.learn(uid, generation, version=2)
    await scene.look()
    assert scene.server.count("create") == tries


@in_loop
async def test_a_job_that_goes_in_the_middle_is_no_error() -> None:
    scene = makes()
    create = scene.server.create

    async def goes(*args: Any) -> Any:
        scene.state.retain((), 1)
        return await create(*args)

    scene.server.create = goes  # type: ignore[method-assign]
    await scene.look()
    await scene.look()
    assert scene.server.count("create") == 2


# ---------------------------------------------------------------- where pods are


def places(code: int, reason: str) -> _Scene:
    """A plan to tell a pod where it is, which is refused so, and to make another one."""
    server = SmallApi(merge=ApiError(code, reason, "pods is forbidden", "PATCH"))
    return _Scene(server, NoteTopology("p", "u", "n1", ("rack",)), CreatePod(0, POD))


@in_loop
async def test_what_cannot_be_told_holds_up_no_pod_and_is_not_tried_in_a_loop() -> None:
    stage = places(403, "Forbidden")
    await stage.look()
    await stage.look()  # at once, to say so
    assert [one.reason for one in stage.seen[-1].asides] == ["TopologyUnknown"]
    assert stage.seen[-1].problems == ()
    for _ in range(3):
        stage.queue.add(A)
        await stage.look()
    assert (stage.server.count("merge"), stage.server.count("create")) == (1, 5)
    assert stage.told.count("ControllerRefused") == 1
    assert "refused_actions_total 0.0" in stage.metrics.text().decode()
    assert not stage.queue._timers


@in_loop
async def test_what_is_wrong_beside_it_does_not_hide_it() -> None:
    """It would be news again with each try, and an event each time."""

    stage = places(403, "Forbidden")
    await stage.look()
    stage.server.refusals["create"] = FORBIDS
    for _ in range(2):
        await stage.look()  # at once, and by the timer of the quota
    assert [len(seen.asides) for seen in stage.seen[1:]] == [1] * (len(stage.seen) - 1)
    assert any(seen.problems for seen in stage.seen)


@in_loop
async def test_a_server_that_is_away_is_asked_again_in_a_while() -> None:
    stage = places(500, "InternalError")
    await stage.look()
    stage.queue.add(A)
    await stage.look()
    assert (stage.server.count("merge"), stage.server.count("create")) == (1, 2)
    await stage.look()  # a timer of a second
    assert (stage.server.count("merge"), stage.server.count("create")) == (2, 3)
    assert stage.seen[-1].asides == ()


@in_loop
async def test_that_nodes_may_not_be_read_does_not_keep_a_pod_from_being_told_later() -> None:
    stage = places(500, "InternalError")
    stage.server.refusals["get"] = ApiError(403, "Forbidden", "nodes is forbidden", "GET")
    await stage.look()
    await stage.look()  # at once, to say so
    assert [one.reason for one in stage.seen[-1].asides] == ["TopologyUnknown"]
    for tried in (2, 3):
        await stage.look()  # a timer of seconds
        assert stage.server.count("merge") == tried
