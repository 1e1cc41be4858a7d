"""Following all objects of a kind, through breaks of the watch and gaps in what it tells."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from elastic_runtime.events.controller_events import ControllerWatchBroken
from elastic_runtime.kubernetes.api_errors import ApiError
from elastic_runtime.limits import WATCH_PAUSES

if TYPE_CHECKING:
    from collections.abc import Collection

    from elastic_runtime.events import Emit
    from elastic_runtime.kubernetes.api_client import ApiClient, Json
    from elastic_runtime.kubernetes.api_resources import Resource

_PROMPT = 0.1  # a server that ends every watch at once is not asked without a pause


class Cache(Protocol):
    """What an informer keeps up to date."""

    def update(self, item: Json) -> None:
        """An object is there, and looks so."""

    def delete(self, item: Json) -> None:
        """An object is gone; this is how it looked last."""

    def retain(self, uids: Collection[str], version: int) -> None:
        """Nothing but these objects was there at that version."""


@dataclass
class Informer:
    """Follows the objects of one kind for as long as it runs.

    A list says what there is; a watch says what happens from then on, and continues at its last
    version when it breaks. When the server has forgotten that version, what happened in between
    is lost, deletions above all: a new list replaces everything.

    Attributes:
        client: asks the API server.
        resource: the kind.
        namespace: "" for all of them.
        selector: of labels, on the server's side.
        cache: is kept up to date.
        emit: where breaks are reported.
        listed: set when the cache knows all that there was at one moment.
    """

    client: ApiClient
    resource: Resource
    namespace: str
    selector: str
    cache: Cache
    emit: Emit

    def __post_init__(self) -> None:
        self.listed = asyncio.Event()
        self._version = ""
        self._failures = 0

    async def run(self) -> None:
        """Follows; never ends by itself."""
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch()
                pause = _PROMPT  # the server ends a watch after a while: that is no fault
            except ApiError as error:
                pause = self._failed(error)
            await asyncio.sleep(pause)

    def _failed(self, error: ApiError) -> float:
        """What follows from a failure: the pause until the next try, in seconds."""
        if error.expired or not error.transient:
            self._version = ""
        if error.expired:
            return _PROMPT
        self.emit(ControllerWatchBroken(self.resource.plural, str(error)))
        self._failures += 1
        return WATCH_PAUSES.pause(self._failures)

    async def _list(self) -> None:
        uids: set[str] = set()
        async for page in self.client.pages(self.resource.path(self.namespace), self._query()):
            for item in page.get("items") or ():
                uids.add(item["metadata"]["uid"])
                self.cache.update(item)
        self._version = str(page["metadata"]["resourceVersion"])
        self.cache.retain(uids, int(self._version))
        self.listed.set()

    async def _watch(self) -> None:
        path = self.resource.path(self.namespace)
        async for event in self.client.watch(path, self._version, self._query()):
            item: Any = event["object"]
            self._version = str(item["metadata"]["resourceVersion"])
            self._failures = 0
            if event["type"] == "DELETED":
                self.cache.delete(item)
            elif event["type"] != "BOOKMARK":
                self.cache.update(item)

    def _query(self) -> dict[str, str]:
        return {"labelSelector": self.selector} if self.selector else {}
