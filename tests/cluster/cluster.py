"""A cluster as the end-to-end tests use it: through Kubernetes' own client, with deadlines."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from kubernetes import client, config
from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.exceptions import ApiException, NotFoundError, ResourceNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
GROUP, VERSION, PLURAL = "elastic.pytorch.org", "v1alpha1", "elasticjobs"
MANAGER = "elastic-test"
_PAUSE = 0.25

Object = dict[str, Any]


def manifests(path: str) -> Iterator[Object]:
    """The objects of a file in ``deploy/``."""
    for item in yaml.safe_load_all((ROOT / "deploy" / path).read_text()):
        if item:
            yield item


class NotInTime(AssertionError):
    """Something was waited for in vain; the message tells what there was in the cluster."""


@dataclass(frozen=True)
class Cluster:
    """A cluster.

    Attributes:
        api: the connection.
        core: pods, logs, events.
        custom: ElasticJobs.
        dynamic: everything else.
        namespace: where the jobs of the tests are.
        image: of workers, controller and etcd.
        home: the controller's namespace.
    """

    api: client.ApiClient
    core: client.CoreV1Api
    custom: client.CustomObjectsApi
    dynamic: DynamicClient
    namespace: str
    image: str
    home: str

    @classmethod
    def of(cls, kubeconfig: str, image: str, prefix: str) -> Cluster:
        """The cluster that a kubeconfig names."""
        api = config.new_client_from_config(kubeconfig or None)
        core, custom = client.CoreV1Api(api), client.CustomObjectsApi(api)
        return cls(api, core, custom, DynamicClient(api), f"{prefix}-jobs", image, prefix)

    # Objects of any kind

    def apply(self, item: Object) -> Object:
        """Creates an object, or makes it so."""
        resource = self.dynamic.resources.get(api_version=item["apiVersion"], kind=item["kind"])
        place = {"namespace": space} if (space := item["metadata"].get("namespace")) else {}
        made = resource.server_side_apply(
            body=item, name=item["metadata"]["name"], field_manager=MANAGER, **place
        )
        return dict(made.to_dict())

    def find(self, item: Object) -> Object | None:
        """An object as it is now, if it is there."""
        try:
            resource = self.dynamic.resources.get(api_version=item["apiVersion"], kind=item["kind"])
            place = {"namespace": space} if (space := item["metadata"].get("namespace")) else {}
            return dict(resource.get(name=item["metadata"]["name"], **place).to_dict())
        except (NotFoundError, ResourceNotFoundError):
            return None

    def delete(self, item: Object) -> None:
        """Removes an object, if it is there."""
        if self.find(item) is None:
            return
        resource = self.dynamic.resources.get(api_version=item["apiVersion"], kind=item["kind"])
        place = {"namespace": space} if (space := item["metadata"].get("namespace")) else {}
        try:
            resource.delete(name=item["metadata"]["name"], **place)
        except NotFoundError:
            pass

    # Pods

    def pods(self, selector: str = "", namespace: str = "") -> list[Object]:
        """Pods that are there, those that are being deleted among them."""
        found = self.core.list_namespaced_pod(
            namespace or self.namespace, label_selector=selector, _preload_content=False
        )
        return list(json.loads(found.data)["items"])

    def log(self, pod: str, namespace: str = "") -> str:
        """What a pod has said so far; "" if it has not begun."""
        try:
            return str(self.core.read_namespaced_pod_log(pod, namespace or self.namespace))
        except ApiException:
            return ""

    def delete_pod(self, name: str, grace: int, namespace: str = "") -> None:
        """Deletes a pod; ``grace`` 0: as if its node had vanished."""
        self.core.delete_namespaced_pod(
            name, namespace or self.namespace, grace_period_seconds=grace
        )

    # Nodes

    def nodes(self) -> list[str]:
        """The nodes to which pods may come."""
        found = json.loads(self.core.list_node(_preload_content=False).data)["items"]
        return [
            node["metadata"]["name"]
            for node in found
            if not (node.get("spec") or {}).get("unschedulable")
            and not (node.get("spec") or {}).get("taints")
        ]

    def cordon(self, node: str, closed: bool = True) -> None:
        """As ``kubectl cordon``, or ``uncordon``."""
        self.core.patch_node(node, {"spec": {"unschedulable": closed or None}})

    def drain(self, pods: list[Object], patience: float = 120.0) -> list[str]:
        """Evicts pods as ``kubectl drain`` does: all at once, and each again until it may go.

        Returns:
            Their names, in the order in which the API server let them go.
        """
        left = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}
        gone: list[str] = []

        def evict_all() -> bool:
            gone.extend(name for name in left if name not in gone and self._evict(name))
            return len(gone) == len(left)

        self.wait_for(evict_all, f"{sorted(left)} are evicted", patience)
        there = lambda: {pod["metadata"]["uid"] for pod in self.pods()}  # noqa: E731
        self.wait_for(lambda: not there() & set(left.values()), "they are gone", patience)
        return gone

    def _evict(self, name: str) -> bool:
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        try:
            self.core.create_namespaced_pod_eviction(name, self.namespace, body)
        except ApiException as refused:
            if refused.status != 429:
                raise
            return False
        return True

    # Waiting

    def wait_for(self, happened: Callable[[], Any], what: str, patience: float = 120.0) -> Any:
        """Looks until ``happened`` returns something true.

        Raises:
            NotInTime: it did not; with what there is in the cluster.
        """
        deadline = time.monotonic() + patience
        while True:
            if found := happened():
                return found
            if time.monotonic() > deadline:
                raise NotInTime(f"{what}: not within {patience:g} s\n{self.story()}")
            time.sleep(_PAUSE)

    def story(self) -> str:
        """Jobs, pods, events and logs: what somebody needs who was not there."""
        told = [
            f"job {job['metadata']['name']}: {json.dumps(job.get('status'))}"
            for job in self._jobs()
        ]
        for namespace in (self.namespace, self.home):
            for pod in self.pods(namespace=namespace):
                name, status = pod["metadata"]["name"], pod["status"]
                ending = ", being deleted" if pod["metadata"].get("deletionTimestamp") else ""
                states = [one.get("state") for one in status.get("containerStatuses") or ()]
                told.append(f"pod {name}: {status['phase']}{ending} {json.dumps(states)}")
                lines = self.log(name, namespace).splitlines()[-40:]
                told += [f"    {line}" for line in lines]
            found = self.core.list_namespaced_event(namespace, _preload_content=False)
            for event in json.loads(found.data)["items"][-60:]:
                about = event.get("involvedObject", {}).get("name")
                told.append(f"event {about}: {event.get('reason')}: {event.get('message')}")
        return "\n".join(told)

    def _jobs(self) -> list[Object]:
        try:
            found = self.custom.list_namespaced_custom_object(
                GROUP, VERSION, self.namespace, PLURAL
            )
        except ApiException:
            return []
        return list(found["items"])


@dataclass(frozen=True)
class Job:
    """An ElasticJob of the tests."""

    cluster: Cluster
    name: str

    @property
    def _place(self) -> tuple[str, str, str, str, str]:
        return GROUP, VERSION, self.cluster.namespace, PLURAL, self.name

    def read(self) -> Object:
        """The object as it is now."""
        return dict(self.cluster.custom.get_namespaced_custom_object(*self._place))

    @property
    def status(self) -> Object:
        """Its status as it is now."""
        return dict(self.read().get("status") or {})

    def change(self, spec: Object) -> None:
        """Merges a patch into its spec."""
        self.cluster.custom.patch_namespaced_custom_object(*self._place, {"spec": spec})

    def scale(self, replicas: int) -> None:
        """As ``kubectl scale``."""
        body = {"spec": {"replicas": replicas}}
        self.cluster.custom.patch_namespaced_custom_object_scale(*self._place, body)

    def delete(self) -> None:
        """Deletes it, with what it owns in the background."""
        self.cluster.custom.delete_namespaced_custom_object(*self._place)

    # What is seen of it

    def pods(self) -> dict[str, Object]:
        """Its worker pods by name."""
        found = self.cluster.pods(f"job-name={self.name},replica-type=worker")
        return {pod["metadata"]["name"]: pod for pod in found}

    def uids(self) -> dict[str, str]:
        """The identities of its worker pods, by name."""
        return {name: pod["metadata"]["uid"] for name, pod in self.pods().items()}

    def condition(self, type: str) -> Object:
        """A condition; an empty one if there is none of that type."""
        conditions = self.status.get("conditions") or ()
        return next((dict(one) for one in conditions if one["type"] == type), {})

    def is_(self, type: str) -> bool:
        """Whether a condition holds."""
        return bool(self.condition(type).get("status") == "True")

    def everything(self) -> list[str]:
        """All that bears its name in its labels, as ``kind/name``."""
        selector, found = f"job-name={self.name}", []
        for version, kind in (
            ("v1", "Pod"),
            ("v1", "Service"),
            ("v1", "ConfigMap"),
            ("v1", "Secret"),
            ("v1", "PersistentVolumeClaim"),
            ("policy/v1", "PodDisruptionBudget"),
        ):
            resource = self.cluster.dynamic.resources.get(api_version=version, kind=kind)
            held = resource.get(namespace=self.cluster.namespace, label_selector=selector)
            found += [f"{kind}/{item.metadata.name}" for item in held.items]
        return found

    # Waiting

    def await_world(self, size: int, after: int = 0, patience: float = 120.0) -> Object:
        """Waits until it runs with so many workers, and nothing else is under way.

        Args:
            size: how many, one in each pod.
            after: a round that must be over: its size is in the status until there is news.
            patience: how long.

        Returns:
            The status.
        """

        def happened() -> Object | None:
            status = self.status
            worker = (status.get("replicaStatuses") or {}).get("Worker") or {}
            settled = status.get("worldSize") == worker.get("active") == size
            is_new = status.get("round", 0) > after
            return status if settled and is_new and len(self.pods()) == size else None

        what = f"{self.name} has a world of {size}"
        return dict(self.cluster.wait_for(happened, what, patience))

    def await_another(self, pod: str, uid: str) -> None:
        """Waits until another pod has taken the place of one."""
        self.cluster.wait_for(lambda: self.uids().get(pod, uid) != uid, f"{pod} is replaced")

    def await_save(self, after: int) -> int:
        """Waits until a later step than that is in a checkpoint; gives it."""
        what = f"{self.name} goes on from {after}"
        return int(self.cluster.wait_for(lambda: max(0, self.saved() - after), what)) + after

    def await_condition(self, type: str, patience: float = 120.0) -> Object:
        """Waits until a condition holds, and gives it."""
        self.cluster.wait_for(lambda: self.is_(type), f"{self.name} is {type}", patience)
        return self.condition(type)

    def await_words(self, words: str, patience: float = 120.0) -> int:
        """Waits until a pod says these words, and gives the number behind them."""
        pattern = re.compile(re.escape(words) + r"(\d+)")

        def happened() -> re.Match[str] | None:
            return next(
                filter(None, (pattern.search(self.cluster.log(p)) for p in self.pods())), None
            )

        return int(self.cluster.wait_for(happened, f"{self.name} says {words!r}", patience)[1])

    def saved(self) -> int:
        """The last step that the logs of its pods say is in a checkpoint; -1 if none is."""
        lines = [line for pod in self.pods() for line in self.cluster.log(pod).splitlines()]
        saved = [line for line in lines if '"checkpoint.saved"' in line and line.startswith("{")]
        return max((int(json.loads(line)["step"]) for line in saved), default=-1)
