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
_GRAVES = 1000


@dataclass(frozen=True, slots=True)
class _Kept(Generic[_V]):
    uid: str
    version: int
    owner: str
    view: _V


class Shelf(Generic[_V]):
    """The objects of one kind, by the job that owns them.

    Told by a watch (it is a ``Follower``), and by answers to our own requests, which are often
    sooner: whichever is newer counts.

    Args:
        view: what is kept of an object.
        changed: told the job of every object that is not as before.
    """

    def __init__(self, view: Callable[[Json], _V], changed: Callable[[Key], None]) -> None:
        self._view, self._changed = view, changed
        self._kept: dict[Key, dict[str, _Kept[_V]]] = {}
        self._graves: deque[str] = deque(maxlen=_GRAVES)

    def of(self, job: Key, uid: str) -> dict[str, _V]:
        """What belongs to a job, by name.

        Args:
            job: which one.
            uid: its uid: what an earlier job of the same name has left is not meant.
        """
        kept = self._kept.get(job, {})
        return {name: one.view for name, one in sorted(kept.items()) if one.owner == uid}

    def only(self, uids: Collection[str], version: int) -> None:
        """Nothing else was there at that version; what is younger may be."""
        for job, kept in list(self._kept.items()):
            for name, one in list(kept.items()):
                if one.uid not in uids and one.version <= version:
                    self._drop(job, name)

    def happened(self, type: str, item: Json) -> None:
        """An object has changed."""
        if type != "DELETED":
            self.learned(item)
            return
        uid, found = item["metadata"]["uid"], views.owner(item)
        self._graves.append(uid)
        if found:
            job, name = found[0], item["metadata"]["name"]
            kept = self._kept.get(job, {}).get(name)
            if kept and kept.uid == uid:
                self._drop(job, name)

    def learned(self, item: Json) -> None:
        """An object is there, and looks so."""
        meta, found = item["metadata"], views.owner(item)
        if not found or meta["uid"] in self._graves:
            return
        job, owner = found
        kept = self._kept.setdefault(job, {})
        before, version = kept.get(meta["name"]), int(meta["resourceVersion"])
        if before and before.uid == meta["uid"] and before.version >= version:
            return
        after = _Kept(meta["uid"], version, owner, self._view(item))
        kept[meta["name"]] = after
        if before is None or (before.uid, before.view) != (after.uid, after.view):
            self._changed(job)

    def _drop(self, job: Key, name: str) -> None:
        kept = self._kept[job]
        del kept[name]
        if not kept:
            del self._kept[job]
        self._changed(job)
