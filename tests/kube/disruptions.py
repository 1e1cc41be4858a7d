"""Nodes that are cordoned and drained: which one a pod comes to, and who may be evicted from it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.kube.deployments import is_ready
from tests.kube.kinds import BUDGET, KINDS, POD
from tests.kube.patches import selected
from tests.kube.store import Refusal

if TYPE_CHECKING:
    from tests.kube.store import Object, Store

NODE = next(kind for kind in KINDS if kind.name == "Node")


def add_nodes(store: Store, *names: str, labels: dict[str, str] | None = None) -> None:
    """Nodes that are ready for pods, with these labels."""
    for name in names:
        store.create(NODE, "", {"metadata": {"name": name, "labels": labels or {}}, "spec": {}})


def choose_node(store: Store) -> str:
    """The node with the fewest pods that is not cordoned; "" if all are."""
    open_ = [n["metadata"]["name"] for n in store.list(NODE) if not n["spec"].get("unschedulable")]
    taken = Counter(pod["spec"].get("nodeName") for pod in store.list(POD))
    return min(open_, key=lambda name: taken[name], default="")


def evict(store: Store, namespace: str, name: str, options: Object) -> Object:
    """Deletes a pod, unless a budget forbids it.

    Raises:
        Refusal: as the API server says it to ``kubectl drain``, which tries again.
    """
    with store.lock:
        pod = store.get(POD, namespace, name)
        for budget in store.list(BUDGET, namespace):
            _check(store, budget, pod)
        store.delete(POD, namespace, name, options.get("deleteOptions"))
    return {"kind": "Status", "apiVersion": "v1", "status": "Success"}


def _check(store: Store, budget: Object, pod: Object) -> None:
    labels = budget["spec"]["selector"]["matchLabels"]
    selector = ",".join(f"{key}={value}" for key, value in labels.items())
    if not selected(pod["metadata"].get("labels", {}), selector) or not is_ready(pod):
        return  # AlwaysAllow: who is not ready may go
    found = store.list(POD, pod["metadata"]["namespace"], selector)
    healthy = [one for one in found if is_ready(one) and not _is_ending(one)]
    if len(healthy) <= budget["spec"]["minAvailable"]:
        said = "Cannot evict pod as it would violate the pod's disruption budget."
        raise Refusal(429, "TooManyRequests", said)


def _is_ending(pod: Object) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))
