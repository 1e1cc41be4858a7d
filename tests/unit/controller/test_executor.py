"""What comes of a plan's actions and events when the API server does them, or knows better."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from elastic_runtime.controller.cluster_state import ClusterState
from elastic_runtime.controller.decide.job_types import (
    ApplyManifest,
    CheckPod,
    CreatePod,
    DeleteJob,
    DeletePod,
    JobEvent,
    NoteTopology,
    PodView,
    Problem,
)
from elastic_runtime.controller.event_recorder import record_event
from elastic_runtime.controller.executor import Executor, NoteOutcome, Outcome
from elastic_runtime.kubernetes.api_errors import NO_ANSWER, ApiError
from elastic_runtime.limits import TOPOLOGY_FILE_TIMEOUT
from tests.unit.controller.small_api import KEY, UID, SmallApi

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_runtime.controller.decide.job_types import Action

SERVICE: dict[str, Any] = {"kind": "Service", "metadata": {"name": "digits-etcd"}}


def _pods(count: int) -> list[Action]:
    names = [f"pod-{index}" for index in range(count)]
    return [CreatePod(i, {"kind": "Pod", "metadata": {"name": n}}) for i, n in enumerate(names)]


def _executor(server: SmallApi, state: ClusterState | None) -> Executor:
    return Executor(cast("Any", server), state or ClusterState(lambda key: None))


def _execute(
    server: SmallApi, actions: Sequence[Action], state: ClusterState | None = None
) -> Outcome:
    return asyncio.run(_executor(server, state).execute(KEY, UID, actions))


def test_what_a_quota_may_refuse_comes_after_the_rest() -> None:
    server = SmallApi()
    assert _execute(server, [*_pods(4), DeletePod("old", "u")]) == Outcome()
    assert server.asked == ["delete old", *(f"create pod-{n}" for n in range(4))]


def test_a_quota_is_run_against_once() -> None:
    said = 'pods "pod-0" is forbidden: exceeded quota: small'
    server = SmallApi(create=ApiError(403, "Forbidden", said, "POST"))
    outcome = _execute(server, _pods(4))
    assert server.asked == ["create pod-0"]
    # Without the name of the pod: each would be a problem of its own, with an event of its own.
    assert outcome.problems == (Problem("QuotaExceeded", "exceeded quota: small; trying again"),)
    assert not outcome.again


def test_groups_grow_as_long_as_nothing_is_refused() -> None:
    quota = ApiError(403, "Forbidden", 'pods "x" is forbidden: exceeded quota: small', "POST")
    server = SmallApi(create=quota, after=4)
    _execute(server, _pods(20))
    assert len(server.asked) == 1 + 2 + 4


def test_a_server_that_does_not_answer_is_no_problem_of_the_jobs() -> None:
    outcome = _execute(SmallApi(create=ApiError(0, NO_ANSWER, "it is away", "POST")), _pods(1))
    assert outcome == Outcome(again=True)


def test_what_somebody_else_has_deleted_is_deleted() -> None:
    gone = ApiError(404, "NotFound", "no such pod", "DELETE")
    assert _execute(SmallApi(delete=gone), [DeletePod("old", "u")]) == Outcome()
    assert _execute(SmallApi(create=gone), _pods(1)).problems, (
        "a namespace that is gone is a problem"
    )


def test_a_name_that_something_else_has_is_told_and_not_taken_over() -> None:
    taken = ApiError(409, "AlreadyExists", "digits-etcd already exists", "POST")
    server = SmallApi(create=taken)
    outcome = _execute(server, [ApplyManifest(SERVICE)])
    assert server.asked == ["create digits-etcd"]
    assert [problem.reason for problem in outcome.taken] == ["NameTaken"]
    assert outcome.again and not outcome.problems


def test_what_was_made_is_known_before_any_watch_tells_it() -> None:
    server, state = SmallApi(), ClusterState(lambda key: None)
    _execute(server, [ApplyManifest(SERVICE)], state)
    assert _execute(server, [ApplyManifest(SERVICE), DeleteJob()], state) == Outcome(deleted=True)
    assert server.asked == ["create digits-etcd", "delete digits", "apply digits-etcd"]


CHECK = CheckPod({"kind": "Pod", "metadata": {"name": "check"}}, mark="m1")


def test_a_pod_that_could_be_made_is_told_by_its_mark() -> None:
    server = SmallApi()
    assert _execute(server, [CHECK, *_pods(1)]) == Outcome(checked="m1")
    assert server.asked == ["check check", "create pod-0"]


@pytest.mark.parametrize(
    ("code", "said", "outcome"),
    [
        (500, "not now", Outcome(again=True)),
        (400, 'strict decoding error: unknown field "spec.arg"', None),
        (422, 'Pod "check" is invalid: spec.arg: no', None),
        (403, "pods is forbidden: no service account", None),
        (403, "pods is forbidden: exceeded quota: small", Outcome(checked="m1")),
        (400, "a webhook does not support dry run", Outcome(checked="m1")),
    ],
)
def test_only_what_is_wrong_with_the_pod_itself_is_no_answer(
    code: int, said: str, outcome: Outcome | None
) -> None:
    found = _execute(SmallApi(check=ApiError(code, "No", said, "POST pods")), [CHECK])
    if outcome is None:
        assert found.checked == ""
        assert len(found.problems) == 1
    else:
        assert found == outcome


# ---------------------------------------------------------------- where pods are


def _note(
    server: SmallApi,
    count: int = 1,
    state: ClusterState | None = None,
    within: float = TOPOLOGY_FILE_TIMEOUT,
) -> NoteOutcome:
    notes = [NoteTopology(f"pod-{n}", f"u{n}", "n1", ("zone", "rack")) for n in range(count)]
    work = _executor(server, state).note(KEY, notes, within)
    return asyncio.run(asyncio.wait_for(work, 20))


FORBIDDEN = ApiError(403, "Forbidden", "nodes is forbidden", "GET")
AWAY = ApiError(0, NO_ANSWER, "it is away", "GET")
ANNOTATION = "elastic.pytorch.org/topology"


def test_pods_are_told_what_their_node_is_labelled_with() -> None:
    server, state = SmallApi(), ClusterState(lambda key: None)
    assert _note(server, 4, state) == NoteOutcome()
    assert server.count("get") == 1
    assert server.told["pod-3"] == {"uid": "u3", "annotations": {ANNOTATION: "z/n1"}}
    known = state.pods.owned_by(KEY, UID)["pod-3"]
    assert isinstance(known, PodView) and known.topology == "z/n1"


def test_who_may_not_read_nodes_tells_pods_not_to_wait() -> None:
    server = SmallApi(get=FORBIDDEN)
    outcome = _note(server, 4)
    assert {meta["annotations"][ANNOTATION] for meta in server.told.values()} == {"-"}
    assert server.count("get") == 1
    assert outcome.problem and outcome.problem.reason == "TopologyUnknown"
    assert "nodes is forbidden" in outcome.problem.message
    assert not outcome.refused and not outcome.again


@pytest.mark.parametrize(
    ("code", "said"), [(403, "pods is forbidden"), (422, "ValidatingAdmissionPolicy denied it")]
)
def test_who_may_not_patch_pods_tries_it_once(code: int, said: str) -> None:
    server = SmallApi(merge=ApiError(code, "Forbidden", said, "PATCH"))
    outcome = _note(server, 20)
    assert outcome.problem and outcome.refused and not outcome.again
    assert server.count("merge") == 1


@pytest.mark.parametrize("refusals", [{"get": AWAY}, {"merge": AWAY}], ids=str)
def test_a_server_that_is_away_is_no_problem_and_asked_again(refusals: dict[str, ApiError]) -> None:
    server = SmallApi(**refusals)
    assert _note(server) == NoteOutcome(again=True)
    assert server.told == {}, "a pod is not told that nothing is known"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (404, "no such pod"),
        (409, "another one"),
        (422, "metadata.uid: Invalid value: field is immutable"),
    ],
)
def test_a_pod_that_is_gone_needs_nothing(code: int, said: str) -> None:
    assert _note(SmallApi(merge=ApiError(code, "No", said, "PATCH"))) == NoteOutcome()


def test_a_server_that_does_not_answer_is_not_waited_for() -> None:
    class _Hangs(SmallApi):
        async def merge(self, *args: Any) -> Any:
            if args[2] == "pod-2":
                await asyncio.Event().wait()
            return await super().merge(*args)

    server = _Hangs()
    assert _note(server, 4, within=0.1) == NoteOutcome(again=True)
    assert set(server.told) == {"pod-0", "pod-1"}


# ---------------------------------------------------------------- events


def test_an_event_is_about_its_job_and_fits() -> None:
    class _Events:
        async def create(self, resource: Any, namespace: str, item: Any) -> None:
            assert (resource.plural, namespace) == ("events", "team")
            created.append(item)

    created: list[Any] = []
    meta = {"name": "x" * 253, "namespace": "team", "uid": "u1", "resourceVersion": "7"}
    job = {"apiVersion": "elastic.pytorch.org/v1alpha1", "kind": "ElasticJob", "metadata": meta}
    event = JobEvent("Warning", "QuotaExceeded", "m" * 5000)
    for _ in range(2):
        asyncio.run(record_event(cast("Any", _Events()), job, event))
    first, _ = created
    assert (first["type"], first["reason"]) == ("Warning", "QuotaExceeded")
    about = first["involvedObject"]
    assert (about["name"], about["uid"], about["kind"]) == ("x" * 253, "u1", "ElasticJob")
    assert len(first["message"]) == 1024, "a longer one is refused"
    names = [item["metadata"]["name"] for item in created]
    assert names == sorted(set(names)), "lists are in the order of names"
    assert all(len(name) <= 253 for name in names)
