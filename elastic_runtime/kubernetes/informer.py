"""Following all objects of a kind, through breaks of the watch and gaps in what it tells."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from elastic_runtime.kubernetes.api_client import ApiError

if TYPE_CHECKING:
    from collections.abc import Collection

    from elastic_runtime.events import Emit
    from elastic_runtime.kubernetes.api_client import Api, Json, Resource

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 30.0
# Objects in one answer: a thousand pods at once would be most of this process' memory.
_PAGE = "100"


class Follower(Protocol):
    """Who is told what there is."""

    def learned(self, item: Json) -> None:
        """An object is there, and looks so."""

    def only(self, uids: Collection[str], version: int) -> None:
        """Nothing else was there at that version."""

    def happened(self, type: str, item: Json) -> None:
        """An object was ``ADDED``, ``MODIFIED`` or ``DELETED``."""


@dataclass
class Watch:
    """Follows the objects of one kind for as long as it runs.

    A list says what there is; a watch says what happens from then on, and goes on at its last
    version when it breaks. When the server has forgotten that version, what happened in between
    is lost, deletions above all: a new list replaces everything.

    Attributes:
        api: the client.
        resource: the kind.
        namespace: "" for all of them.
        selector: of labels, on the server's side.
        follower: is told.
        emit: where breaks are reported.
    """

    api: Api
    resource: Resource
    namespace: str
    selector: str
    follower: Follower
    emit: Emit

    def __post_init__(self) -> None:
        self.listed = asyncio.Event()
        self._version = ""
        self._pause = _FIRST_PAUSE

    async def run(self) -> None:
        """Follows; never ends by itself."""
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch()
                pause = _FIRST_PAUSE  # the server ends a watch after a while: that is no fault
            except ApiError as error:
                pause = self._failed(error)
            await asyncio.sleep(pause)

    def _failed(self, error: ApiError) -> float:
        if error.expired or not error.passing:
            self._version = ""
        if error.expired:
            return 0.0
        self.emit("controller.watch_broken", kind=self.resource.plural, reason=str(error))
        self._pause, pause = min(2 * self._pause, _LONGEST_PAUSE), self._pause
        return pause

    async def _list(self) -> None:
        path, query = self.resource.path(self.namespace), {**self._query(), "limit": _PAGE}
        uids: set[str] = set()
        while True:
            found = await self.api.get(path, query)
            for item in found.get("items") or ():
                uids.add(item["metadata"]["uid"])
                self.follower.learned(item)
            if not (more := found["metadata"].get("continue")):
                break
            query["continue"] = more
        self._version = str(found["metadata"]["resourceVersion"])
        self.follower.only(uids, int(self._version))
        self.listed.set()

    async def _watch(self) -> None:
        path = self.resource.path(self.namespace)
        async for event in self.api.watch(path, self._version, self._query()):
            item: Any = event["object"]
            self._version = str(item["metadata"]["resourceVersion"])
            self._pause = _FIRST_PAUSE
            if event["type"] != "BOOKMARK":
                self.follower.happened(event["type"], item)

    def _query(self) -> dict[str, str]:
        return {"labelSelector": self.selector} if self.selector else {}
