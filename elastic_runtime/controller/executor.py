"""Creates and deletes in the cluster what a decision asks for, and says what came of it."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elastic_runtime.controller.decide.job_types import (
    ApplyManifest,
    ApplyPodGroup,
    CheckPod,
    CreatePod,
    DeleteJob,
    DeleteOwned,
    DeletePod,
    DeletePodGroup,
    NoteTopology,
    PatchPod,
    Problem,
)
from elastic_runtime.controller.decide.node_topology import TOPOLOGY_ANNOTATION, levels, unknown
from elastic_runtime.controller.decide.rollout import refusal
from elastic_runtime.controller.spec.job_spec import JOBS
from elastic_runtime.controller.spec.scheduling_spec import COSCHEDULING, KAI, NATIVE, VOLCANO
from elastic_runtime.kubernetes.api_errors import ApiError
from elastic_runtime.kubernetes.api_resources import (
    DISRUPTION_BUDGETS,
    PODS,
    SERVICES,
    Resource,
)
from elastic_runtime.kubernetes.node_labels import NodeLabels
from elastic_runtime.limits import TOPOLOGY_FILE_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_runtime.controller.cluster_state import ClusterState
    from elastic_runtime.controller.decide.job_types import Action
    from elastic_runtime.controller.views import Key
    from elastic_runtime.kubernetes.api_client import ApiClient, Json


_RESOURCES = {"Pod": PODS, "Service": SERVICES, "PodDisruptionBudget": DISRUPTION_BUDGETS}
# Where a scheduler's PodGroups may be: the newer place first.
_POD_GROUPS = {
    gang: tuple(Resource(f"/apis/{version}", "podgroups") for version in versions)
    for gang, versions in {
        COSCHEDULING: ("scheduling.x-k8s.io/v1alpha1",),
        VOLCANO: ("scheduling.volcano.sh/v1beta1",),
        KAI: ("scheduling.kai.nvidia.com/v2alpha2", "scheduling.run.ai/v2alpha2"),
        NATIVE: ("scheduling.k8s.io/v1beta1",),
    }.items()
}


@dataclass(frozen=True)
class Outcome:
    """What came of some actions.

    Attributes:
        problems: what the API server forbids; trying again at once is of no use.
        again: something was not as we thought, or the server did not answer: look again soon.
        taken: names that something else has; that is only a problem if it stays so.
        deleted: the job itself was deleted.
        checked: the mark of a pod that was checked, and can be made.
    """

    problems: tuple[Problem, ...] = ()
    again: bool = False
    taken: tuple[Problem, ...] = ()
    deleted: bool = False
    checked: str = ""


@dataclass(frozen=True)
class NoteOutcome:
    """What came of telling pods where they are.

    Attributes:
        problem: what the API server forbids; None: nothing.
        refused: pods could not be told; trying again at once is of no use.
        again: the server did not answer: try again soon.
    """

    problem: Problem | None = None
    refused: bool = False
    again: bool = False


def creates(action: Action) -> bool:
    """Whether an action makes something, or would, so that it may be refused."""
    return isinstance(action, CreatePod | CheckPod | ApplyManifest | ApplyPodGroup)


class Executor:
    """Does what plans say.

    Args:
        client: asks the API server.
        state: updated with what the answers show, before any watch shows it.
    """

    def __init__(self, client: ApiClient, state: ClusterState) -> None:
        self._client, self._state = client, state
        self._nodes = NodeLabels(client, time.monotonic)

    async def execute(self, key: Key, uid: str, actions: Sequence[Action]) -> Outcome:
        """Performs actions.

        Those that make something one after the other as long as none is refused, in groups that
        grow, so that a quota is not run against many times at once.

        Args:
            key: of the job.
            uid: of the job; it may be gone at any moment.
            actions: what is to be done.
        """
        failed = await self._all(key, uid, [one for one in actions if not creates(one)])
        making, size, checked = [one for one in actions if creates(one)], 1, ""
        while making and not failed:
            group = making[:size]
            places = [place for place, one in enumerate(group) if isinstance(one, ApplyPodGroup)]
            group = group[: places[0] + 1] if places else group  # its pods come after it
            failed += await self._all(key, uid, group)
            refused = [action for action, _ in failed]
            done = [one for one in group if isinstance(one, CheckPod)]
            checked = next((one.mark for one in done if one not in refused), checked)
            making, size = making[len(group) :], 2 * size
        errors = [error for _, error in failed]
        problems = {_problem(action, error) for action, error in failed if _is_final(error)}
        return Outcome(
            problems=tuple(sorted(problems, key=str)),
            again=not all(map(_is_final, errors)),
            taken=tuple(_taken(error) for error in errors if error.already_exists)[:1],
            deleted=any(isinstance(action, DeleteJob) for action in actions),
            checked=checked,
        )

    async def note(
        self, key: Key, notes: Sequence[NoteTopology], within: float = TOPOLOGY_FILE_TIMEOUT
    ) -> NoteOutcome:
        """Tells pods where they are, apart from all else: it must not hold that up.

        In groups that grow, as long as none is refused.

        Args:
            key: of the job.
            notes: which pods.
            within: how long it may take, in seconds; no agent waits for longer. Who was not told
                by then is to be told again.
        """
        unread: list[ApiError] = []
        untold: list[ApiError] = []
        rest, size = list(notes), 1
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                while rest and not untold:
                    done = await asyncio.gather(*(self._note(key[0], one) for one in rest[:size]))
                    unread += [error for error, _ in done if error]
                    untold += [error for _, error in done if error]
                    rest, size = rest[size:], 2 * size
        late = bool(rest) and not untold
        final = [error for error in (*unread, *untold) if not error.transient]
        return NoteOutcome(
            unknown(final[0].message) if final else None,
            refused=any(not error.transient for error in untold),
            again=late or any(error.transient for error in untold),
        )

    async def _note(
        self, namespace: str, note: NoteTopology
    ) -> tuple[ApiError | None, ApiError | None]:
        """Tells one pod; what went wrong with its node, and with itself.

        That nodes may not be read is told to the pod as well, or its agent would wait for more.
        """
        unread, values = None, tuple[str, ...]()
        try:
            values = await self._nodes.read(note.node, note.labels)
        except ApiError as error:
            if error.transient:
                return None, error
            unread = error
        metadata = {"uid": note.uid, "annotations": {TOPOLOGY_ANNOTATION: levels(values)}}
        try:
            answer = await self._client.merge(PODS, namespace, note.name, {"metadata": metadata})
        except ApiError as error:
            return unread, None if _is_another(error) else error
        self._state.pods.update(answer)
        return unread, None

    async def _all(
        self, key: Key, uid: str, actions: Sequence[Action]
    ) -> list[tuple[Action, ApiError]]:
        done = await asyncio.gather(*(self._one(key, uid, action) for action in actions))
        return [(action, error) for action, error in zip(actions, done, strict=True) if error]

    async def _one(self, key: Key, uid: str, action: Action) -> ApiError | None:
        try:
            await self._do(key, uid, action)
        except ApiError as error:
            if error.not_found and not creates(action):
                return None  # it was deleted meanwhile
            if isinstance(action, PatchPod) and _is_another(error):
                return None
            return error
        return None

    async def _do(self, key: Key, uid: str, action: Action) -> None:
        client, state, (namespace, name) = self._client, self._state, key
        match action:
            case CreatePod():
                state.pods.update(await client.create(PODS, namespace, action.manifest))
            case CheckPod():
                await self._check(namespace, action)
            case DeletePod():
                answer = await client.delete(PODS, namespace, action.name, action.uid, action.grace)
                if _is_deleting(answer):
                    state.pods.update(answer)
            case ApplyManifest():
                await self._apply(key, uid, action)
            case PatchPod():
                patch = {"metadata": {"uid": action.uid, **action.metadata}}
                answer = await client.merge_strategically(PODS, namespace, action.name, patch)
                if not _is_gone(answer):
                    state.pods.update(answer)
            case ApplyPodGroup():
                await self._apply_pod_group(namespace, action)
            case DeletePodGroup():
                await self._delete_pod_group(namespace, action)
            case DeleteOwned():
                await client.delete(_RESOURCES[action.kind], namespace, action.name)
            case DeleteJob():
                await client.delete(JOBS, namespace, name, uid)
            case NoteTopology():
                await self.note(key, [action])

    async def _check(self, namespace: str, action: CheckPod) -> None:
        """Has a pod checked; only what is wrong with the pod itself is of interest.

        A quota may have room by the time when it is created, and a webhook may refuse dry runs.
        What is forbidden otherwise (a service account that is not there) stays so.
        """
        try:
            await self._client.check(PODS, namespace, action.manifest)
        except ApiError as error:
            forbidden = error.code == 403 and not error.quota_exceeded
            if error.malformed or error.transient or forbidden:
                raise

    async def _apply_pod_group(self, namespace: str, action: ApplyPodGroup) -> None:
        """Makes a PodGroup, of the first version that the cluster has."""
        name, places = action.manifest["metadata"]["name"], _POD_GROUPS[action.gang]
        for resource in places:
            manifest = {"apiVersion": resource.root.removeprefix("/apis/"), **action.manifest}
            try:
                await self._client.apply(resource, namespace, name, manifest)
                return
            except ApiError as error:
                if not error.not_found or resource is places[-1]:
                    raise

    async def _delete_pod_group(self, namespace: str, action: DeletePodGroup) -> None:
        for resource in _POD_GROUPS[action.gang]:
            try:
                await self._client.delete(resource, namespace, action.name)
            except ApiError as error:
                if not error.not_found:  # of this version there is none
                    raise

    async def _apply(self, key: Key, uid: str, action: ApplyManifest) -> None:
        """Makes an object so; what is not the job's is left alone, whatever its name.

        Applying would take over another owner's Service, and the garbage collector would
        remove it with the job.
        """
        client, state = self._client, self._state
        caches: dict[str, Any] = {
            "Pod": state.pods,
            "Service": state.services,
            "PodDisruptionBudget": state.budgets,
        }
        resource, cache = _RESOURCES[action.kind], caches[action.kind]
        if action.name in cache.owned_by(key, uid):
            answer = await client.apply(resource, key[0], action.name, action.manifest)
        else:
            # What users say of etcd's pod is in it, and no dry run was made of that.
            strict = action.kind == "Pod"
            answer = await client.create(resource, key[0], action.manifest, strict)
        cache.update(answer)


def _is_gone(answer: Json) -> bool:
    """Whether an object that is changed was only held by what the change has taken away."""
    meta = answer["metadata"]
    grace = meta.get("deletionGracePeriodSeconds")
    return bool(meta.get("deletionTimestamp")) and not meta.get("finalizers") and not grace


def _is_another(error: ApiError) -> bool:
    """Whether a pod is gone, or another one has its name by now.

    A uid in a patch that is not the object's is an invalid change of it to the API server:
    https://github.com/kubernetes/kubernetes/blob/v1.34.0/pkg/controller/controller_ref_manager.go
    """
    return (
        error.not_found or error.conflict or (error.code == 422 and "metadata.uid" in error.message)
    )


def _is_deleting(answer: Json) -> bool:
    return answer.get("kind") == "Pod" and bool(answer["metadata"].get("deletionTimestamp"))


def _taken(error: ApiError) -> Problem:
    text = "of something else, or of an earlier job of this name that has not ended yet"
    return Problem("NameTaken", f"{error.message}: {text}; trying again")


def _is_final(error: ApiError) -> bool:
    """Whether the same request will be answered so again."""
    return not (error.transient or error.conflict)


def _problem(action: Action, error: ApiError) -> Problem:
    # The pod's name is in front of it: each pod would be a problem of its own.
    said = error.message.partition(" is forbidden: ")[2] or error.message
    if error.quota_exceeded:
        return Problem("QuotaExceeded", f"{said}; trying again")
    if error.malformed and isinstance(action, CheckPod | CreatePod):
        return refusal(error.message)
    if isinstance(action, ApplyPodGroup) and error.not_found:
        where = " or ".join(one.root.removeprefix("/apis/") for one in _POD_GROUPS[action.gang])
        text = (
            f"this cluster has no PodGroups of {action.gang} ({where}): have it installed, or "
            "leave out gang"
        )
        return Problem("NoGangScheduler", text, "spec.scheduling.gang")
    if error.code == 403:
        return Problem("Forbidden", f"{said}; trying again")
    etcd = isinstance(action, ApplyManifest) and action.kind == "Pod"
    said = error.message.partition("strict decoding error: ")[2] or error.message
    text = f"the API server refuses what the job asks for: {said}"
    return Problem("Rejected", text, "spec.etcd.template" if etcd else "")
