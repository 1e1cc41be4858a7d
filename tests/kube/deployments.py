"""What a cluster does about Deployments: as many pods as each asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.kube.kinds import KINDS, POD

if TYPE_CHECKING:
    from tests.kube.store import Object, Store

DEPLOYMENT = next(kind for kind in KINDS if kind.name == "Deployment")


def keep_deployment(store: Store, deployment: Object) -> None:
    """Makes pods that are missing, deletes those that are too many, and says how many are ready."""
    meta, spec = deployment["metadata"], deployment["spec"]
    pods = [
        pod
        for pod in store.list(POD, meta["namespace"])
        for owner in pod["metadata"].get("ownerReferences", ())
        if owner["uid"] == meta["uid"] and not pod["metadata"].get("deletionTimestamp")
    ]
    wanted = spec.get("replicas", 1)
    for pod in pods[wanted:]:
        store.delete(POD, meta["namespace"], pod["metadata"]["name"])
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "controller": True}
    owner |= {"name": meta["name"], "uid": meta["uid"]}
    for _ in range(wanted - len(pods)):
        template = spec["template"]
        own = {"generateName": f"{meta['name']}-", "ownerReferences": [owner]}
        pod = {"metadata": {**template["metadata"], **own}, "spec": template["spec"]}
        store.create(POD, meta["namespace"], pod)
    ready = sum(is_ready(pod) for pod in pods[:wanted])
    shown = {"replicas": len(pods), "readyReplicas": ready, "availableReplicas": ready}
    status = {**shown, "updatedReplicas": len(pods), "observedGeneration": meta["generation"]}
    store.change(DEPLOYMENT, meta["namespace"], meta["name"], {"status": status})


def is_ready(pod: Object) -> bool:
    """Whether a pod's condition Ready holds."""
    conditions = pod["status"].get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
