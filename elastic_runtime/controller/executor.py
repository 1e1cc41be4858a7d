"""Performing a plan's actions, and telling what came of them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elastic_runtime.controller.decide.job_types import (
    Apply,
    CreatePod,
    DeleteJob,
    DeleteOwned,
    DeletePod,
    Problem,
)
from elastic_runtime.kubernetes.api_client import BY_KIND, JOBS, PODS, ApiError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_runtime.controller.cluster_state import World
    from elastic_runtime.controller.decide.job_types import Action
    from elastic_runtime.controller.views import Key
    from elastic_runtime.kubernetes.api_client import Api, Json


@dataclass(frozen=True)
class Outcome:
    """What came of some actions.

    Attributes:
        problems: what the API server forbids; trying again at once is of no use.
        again: something was not as we thought, or the server did not answer: look again soon.
        taken: names that something else has; that is only a problem if it stays so.
        deleted: the job itself was deleted.
    """

    problems: tuple[Problem, ...] = ()
    again: bool = False
    taken: tuple[Problem, ...] = ()
    deleted: bool = False


def adds(action: Action) -> bool:
    """Whether an action makes something, so that a quota or a rule may forbid it."""
    return isinstance(action, CreatePod | Apply)


class Performer:
    """Does what plans say.

    Args:
        api: the client.
        world: told of what the answers show, before any watch does.
    """

    def __init__(self, api: Api, world: World) -> None:
        self._api, self._world = api, world

    async def perform(self, key: Key, uid: str, actions: Sequence[Action]) -> Outcome:
        """Performs actions.

        Those that make something one after the other as long as none is refused, in groups that
        grow, so that a quota is not run against many times at once.

        Args:
            key: of the job.
            uid: of the job; it may be gone at any moment.
            actions: what is to be done.
        """
        errors = await self._all(key, uid, [one for one in actions if not adds(one)])
        making, size = [one for one in actions if adds(one)], 1
        while making and not errors:
            errors += await self._all(key, uid, making[:size])
            making, size = making[size:], 2 * size
        problems = {_problem(error) for error in errors if not (error.passing or error.conflict)}
        return Outcome(
            problems=tuple(sorted(problems, key=str)),
            again=any(error.passing or error.conflict for error in errors),
            taken=tuple(_taken(error) for error in errors if error.taken)[:1],
            deleted=any(isinstance(action, DeleteJob) for action in actions),
        )

    async def _all(self, key: Key, uid: str, actions: Sequence[Action]) -> list[ApiError]:
        done = await asyncio.gather(*(self._one(key, uid, action) for action in actions))
        return [error for error in done if error]

    async def _one(self, key: Key, uid: str, action: Action) -> ApiError | None:
        try:
            await self._do(key, uid, action)
        except ApiError as error:
            if error.gone and not adds(action):
                return None  # somebody else has deleted it
            return error
        return None

    async def _do(self, key: Key, uid: str, action: Action) -> None:
        api, world, (namespace, name) = self._api, self._world, key
        match action:
            case CreatePod():
                world.pods.learned(await api.create(PODS, namespace, action.manifest))
            case DeletePod():
                answer = await api.delete(PODS, namespace, action.name, action.uid, action.grace)
                if _is_deleting(answer):
                    world.pods.learned(answer)
            case Apply():
                await self._apply(key, uid, action)
            case DeleteOwned():
                await api.delete(BY_KIND[action.kind], namespace, action.name)
            case DeleteJob():
                await api.delete(JOBS, namespace, name, uid)

    async def _apply(self, key: Key, uid: str, action: Apply) -> None:
        """Makes an object so; what is not the job's is left alone, whatever its name.

        Applying would take a Service of somebody else's over, and the garbage collector would
        remove it with the job.
        """
        api, world = self._api, self._world
        shelves: dict[str, Any] = {
            "Pod": world.pods,
            "Service": world.services,
            "PodDisruptionBudget": world.budgets,
        }
        resource, shelf = BY_KIND[action.kind], shelves[action.kind]
        if action.name in shelf.of(key, uid):
            answer = await api.apply(resource, key[0], action.name, action.manifest)
        else:
            answer = await api.create(resource, key[0], action.manifest)
        shelf.learned(answer)


def _is_deleting(answer: Json) -> bool:
    return answer.get("kind") == "Pod" and bool(answer["metadata"].get("deletionTimestamp"))


def _taken(error: ApiError) -> Problem:
    text = "of something else, or of an earlier job of this name that has not ended yet"
    return Problem("NameTaken", f"{error.message}: {text}; trying again")


def _problem(error: ApiError) -> Problem:
    # The pod's name is in front of it: each pod would be a problem of its own.
    said = error.message.partition(" is forbidden: ")[2] or error.message
    if error.quota:
        return Problem("QuotaExceeded", f"{said}; trying again")
    if error.code == 403:
        return Problem("Forbidden", f"{said}; trying again")
    return Problem("Rejected", f"the API server refuses what the job asks for: {error.message}")
