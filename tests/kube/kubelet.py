"""A kubelet and scheduler in one, that do with pods what a test says."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from tests.kube.disruptions import NODE, choose_node
from tests.kube.kinds import POD
from tests.kube.store import Change, Object, Store, now

if TYPE_CHECKING:
    from tests.kube.server import ApiServer

_LEFT = 5  # what elastic-run exits with after a SIGTERM


class Kubelet:
    """Runs pods, as far as anybody can see through the API.

    Attributes:
        runs: whether new pods run at once; otherwise they wait for ``run``.
        removes: whether deleted pods end and go away at once; otherwise they wait for ``remove``.
        capacity: how many pods there is room for; further ones stay Pending.
    """

    def __init__(self, store: Store, server: ApiServer) -> None:
        self.runs = True
        self.removes = True
        self.capacity: int | None = None
        self._store, self._server = store, server
        # Addresses that a test's agents can listen at; another test's are others.
        self._net, self._addresses = random.randint(2, 250), 0
        store.listeners.append(self._on_change)

    def run(self, namespace: str, name: str) -> None:
        """A pod is placed and its containers run."""
        self._addresses += 1
        high, low = divmod(self._addresses, 250)
        address = f"127.{self._net}.{high}.{low + 1}"
        status = {"phase": "Running", "startTime": now(), "podIP": address, "hostIP": "127.0.0.1"}
        status["conditions"] = _conditions(PodScheduled=True, Initialized=True, Ready=True)
        self._show(namespace, name, status, {"running": {"startedAt": now()}}, True)

    def finish(self, namespace: str, name: str, code: int, message: str = "") -> None:
        """A pod's containers have ended.

        Args:
            namespace: of the pod.
            name: of the pod.
            code: what they exited with.
            message: their termination message.
        """
        before = self._store.get(POD, namespace, name)["status"]
        ended = {
            "exitCode": code,
            "reason": "Error" if code else "Completed",
            "startedAt": str(before.get("startTime") or now()),
            "finishedAt": now(),
            **({"message": message} if message else {}),
        }
        conditions = _conditions(PodScheduled=True, Initialized=True, Ready=False)
        status = {"phase": "Failed" if code else "Succeeded", "conditions": conditions}
        self._show(namespace, name, status, {"terminated": ended}, False)

    def wait_for_image(self, namespace: str, name: str, message: str = "not found") -> None:
        """A pod is placed, but its image cannot be pulled."""
        state = {"waiting": {"reason": "ImagePullBackOff", "message": message}}
        self._show(namespace, name, {"phase": "Pending"}, state, False)

    def remove(self, namespace: str, name: str, code: int = _LEFT) -> None:
        """A pod that is being deleted has ended, and its object goes away."""
        if self._store.get(POD, namespace, name)["status"]["phase"] == "Running":
            self.finish(namespace, name, code)
        self._store.delete(POD, namespace, name, {"gracePeriodSeconds": 0})

    def lose(self, namespace: str, name: str) -> None:
        """The object of a pod vanishes, as with its node."""
        self._store.delete(POD, namespace, name, {"gracePeriodSeconds": 0})

    def write(self, namespace: str, name: str, text: str, uid: str = "") -> None:
        """A container writes to its log.

        Args:
            namespace, name: of its pod.
            text: what it says.
            uid: of its pod: nothing is written if another one has the name by now. "": whichever.
        """
        with self._store.lock:
            pod = self._store.find(POD, namespace, name)
            if uid and (pod is None or pod["metadata"]["uid"] != uid):
                return
            logs = self._server.logs
            logs[namespace, name] = logs.get((namespace, name), "") + text
        self._server.wake()

    def place_pending(self) -> None:
        """Runs what waits, as far as there is room; after ``capacity`` or ``runs`` has changed."""
        for pod in self._store.list(POD):
            if pod["status"]["phase"] == "Pending" and not _is_gated(pod):
                self._place(pod)

    def _on_change(self, change: Change) -> None:
        if change.kind != POD:
            return
        meta = change.item["metadata"]
        if change.type == "ADDED":  # what an earlier pod of that name has said is gone with it
            self._server.logs.pop((meta["namespace"], meta["name"]), None)
        opened = _is_gated(change.before or {}) and not _is_gated(change.item)
        if (change.type == "ADDED" or opened) and self.runs and not _is_gated(change.item):
            self._place(change.item)
        elif change.type == "MODIFIED" and meta.get("deletionTimestamp") and self.removes:
            before = (change.before or {}).get("metadata", {})
            if not before.get("deletionTimestamp") and change.item["spec"].get("nodeName"):
                self.remove(meta["namespace"], meta["name"])
        elif change.type == "DELETED" and self.capacity is not None:
            self.place_pending()

    def _place(self, pod: Object) -> None:
        meta = pod["metadata"]
        running = sum(one["status"]["phase"] == "Running" for one in self._store.list(POD))
        if self.capacity is None or running < self.capacity:
            self.run(meta["namespace"], meta["name"])
            return
        why = f"0/1 nodes are available: {self.capacity} pods run already."
        placed = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        status = {"conditions": [{**placed, "message": why}]}
        self._store.change(POD, meta["namespace"], meta["name"], {"status": status})

    def _show(self, namespace: str, name: str, status: Object, state: Object, ready: bool) -> None:
        pod = self._store.get(POD, namespace, name)
        containers = [
            {
                "name": container["name"],
                "image": container.get("image", ""),
                "imageID": "",
                "ready": ready,
                "restartCount": 0,
                "state": state,
            }
            for container in pod["spec"]["containers"]
        ]
        shown = {**status, "containerStatuses": containers}
        change: dict[str, Any] = {"spec": {"nodeName": self._node_of(pod)}, "status": shown}
        self._store.change(POD, namespace, name, change)

    def _node_of(self, pod: Object) -> str:
        """Where a pod is, or comes to; there need be no Node for it."""
        placed = pod["spec"].get("nodeName")
        if placed or not self._store.list(NODE):
            return str(placed or "node-1")
        return choose_node(self._store) or "node-1"


def _is_gated(pod: Object) -> bool:
    return bool((pod.get("spec") or {}).get("schedulingGates"))


def _conditions(**met: bool) -> list[Object]:
    return [
        {"type": type, "status": str(is_met), "lastTransitionTime": now()}
        for type, is_met in met.items()
    ]
