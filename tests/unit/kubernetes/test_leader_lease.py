"""Who leads: never two, and one soon after another has gone. No time passes but the test's."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from elastic_runtime.clock import ManualClock
from elastic_runtime.events import silent
from elastic_runtime.kubernetes import leader_lease
from elastic_runtime.kubernetes.api_errors import NO_ANSWER, ApiError
from elastic_runtime.kubernetes.leader_lease import LeaderLease, LostLease

if TYPE_CHECKING:
    from collections.abc import Callable


class _Server:
    """Keeps one Lease as an API server does: a write on top of an old version is a conflict."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] = {}
        self.version = 0
        self.away = False
        self.loses_answers = False

    async def get(self, path: str) -> Any:
        self._answer()
        if not self.lease:
            raise ApiError(404, "NotFound", "no such Lease", "GET")
        return self.lease

    async def create(self, _: Any, __: str, item: Any) -> Any:
        return self.write(item, taken=bool(self.lease))

    async def replace(self, _: Any, __: str, ___: str, item: Any) -> Any:
        version = item["metadata"]["resourceVersion"]
        return self.write(item, taken=version != str(self.version))

    @property
    def holder(self) -> str:
        return str(self.lease["spec"]["holderIdentity"])

    def _answer(self) -> None:
        if self.away:
            raise ApiError(0, NO_ANSWER, "it is away", "PUT")

    def write(self, item: Any, *, taken: bool) -> Any:
        self._answer()
        if taken:
            raise ApiError(409, "Conflict", "it has changed", "PUT")
        self.version += 1
        meta = {**item["metadata"], "resourceVersion": str(self.version)}
        self.lease = {**item, "metadata": meta}
        if self.loses_answers:
            self.loses_answers = False
            raise ApiError(0, NO_ANSWER, "it was cut off", "PUT")
        return self.lease


class _Stopped(Exception):
    """The test has seen enough."""


class _Scene:
    """A server, candidates, and a clock that sleeping moves on."""

    def __init__(self) -> None:
        self.server, self.clock = _Server(), ManualClock()
        self.meanwhile: Callable[[], None] = lambda: None

    def candidate(self, identity: str) -> LeaderLease:
        client = cast("Any", self.server)
        return LeaderLease(client, "default", "controller", identity, self.clock, silent)

    async def sleep(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.meanwhile()


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> _Scene:
    found = _Scene()
    replaced = SimpleNamespace(sleep=found.sleep, timeout=asyncio.timeout)
    monkeypatch.setattr(leader_lease, "asyncio", replaced)
    return found


def test_a_leader_that_renews_is_never_taken_over(scene: _Scene) -> None:
    first, second = scene.candidate("first"), scene.candidate("second")
    asyncio.run(first.acquire())
    rounds = 0

    def renew() -> None:
        nonlocal rounds
        rounds += 1
        scene.server.write(scene.server.lease, taken=False)  # the first one's renewal
        if rounds == 20:
            raise _Stopped

    scene.meanwhile = renew
    with pytest.raises(_Stopped):
        asyncio.run(second.acquire())
    assert scene.server.holder == "first"


def test_a_lease_that_stays_unchanged_is_taken_over_after_its_time(scene: _Scene) -> None:
    asyncio.run(scene.candidate("first").acquire())
    asyncio.run(scene.candidate("second").acquire())
    assert scene.server.holder == "second"
    assert scene.clock.now() > 15.0, "seconds, as the Lease itself says"


def test_a_lease_that_was_released_is_free_at_once(scene: _Scene) -> None:
    first = scene.candidate("first")
    asyncio.run(first.acquire())
    asyncio.run(first.release())
    asyncio.run(scene.candidate("second").acquire())
    assert (scene.server.holder, scene.clock.now()) == ("second", 0.0)


def test_a_leader_without_a_server_gives_up_before_another_may_lead(scene: _Scene) -> None:
    leader = scene.candidate("first")
    asyncio.run(leader.acquire())
    scene.server.away = True
    with pytest.raises(LostLease, match=r"not be renewed in time.*it is away"):
        asyncio.run(leader.hold())
    assert scene.clock.now() < 15.0


def test_a_leader_whose_lease_another_has_ends_at_once(scene: _Scene) -> None:
    leader = scene.candidate("first")
    asyncio.run(leader.acquire())
    lease = scene.server.lease
    taken = {**lease, "spec": {**lease["spec"], "holderIdentity": "second"}}
    scene.server.write(taken, taken=False)
    with pytest.raises(LostLease, match="another one leads now"):
        asyncio.run(leader.hold())
    assert scene.server.holder == "second"


def test_a_renewal_whose_answer_was_lost_costs_no_lease(scene: _Scene) -> None:
    leader = scene.candidate("first")
    asyncio.run(leader.acquire())
    scene.server.loses_answers = True

    def stop() -> None:
        if scene.server.version >= 5:
            raise _Stopped

    scene.meanwhile = stop
    with pytest.raises(_Stopped):
        asyncio.run(leader.hold())
    assert scene.server.holder == "first"
