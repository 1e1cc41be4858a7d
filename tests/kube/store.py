"""What the fake API server remembers: objects, their versions, and what happened to them.

Objects are never changed in place: each change makes a new one, so that who holds one may read
it at any time. All methods may be called from any thread.
"""

from __future__ import annotations

import json
import threading
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tests.kube import patches
from tests.kube.kinds import NAMESPACE, POD, SERVICE, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Object = dict[str, Any]
Key = tuple[str, str]  # namespace, name


class Refusal(Exception):
    """An answer that is an error.

    Args:
        code: the HTTP status.
        reason: as in ``Status.reason``.
        message: for people.
    """

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message

    def status(self) -> Object:
        """The body of the answer."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }


@dataclass(frozen=True)
class Change:
    """Something that watchers see.

    Attributes:
        version: the resource version that it made.
        kind: of the object.
        type: ``ADDED``, ``MODIFIED`` or ``DELETED``.
        item: the object after it.
        before: the object before it, ``None`` for a new one.
    """

    version: int
    kind: Kind
    type: str
    item: Object
    before: Object | None
    _lines: dict[str, bytes] = field(default_factory=dict, compare=False, repr=False)

    def line(self, type: str) -> bytes:
        """The line of a watch's stream, made once for all watchers."""
        if type not in self._lines:
            self._lines[type] = json.dumps({"type": type, "object": self.item}).encode() + b"\n"
        return self._lines[type]


