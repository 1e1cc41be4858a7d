"""A fake cluster for tests: the API server in a thread, its store and kubelet within reach."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import threading
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.kube.agents import Agents
from tests.kube.kinds import EVENT, JOB, NAMESPACE, POD, Kind
from tests.kube.kubelet import Kubelet
from tests.kube.server import ApiServer, Request, Trouble
from tests.kube.store import Object, Refusal, Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PATIENCE = 60.0


class FakeCluster:
    """An API server on 127.0.0.1 with a kubelet; everything may be called from the test's thread.

    Attributes:
        url: where it listens.
        store: what it remembers.
        kubelet: what runs its pods.
        agents: what answers in those of workers.
        server: its HTTP.
    """

    def __init__(self) -> None:
        self.store = Store()
        self.server = ApiServer(self.store)
        self.kubelet = Kubelet(self.store, self.server)
        for name in ("default", "elastic-job"):
            self.store.create(NAMESPACE, "", {"metadata": {"name": name}})
        self._loop = asyncio.new_event_loop()
        self.agents = Agents(self.store, self._loop)
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.server.start(), self._loop).result(_PATIENCE)
        self.url = self.server.url

    def close(self) -> None:
        """Ends the server and its connections."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(_PATIENCE)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE)
        self._loop.close()

    async def _end(self) -> None:
        await self.agents.close()
        await self.server.stop()
        # Answers that are under way, such as to a controller that was killed while it asked.
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0)  # what they have closed is closed in this turn

    def kubeconfig(self, path: Path, namespace: str = "default") -> Path:
        """Writes a kubeconfig for this cluster, and gives its path."""
        path.write_text(json.dumps(kubeconfig(self.url, namespace, self.server.token)))
        return path

    # Objects

    def add(self, kind: Kind, item: Object) -> Object:
        """Creates an object as a user would."""
        return self.store.create(kind, item["metadata"].get("namespace", ""), item)

    def job(self, name: str, namespace: str = "default") -> Object:
        """An ElasticJob as it is now."""
        return self.store.get(JOB, namespace, name)

    def pods(self, job: str = "", role: str = "worker", namespace: str = "") -> dict[str, Object]:
        """Pods by name; of one job and role, if these are given."""
        wanted = {"job-name": job, "app.kubernetes.io/component": role if job else ""}
        selector = ",".join(f"{key}={value}" for key, value in wanted.items() if value)
        found = self.store.list(POD, namespace, selector)
        return {pod["metadata"]["name"]: pod for pod in found}

    def condition(self, name: str, type: str, namespace: str = "default") -> Object:
        """A condition of a job; an empty one if it has none of that type."""
        for one in self.job(name, namespace).get("status", {}).get("conditions", ()):
            if one["type"] == type:
                return dict(one)
        return {}

    def events(self, name: str) -> list[Object]:
        """The events that name an object."""
        return [one for one in self.store.list(EVENT) if one["involvedObject"]["name"] == name]

    def edit(self, kind: Kind, name: str, patch: Object, namespace: str = "default") -> Object:
        """Merges a patch into an object's spec or metadata, as a user would."""
        from tests.kube.patches import merged

        with self.store.lock:
            old = self.store.get(kind, namespace, name)
            return self.store.replace(kind, old, merged(old, patch))

    # Waiting, and what goes wrong

    def wait_for(self, happened: Callable[[], Any], what: str, patience: float = _PATIENCE) -> Any:
        """Waits for something to be true of the objects; looks at each of their changes."""
        return self.store.wait_for(happened, patience, what, self.story)

    def await_condition(self, name: str, type: str, said: str = "True") -> Object:
        """Waits until a condition of a job has this status or reason, and gives it."""

        def found() -> Object | None:
            one = self.condition(name, type)
            return one if said in (one.get("status"), one.get("reason")) else None

        held: Object = self.wait_for(found, f"{type} of {name} is {said}")
        return held

    def scale(self, name: str, replicas: int, namespace: str = "default") -> None:
        """A user asks for so many pods."""
        worker = {"Worker": {"replicas": replicas}}
        self.edit(JOB, name, {"spec": {"replicaSpecs": worker}}, namespace)

    def story(self) -> str:
        """What there is, for the message of a test that fails."""
        found = self.store.list(JOB)
        jobs = [f"{job['metadata']['name']}: {json.dumps(job.get('status'))}" for job in found]
        pods = [
            f"{name}: {pod['status']['phase']}"
            + (" (ending)" if pod["metadata"].get("deletionTimestamp") else "")
            for name, pod in self.pods().items()
        ]
        return "\n".join(["jobs:", *jobs, "pods:", *pods, f"requests: {dict(self.counts())}"])

    def counts(self) -> Counter[str]:
        """How often each kind of request came so far, as ``patch elasticjobs/status``."""
        with self.store.lock:
            return Counter(self.server.counts)

    @contextmanager
    def trouble(
        self,
        meets: Callable[[Request], bool],
        code: int,
        reason: str,
        message: str,
        times: int | None = None,
    ) -> Iterator[Trouble]:
        """Refuses requests for a while.

        Args:
            meets: which ones.
            code: the HTTP status of the refusal.
            reason: its reason, such as ``Forbidden``.
            message: its message.
            times: how often; as long as the block lasts, if not given.
        """
        trouble = Trouble(meets, Refusal(code, reason, message), times)
        with self.store.lock:
            self.server.troubles.append(trouble)
        try:
            yield trouble
        finally:
            with self.store.lock:
                if trouble in self.server.troubles:
                    self.server.troubles.remove(trouble)

    def break_watches(self, forget: bool = False) -> None:
        """Breaks all watches in the middle; with ``forget`` they cannot go on where they were."""
        if forget:
            self.store.forget()
        self.server.break_streams()


def serve(about: str, clusters: Callable[[], Any]) -> int:
    """The main function of a cluster in a process of its own: serves until it is told to end.

    Args:
        about: what it is, for ``--help``.
        clusters: makes it; what it makes has ``kubeconfig``, ``url`` and ``close``.
    """
    parser = argparse.ArgumentParser(description=about.partition("\n")[0])
    parser.add_argument("--kubeconfig", type=Path, required=True, help="is written when it is up")
    args = parser.parse_args()
    cluster = clusters()
    try:
        ended = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: ended.set())
        cluster.kubeconfig(args.kubeconfig)
        print(json.dumps({"url": cluster.url}), flush=True)
        ended.wait()
    finally:
        cluster.close()
    return 0


def kubeconfig(url: str, namespace: str, token: str = "") -> Object:
    """A kubeconfig for a server."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "fake",
        "clusters": [{"name": "fake", "cluster": {"server": url}}],
        "users": [{"name": "tester", "user": {"token": token or "none"}}],
        "contexts": [
            {
                "name": "fake",
                "context": {"cluster": "fake", "user": "tester", "namespace": namespace},
            }
        ],
    }
