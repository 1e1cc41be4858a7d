"""A small cluster made of docker: the fake API server, with pods that are real containers.

It runs what a real cluster would run (the controller from its Deployment, etcd, elastic-run), each
pod as one container with an address of its own, so that the end-to-end tests can be tried where no
Kubernetes can be had. The address of a Service is given to the pod behind it. What it leaves out:
several containers in a pod, init containers, scheduling, volumes that outlive a pod, and rights.

``python -m tests.kube.docker_kubelet --kubeconfig FILE`` runs one until it is told to end.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import os
import re
import shutil
import socket
import tempfile
import threading
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docker.errors import APIError, DockerException, ImageNotFound, NotFound

import docker
from tests.docker_engine import LABEL
from tests.kube.cluster import FakeCluster, serve
from tests.kube.deployments import DEPLOYMENT, keep_deployment
from tests.kube.disruptions import add_nodes, choose_node
from tests.kube.door import Door
from tests.kube.kinds import CRD, KINDS, NAMESPACE, POD, SERVICE, Kind
from tests.kube.patches import selected
from tests.kube.store import Change, Object, now

if TYPE_CHECKING:
    from collections.abc import Iterator

_SUBNET, _GATEWAY = "10.96.0.0/16", "10.96.255.254"
_PORT = 6443
_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_RIGHTS = "rbac.authorization.k8s.io"
_MORE_KINDS = [
    Kind(_RIGHTS, "v1", plural, name, namespaced="cluster" not in plural)
    for plural, name in (
        ("roles", "Role"),
        ("rolebindings", "RoleBinding"),
        ("clusterroles", "ClusterRole"),
        ("clusterrolebindings", "ClusterRoleBinding"),
    )
]
_UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
_LONGEST_PAUSE = 10.0
_LONGEST_WORDS = 4096
# Seconds that a kubelet gives even a pod that is deleted at once (grace 0).
_LEAST_GRACE = 1


class DockerCluster:
    """A cluster of two nodes, which are one machine; pods come to both.

    Attributes:
        fake: its API server.
        directory: what is mounted into containers, and certificates.
        kubeconfig, url: of the API server.
    """

    def __init__(self) -> None:
        self.fake = FakeCluster()
        self.fake.kubelet.runs = self.fake.kubelet.removes = False
        add_nodes(self.fake.store, "docker-0", "docker-1")
        self.fake.server.token = uuid.uuid4().hex
        self.fake.server.catalogue.kinds += _MORE_KINDS
        self.directory = Path(tempfile.mkdtemp(prefix="elastic-kube-"))
        self.directory.chmod(0o755)
        self.docker = docker.from_env(timeout=180)
        pool = docker.types.IPAMPool(subnet=_SUBNET, gateway=_GATEWAY)
        self.network = self.docker.networks.create(
            f"elastic-kube-{os.getpid()}",
            ipam=docker.types.IPAMConfig(pool_configs=[pool]),
            labels={LABEL: str(os.getpid())},
        )
        self._runners: dict[str, Runner] = {}
        self._closing = threading.Event()
        self._todo = threading.Event()
        self._addresses = iter(f"10.96.{200 + n // 250}.{n % 250 + 1}" for n in range(10000))
        self._door = Door(self.fake.url, _GATEWAY, _PORT, self.directory)
        self.fake.store.listeners.append(self._on_change)
        self._keeper = threading.Thread(target=self._keep_deployments, daemon=True)
        self._keeper.start()
        self.kubeconfig, self.url = self.fake.kubeconfig, self.fake.url

    def close(self) -> None:
        """Removes all containers, and everything else. Idempotent."""
        self._closing.set()
        self._todo.set()
        self._keeper.join()
        for runner in tuple(self._runners.values()):
            runner.end(0)
        for runner in tuple(self._runners.values()):
            runner.thread.join(60)
        self._door.close()
        with contextlib.suppress(NotFound):
            self.network.remove()
        self.fake.close()
        self.docker.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def address_for(self, pod: Object) -> str:
        """An address for a pod: that of the Service in front of it, or one of its own."""
        taken = {runner.address for runner in tuple(self._runners.values())}
        for service in self.fake.store.list(SERVICE, pod["metadata"]["namespace"]):
            chosen = service["spec"].get("selector") or {}
            wanted = ",".join(f"{key}={value}" for key, value in chosen.items())
            address = str(service["spec"].get("clusterIP"))
            if chosen and address != "None" and address not in taken:
                if selected(pod["metadata"].get("labels", {}), wanted):
                    return address
        return next(self._addresses)

    def forget(self, uid: str) -> None:
        """A pod is gone."""
        self._runners.pop(uid, None)

    def _on_change(self, change: Change) -> None:
        meta = change.item["metadata"]
        if change.kind == POD:
            if change.type == "ADDED" and not self._closing.is_set():
                self._runners[meta["uid"]] = Runner(self, change.item)
            elif runner := self._runners.get(meta["uid"]):
                if change.type == "DELETED":
                    runner.end(_LEAST_GRACE)
                elif meta.get("deletionTimestamp"):
                    runner.end(int(meta["deletionGracePeriodSeconds"]))
        elif change.kind == CRD and change.type == "ADDED":
            met = {"conditions": [{"type": "Established", "status": "True"}]}
            self.fake.store.change(CRD, "", meta["name"], {"status": met})
        elif change.kind == NAMESPACE and change.type == "DELETED":
            self._empty(meta["name"])
        if change.kind in (POD, DEPLOYMENT):
            self._todo.set()

    def _empty(self, namespace: str) -> None:
        store = self.fake.store
        for kind in self.fake.server.catalogue.kinds:
            for item in store.list(kind, namespace) if kind.namespaced else ():
                name = item["metadata"]["name"]
                if store.find(kind, namespace, name):  # and not gone with its owner
                    store.delete(kind, namespace, name)

    # Deployments

    def _keep_deployments(self) -> None:
        while not self._closing.is_set():
            self._todo.wait()
            self._todo.clear()
            for deployment in self.fake.store.list(DEPLOYMENT):
                with self.fake.store.lock:
                    keep_deployment(self.fake.store, deployment)


class Runner:
    """Runs one pod: a thread that starts its container, waits for its end, and says so."""

    def __init__(self, cluster: DockerCluster, pod: Object) -> None:
        self.address, self._node = "", ""
        self.thread = threading.Thread(target=self._run, daemon=True)
        self._cluster, self._pod = cluster, pod
        self._namespace, self._name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        self._spec = pod["spec"]["containers"][0]
        self._directory = cluster.directory / pod["metadata"]["uid"]
        self._ending = threading.Event()
        self._over = threading.Event()  # the present run of the container
        self._container: Any = None
        self._restarts = 0
        self._ready = False
        self.thread.start()

    def end(self, grace: int) -> None:
        """SIGTERM, and SIGKILL after so many seconds; the pod goes away then."""
        if not self._ending.is_set() or grace <= _LEAST_GRACE:
            self._ending.set()
            threading.Thread(target=self._stop, args=(grace,), daemon=True).start()

    def _stop(self, grace: int) -> None:
        if self._container is not None:
            with contextlib.suppress(APIError):
                self._container.stop(timeout=grace) if grace else self._container.kill()

    def _run(self) -> None:
        try:
            if not self._place():
                return
            self.address = self._cluster.address_for(self._pod)
            self._container = self._created()
            self._live()
        except ImageNotFound as error:
            self._cluster.fake.kubelet.wait_for_image(self._namespace, self._name, str(error))
            self._ending.wait()
        except DockerException as error:
            state = {"waiting": {"reason": "CreateContainerError", "message": str(error)}}
            self._show("Pending", state)
            self._ending.wait()
        finally:
            self._remove()

    def _place(self) -> bool:
        """Waits for a node that is not cordoned; whether there is one before the pod has to go."""
        store = self._cluster.fake.store
        while not self._ending.is_set():
            with store.lock:
                self._node = choose_node(store)
                held = store.find(POD, self._namespace, self._name)
                if self._node and held:
                    where = {"spec": {"nodeName": self._node}}
                    store.change(POD, self._namespace, self._name, where)
            if self._node:
                return True
            self._ending.wait(0.25)
        return False

    def _live(self) -> None:
        pause = 0.5
        while not self._ending.is_set():
            started = now()
            self._over.clear()
            self._container.start()
            if self._ending.is_set():  # asked to end while it was being created
                self._stop(0)
            self._show("Running", {"running": {"startedAt": started}}, not self._probe())
            for follow in (self._follow, self._watch_readiness):
                threading.Thread(target=follow, daemon=True).start()
            code = int(self._container.wait(timeout=86400)["StatusCode"])
            self._over.set()
            ended = {"exitCode": code, "reason": self._reason(code), "startedAt": started}
            words = {"message": self._last_words.read_text(errors="replace")[:_LONGEST_WORDS]}
            state = {"terminated": {**ended, **words, "finishedAt": now()}}
            policy = self._pod["spec"].get("restartPolicy", "Always")
            again = policy == "Always" or (policy == "OnFailure" and code)
            if not again or self._ending.is_set():
                self._show("Failed" if code else "Succeeded", state)
                self._ending.wait()
                return
            self._restarts += 1
            waiting = {"reason": "CrashLoopBackOff", "message": "it is started again soon"}
            self._show("Running", {"waiting": waiting})
            self._ending.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _reason(self, code: int) -> str:
        self._container.reload()
        if self._container.attrs["State"]["OOMKilled"]:
            return "OOMKilled"
        return "Error" if code else "Completed"

    def _remove(self) -> None:
        if self._container is not None:
            with contextlib.suppress(APIError):
                self._container.remove(force=True, v=True)
        shutil.rmtree(self._directory, ignore_errors=True)
        for volume in self._memory():
            shutil.rmtree(volume, ignore_errors=True)
        self._cluster.forget(self._pod["metadata"]["uid"])
        store = self._cluster.fake.store
        with store.lock:
            left = store.find(POD, self._namespace, self._name)
            if left and left["metadata"]["uid"] == self._pod["metadata"]["uid"]:
                store.delete(POD, self._namespace, self._name, {"gracePeriodSeconds": 0})

    # What others see

    def _show(self, phase: str, state: Object, ready: bool = False) -> None:
        self._ready = ready
        container = {"name": self._spec["name"], "image": self._spec["image"], "imageID": ""}
        container |= {"ready": ready, "restartCount": self._restarts, "state": state}
        met = {"PodScheduled": True, "Initialized": True, "Ready": ready}
        conditions = [{"type": type, "status": str(is_met)} for type, is_met in met.items()]
        status = {"phase": phase, "podIP": self.address, "hostIP": _GATEWAY, "startTime": now()}
        status |= {"conditions": conditions, "containerStatuses": [container]}
        store = self._cluster.fake.store
        with store.lock:
            held = store.find(POD, self._namespace, self._name)
            if held and held["metadata"]["uid"] == self._pod["metadata"]["uid"]:
                status["startTime"] = held["status"].get("startTime", status["startTime"])
                change = {"spec": {"nodeName": self._node}, "status": status}
                store.change(POD, self._namespace, self._name, change)

    def _follow(self) -> None:
        """What the container says is its log."""
        with contextlib.suppress(DockerException, OSError):
            since = {"tail": 0} if self._restarts else {}
            for text in self._container.logs(stream=True, follow=True, **since):
                words, uid = text.decode(errors="replace"), self._pod["metadata"]["uid"]
                self._cluster.fake.kubelet.write(self._namespace, self._name, words, uid)

    def _probe(self) -> Object:
        return dict(self._spec.get("readinessProbe") or {})

    def _watch_readiness(self) -> None:
        """Asks the readiness probe as long as the container runs."""
        probe = self._probe()
        if not probe:
            return
        place = probe.get("httpGet") or probe.get("tcpSocket") or {}
        named = {one.get("name"): one["containerPort"] for one in self._spec.get("ports", ())}
        port = named.get(place["port"], place["port"])
        while not self._over.wait(min(probe.get("periodSeconds", 10), 1)):
            ready = _answers(self.address, int(port), place.get("path", ""))
            if ready != self._ready and not self._over.is_set():
                self._container.reload()
                started = self._container.attrs["State"]["StartedAt"][:19] + "Z"
                self._show("Running", {"running": {"startedAt": started}}, ready)

    # From the manifest to a container

    def _created(self) -> Any:
        spec, cluster = self._spec, self._cluster
        if len(self._pod["spec"]["containers"]) > 1 or self._pod["spec"].get("initContainers"):
            raise DockerException("only pods of one container can be run here")
        environment = self._environment()
        say = lambda words: [_expanded(str(word), environment) for word in words]  # noqa: E731
        both = {**(self._pod["spec"].get("securityContext") or {})}
        both |= spec.get("securityContext") or {}
        dropped = (both.get("capabilities") or {}).get("drop")
        guarded = both.get("allowPrivilegeEscalation") is False
        limit = ((spec.get("resources") or {}).get("limits") or {}).get("memory")
        endpoint = cluster.docker.api.create_endpoint_config(ipv4_address=self.address)
        return cluster.docker.containers.create(
            spec["image"],
            say(spec["args"]) if spec.get("args") else None,
            **({"entrypoint": say(spec["command"])} if spec.get("command") else {}),
            name=f"elastic-kube-{self._name}-{self._pod['metadata']['uid'][:8]}",
            hostname=self._name,
            environment=environment,
            working_dir=spec.get("workingDir"),
            user=str(both.get("runAsUser", "")),
            read_only=bool(both.get("readOnlyRootFilesystem")),
            cap_drop=dropped,
            security_opt=["no-new-privileges"] if guarded else [],
            mem_limit=_bytes(limit) if limit else None,
            volumes=[f"{source}:{path}:{mode}" for source, path, mode in self._volumes()],
            labels={LABEL: str(os.getpid())},
            network=cluster.network.name,
            networking_config={cluster.network.name: endpoint},
        )

    def _environment(self) -> dict[str, str]:
        found = {"KUBERNETES_SERVICE_HOST": _GATEWAY, "KUBERNETES_SERVICE_PORT": str(_PORT)}
        found["KUBERNETES_SERVICE_PORT_HTTPS"] = str(_PORT)
        if self._pod["spec"].get("enableServiceLinks", True):
            for service in self._cluster.fake.store.list(SERVICE, self._namespace):
                name = service["metadata"]["name"].upper().replace("-", "_")
                address = service["spec"].get("clusterIP")
                for port in service["spec"].get("ports", ()) if address != "None" else ():
                    found[f"{name}_SERVICE_HOST"] = address
                    found[f"{name}_SERVICE_PORT"] = str(port["port"])
                    found[f"{name}_PORT"] = f"tcp://{address}:{port['port']}"
        for one in self._spec.get("env", ()):
            source = one.get("valueFrom")
            value = self._looked_up(source) if source else str(one.get("value", ""))
            found[one["name"]] = value if source else _expanded(value, found)
        return found

    def _looked_up(self, source: Object) -> str:
        if field := source.get("fieldRef"):
            path = field["fieldPath"]
            if path in ("status.podIP", "status.hostIP", "spec.nodeName"):
                own = {"status.podIP": self.address, "status.hostIP": _GATEWAY}
                return own.get(path, self._node)
            found = re.fullmatch(r"metadata\.(\w+)(?:\['(.*)'\])?", path)
            value = self._pod["metadata"][found[1]] if found else ""
            return str(value.get(found[2], "")) if found and found[2] else str(value)
        for kind, key in (("Secret", "secretKeyRef"), ("ConfigMap", "configMapKeyRef")):
            if one := source.get(key):
                return self._files(kind, one["name"])[one["key"]].decode()
        raise DockerException(f"this source of a variable is not known here: {source}")

    def _files(self, kind: str, name: str) -> dict[str, bytes]:
        place = next(each for each in KINDS if each.name == kind)
        item = self._cluster.fake.store.get(place, self._namespace, name)
        if kind == "Secret":
            return {key: base64.b64decode(text) for key, text in item.get("data", {}).items()}
        return {key: str(text).encode() for key, text in item.get("data", {}).items()}

    def _volumes(self) -> Iterator[tuple[Path, str, str]]:
        """Source, path and mode of what is mounted."""
        sources = {volume["name"]: volume for volume in self._pod["spec"].get("volumes", ())}
        for mount in self._spec.get("volumeMounts", ()):
            volume = sources[mount["name"]]
            directory = self._directory / volume["name"]
            if "emptyDir" in volume:
                if (volume["emptyDir"] or {}).get("medium") == "Memory":
                    directory = self._memory_of(volume["name"])
                files: dict[str, bytes] = {}
            elif "configMap" in volume:
                files = self._files("ConfigMap", volume["configMap"]["name"])
            elif "secret" in volume:
                files = self._files("Secret", volume["secret"]["secretName"])
            else:
                raise DockerException(f"this kind of volume is not known here: {volume}")
            yield (
                _filled(directory, files),
                mount["mountPath"],
                "ro" if mount.get("readOnly") else "rw",
            )
        path = self._spec.get("terminationMessagePath", "/dev/termination-log")
        yield _filled(self._directory, {"last-words": b""}) / "last-words", path, "rw"
        self._last_words.chmod(0o666)
        if self._pod["spec"].get("automountServiceAccountToken", True):
            token, cluster = self._cluster.fake.server.token, self._cluster
            files = {"token": token.encode(), "namespace": self._namespace.encode()}
            files["ca.crt"] = (cluster.directory / "server.pem").read_bytes()
            yield _filled(self._directory / ".account", files), _ACCOUNT, "ro"

    @property
    def _last_words(self) -> Path:
        return self._directory / "last-words"

    def _memory_of(self, volume: str) -> Path:
        return Path("/dev/shm") / f"elastic-kube-{self._pod['metadata']['uid']}-{volume}"

    def _memory(self) -> list[Path]:
        volumes = self._pod["spec"].get("volumes", ())
        return [self._memory_of(volume["name"]) for volume in volumes]


def _answers(address: str, port: int, path: str) -> bool:
    try:
        if not path:
            socket.create_connection((address, port), 1).close()
            return True
        connection = http.client.HTTPConnection(address, port, timeout=2)
        try:
            connection.request("GET", path)
            return connection.getresponse().status < 400
        finally:
            connection.close()
    except (OSError, http.client.HTTPException):
        return False


def _expanded(text: str, values: dict[str, str]) -> str:
    return re.sub(r"\$\(([\w.-]+)\)", lambda found: values.get(found[1], found[0]), text)


def _bytes(amount: str) -> int:
    found = re.fullmatch(r"(\d+)(Ki|Mi|Gi)?", str(amount))
    if not found:
        raise DockerException(f"this amount of memory is not understood here: {amount}")
    return int(found[1]) * _UNITS.get(found[2] or "", 1)


def _filled(directory: Path, files: dict[str, bytes]) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o1777)
    for name, data in files.items():
        (directory / name).write_bytes(data)
    return directory


if __name__ == "__main__":
    raise SystemExit(serve(__doc__ or "", DockerCluster))