def now() -> str:
    """The present second, as objects write it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def key_of(item: Object) -> Key:
    """Where an object lies among those of its kind."""
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]


class Store:
    """All objects of a cluster."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.listeners: list[Callable[[Change], None]] = []
        self.webhooks: list[Callable[[Kind, Object], Object]] = []
        self.history: list[Change] = []
        self.forgotten = 0  # changes up to this version cannot be watched any more
        self.version = 0
        self._objects: dict[Kind, dict[Key, Object]] = {}
        self._owned: dict[str, set[tuple[Kind, Key]]] = {}
        self._uids: set[str] = set()
        self._applied: dict[tuple[str, str], Object] = {}
        self._addresses = 0

    # What is there

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """One object.

        Raises:
            Refusal: there is none.
        """
        found = self.find(kind, namespace, name)
        if found is None:
            raise Refusal(404, "NotFound", f'{kind.plural} "{name}" not found')
        return found

    def find(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """One object, or none."""
        with self.lock:
            place = (namespace if kind.namespaced else "", name)
            return self._objects.get(kind, {}).get(place)

    def list(
        self, kind: Kind, namespace: str = "", selector: str = "", fields: str = ""
    ) -> list[Object]:
        """The objects of a kind, of all namespaces if none is given."""
        with self.lock:
            return [
                item
                for (where, _), item in sorted(self._objects.get(kind, {}).items())
                if namespace in ("", where)
                and patches.selected(item["metadata"].get("labels", {}), selector)
                and patches.chosen(item, fields)
            ]

    def since(self, version: int) -> list[Change]:
        """What has happened after a version.

        Raises:
            Refusal: that is not remembered any more.
        """
        with self.lock:
            if version < self.forgotten:
                raise Refusal(410, "Expired", f"too old resource version: {version}")
            return self.history[version - self.forgotten :]

    def forget(self) -> None:
        """Loses the history, as the real server does after minutes: who comes late gets a 410."""
        with self.lock:
            self.history.clear()
            self.version += 1  # who has seen everything up to now is late as well
            self.forgotten = self.version

    # What changes it

    def create(self, kind: Kind, namespace: str, item: Object) -> Object:
        """Adds an object.

        Raises:
            Refusal: there is one of that name, or the object has none.
        """
        with self.lock:
            item = self.admitted(kind, item)
            meta = dict(item.get("metadata") or {})
            if "name" not in meta and "generateName" in meta:
                meta["name"] = meta["generateName"] + uuid.uuid4().hex[:5]
            if not meta.get("name"):
                raise Refusal(422, "Invalid", "metadata.name: Required value")
            if kind.namespaced:
                meta["namespace"] = namespace or "default"
            place = (meta.get("namespace", ""), meta["name"])
            if place in self._objects.get(kind, {}):
                raise Refusal(409, "AlreadyExists", f'{kind.plural} "{place[1]}" already exists')
            meta |= {"uid": str(uuid.uuid4()), "creationTimestamp": now(), "generation": 1}
            made = {**item, "apiVersion": kind.api_version, "kind": kind.name, "metadata": meta}
            made = self._completed(kind, made)
            self._uids.add(meta["uid"])
            stored = self._put(kind, "ADDED", made, None)
            self._adopt(kind, stored)
            return stored

    def admitted(self, kind: Kind, item: Object) -> Object:
        """A new object as the webhooks make it.

        Raises:
            Refusal: one of them will not have it.
        """
        for webhook in self.webhooks:
            item = webhook(kind, item)
        return item

    def replace(self, kind: Kind, old: Object, new: Object, part: str = "") -> Object:
        """Puts ``new`` in the place of ``old``; nothing happens if nothing is different.

        Args:
            kind: of both.
            old: as it is stored.
            new: what it becomes.
            part: ``status`` to change nothing but that; "" to change all but that.

        Returns:
            What is stored now.

        Raises:
            Refusal: ``new`` carries a version that is not the present one.
        """
        with self.lock:
            held, meant = old["metadata"], new.get("metadata", {})
            if meant.get("resourceVersion", held["resourceVersion"]) != held["resourceVersion"]:
                said = f'Operation cannot be fulfilled on {kind.plural} "{held["name"]}": '
                raise Refusal(409, "Conflict", f"{said}the object has been modified")
            if meant.get("uid", held["uid"]) != held["uid"]:
                raise Refusal(409, "Conflict", f"uid {meant['uid']} is not {held['uid']}")
            if part == "status":
                made = {**old, "status": new.get("status", {})}
            else:
                made = {**new, "metadata": self._kept(held, meant)}
                if "status" in kind.subresources:
                    made.pop("status", None)
                    made |= {"status": old["status"]} if "status" in old else {}
                if kind.counted and made.get("spec") != old.get("spec"):
                    made["metadata"]["generation"] = held["generation"] + 1
            if made == old:
                return old
            return self._changed(kind, made, old)

    def apply(
        self, kind: Kind, namespace: str, name: str, wanted: Object, manager: str
    ) -> tuple[Object, bool]:
        """Server-side apply; says also whether the object is new."""
        with self.lock:
            old = self.find(kind, namespace, name)
            if old is None:
                meta = {**wanted.get("metadata", {}), "name": name}
                stored = self.create(kind, namespace, {**wanted, "metadata": meta})
            else:
                before = self._applied.get((old["metadata"]["uid"], manager), {})
                stored = self.replace(kind, old, patches.applied(old, wanted, before))
            self._applied[stored["metadata"]["uid"], manager] = wanted
            return stored, old is None

    def delete(
        self, kind: Kind, namespace: str, name: str, options: Object | None = None
    ) -> Object:
        """Deletes an object, a pod with its grace: then the kubelet removes it.

        Raises:
            Refusal: it is not there, or not the one that is meant.
        """
        options = options or {}
        with self.lock:
            item = self.get(kind, namespace, name)
            meta = item["metadata"]
            meant = (options.get("preconditions") or {}).get("uid", meta["uid"])
            if meant != meta["uid"]:
                raise Refusal(409, "Conflict", f"the UID in the precondition ({meant}) is another")
            grace = self._grace(kind, item, options.get("gracePeriodSeconds"))
            if not grace and not meta.get("finalizers"):
                self._remove(kind, item)
                return item
            over = kind == POD and not grace and meta.get("deletionGracePeriodSeconds")
            if meta.get("deletionTimestamp") and not over:
                return item
            since = meta.get("deletionTimestamp") or now()
            ending = {"deletionTimestamp": since, "deletionGracePeriodSeconds": grace}
            return self._put(kind, "MODIFIED", {**item, "metadata": {**meta, **ending}}, item)

    def change(self, kind: Kind, namespace: str, name: str, patch: Object) -> Object:
        """Merges a patch into an object, its status too; for tests and the kubelet."""
        with self.lock:
            item = self.get(kind, namespace, name)
            new = patches.merged(item, patch)
            return item if new == item else self._changed(kind, new, item)

    def wait_for(
        self, happened: Callable[[], Any], patience: float, what: str, story: Callable[[], str]
    ) -> Any:
        """Looks at each change until ``happened`` returns something true.

        Raises:
            AssertionError: it did not within ``patience`` seconds.
        """
        with self.changed:
            found = self.changed.wait_for(happened, patience)
        assert found, f"{what}: not within {patience:g} s\n{story()}"
        return found

    # Its parts

    def _changed(self, kind: Kind, made: Object, old: Object) -> Object:
        stored = self._put(kind, "MODIFIED", made, old)
        meta = stored["metadata"]
        # A pod that has its grace yet is the kubelet's to remove.
        ended = not meta.get("finalizers") and not meta.get("deletionGracePeriodSeconds")
        if meta.get("deletionTimestamp") and ended:
            self._remove(kind, stored)
        return stored

    def _put(self, kind: Kind, type: str, item: Object, before: Object | None) -> Object:
        self.version += 1
        meta = {**item["metadata"], "resourceVersion": str(self.version)}
        item = {**item, "metadata": meta}
        objects = self._objects.setdefault(kind, {})
        if type == "DELETED":
            del objects[key_of(item)]
        else:
            objects[key_of(item)] = item
        change = Change(self.version, kind, type, item, before)
        self.history.append(change)
        for listener in tuple(self.listeners):
            listener(change)
        self.changed.notify_all()
        return item

    def _completed(self, kind: Kind, item: Object) -> Object:
        if "status" in kind.subresources:
            item.pop("status", None)
        if kind == POD:
            item["status"] = {"phase": "Pending", "qosClass": "BestEffort"}
        if kind == SERVICE and (item.get("spec") or {}).get("clusterIP") != "None":
            self._addresses += 1
            high, low = divmod(self._addresses, 250)
            item["spec"] = {**item.get("spec", {}), "clusterIP": f"10.96.{high}.{low + 1}"}
        if kind == NAMESPACE:
            item["status"] = {"phase": "Active"}
        return item

    def _adopt(self, kind: Kind, item: Object) -> None:
        for owner in item["metadata"].get("ownerReferences", ()):
            if owner["uid"] in self._uids:
                self._owned.setdefault(owner["uid"], set()).add((kind, key_of(item)))
            else:  # the owner is gone: so is this, as the garbage collector sees to
                self._collect({(kind, key_of(item))})

    def _remove(self, kind: Kind, item: Object) -> None:
        uid = item["metadata"]["uid"]
        self._uids.discard(uid)
        self._put(kind, "DELETED", item, item)
        self._collect(self._owned.pop(uid, set()))

    def _collect(self, owned: Iterable[tuple[Kind, Key]]) -> None:
        for kind, (namespace, name) in sorted(owned, key=lambda one: (one[0].plural, one[1])):
            if self.find(kind, namespace, name):
                self.delete(kind, namespace, name)

    @staticmethod
    def _grace(kind: Kind, item: Object, asked: int | None) -> int:
        if kind != POD:
            return 0
        if asked is None:
            asked = (item.get("spec") or {}).get("terminationGracePeriodSeconds", 30)
        # What runs nowhere has nobody who could end it.
        return int(asked) if (item.get("spec") or {}).get("nodeName") else 0

    @staticmethod
    def _kept(held: Object, meant: Object) -> Object:
        own = (
            *("uid", "name", "namespace", "creationTimestamp", "generation", "resourceVersion"),
            *("deletionTimestamp", "deletionGracePeriodSeconds"),
        )
        return {**meant, **{name: held[name] for name in own if name in held}}
