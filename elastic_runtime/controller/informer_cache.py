"""What the controller remembers of the objects that belong to jobs: views of them, no more."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from elastic_runtime.controller import views

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from elastic_runtime.controller.views import Key
    from elastic_runtime.kubernetes.api_client import Json

_V = TypeVar("_V")
# An answer to a request of ours may be read after the object's deletion has been.
_REMEMBERED_DELETIONS = 1000


@dataclass(frozen=True, slots=True)
class _Entry(Generic[_V]):
    uid: str
    version: int
    owner: str
    view: _V


class InformerCache(Generic[_V]):
    """The objects of one kind, by the job that owns them.

    Told by a watch (it is a ``Follower``), and by answers to our own requests, which are often
    sooner: whichever is newer counts.

    Args:
        view: what is kept of an object.
        changed: called with the job of every object that has changed.
    """

    def __init__(self, view: Callable[[Json], _V], changed: Callable[[Key], None]) -> None:
        self._view, self._changed = view, changed
        self._entries: dict[Key, dict[str, _Entry[_V]]] = {}
        self._deleted: deque[str] = deque(maxlen=_REMEMBERED_DELETIONS)

    def owned_by(self, job: Key, uid: str) -> dict[str, _V]:
        """What belongs to a job, by name.

        Args:
            job: which one.
            uid: its uid: what an earlier job of the same name has left is not meant.
        """
        kept = self._entries.get(job, {})
        return {name: one.view for name, one in sorted(kept.items()) if one.owner == uid}

    def owned_by_others(self, job: Key, uid: str) -> tuple[_V, ...]:
        """What belongs to other jobs of a name, which are not there any more.

        Args:
            job: the name.
            uid: of the job that is there; "": none is.
        """
        return tuple(one.view for one in self._entries.get(job, {}).values() if one.owner != uid)

    def retain(self, uids: Collection[str], version: int) -> None:
        """Nothing else was there at that version; what is younger may be."""
        for job, kept in list(self._entries.items()):
            for name, one in list(kept.items()):
                if one.uid not in uids and one.version <= version:
                    self._drop(job, name)

    def delete(self, item: Json) -> None:
        """An object is gone; it does not come back by an answer that is read later."""
        uid, found = item["metadata"]["uid"], views.owner(item)
        self._deleted.append(uid)
        if found:
            job, name = found[0], item["metadata"]["name"]
            kept = self._entries.get(job, {}).get(name)
            if kept and kept.uid == uid:
                self._drop(job, name)

    def update(self, item: Json) -> None:
        """An object is there, and looks so."""
        meta, found = item["metadata"], views.owner(item)
        if not found or meta["uid"] in self._deleted:
            return
        job, owner = found
        kept = self._entries.setdefault(job, {})
        before, version = kept.get(meta["name"]), int(meta["resourceVersion"])
        if before and before.uid == meta["uid"] and before.version >= version:
            return
        after = _Entry(meta["uid"], version, owner, self._view(item))
        kept[meta["name"]] = after
        if before is None or (before.uid, before.view) != (after.uid, after.view):
            self._changed(job)

    def _drop(self, job: Key, name: str) -> None:
        kept = self._entries[job]
        del kept[name]
        if not kept:
            del self._entries[job]
        self._changed(job)
