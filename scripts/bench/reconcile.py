#!/usr/bin/env python3
"""How fast the controller brings many ElasticJobs up, and what it costs when nothing happens.

The fake API server of the tests and the controller run as processes of their own; this one submits
the jobs and watches. Every pod runs as soon as it is created, so what is measured is the
controller, and the fake server's own time with it.

    scripts/bench/reconcile.py --jobs 200 --pods 4 --json /tmp/reconcile.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from elastic_runtime.controller.spec.job_spec import JOBS
from elastic_runtime.kubernetes.api_client import ApiClient
from elastic_runtime.kubernetes.api_resources import PODS
from elastic_runtime.kubernetes.cluster_access import ClusterCredentials
from scripts.bench.measure.figures import quantile
from scripts.bench.measure.report import machine
from tests import processes
from tests.etcd_server import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PATIENCE = 300.0
_RENEWAL = "update leases"
_FOLLOWS = "watch elasticjobs"


@dataclass(frozen=True)
class Task:
    """What is measured.

    Attributes:
        jobs: how many.
        pods: how many workers each has.
        endpoint: of an etcd that all share; "": the controller makes one for each job.
        deletions: how many pods are deleted, one after the other.
        idle_seconds: for how long nothing happens.
    """

    jobs: int
    pods: int
    endpoint: str
    deletions: int
    idle_seconds: float


@dataclass
class Figures:
    """What was measured.

    Attributes:
        settled: seconds from the first job submitted until the status of the last one said that
            all its pods are ready.
        requests: what the controller asked of the API server until then, by kind.
        answers: seconds from the deletion of a pod to the creation of its successor.
        idle: what was asked while nothing happened.
        busy: share of a core that the controller took while nothing happened.
        megabytes: of memory, then and at most.
        restarted: the same of a controller that was started when all jobs were there.
    """

    settled: float = 0.0
    requests: dict[str, int] = field(default_factory=dict)
    answers: list[float] = field(default_factory=list)
    idle: dict[str, int] = field(default_factory=dict)
    busy: float = 0.0
    megabytes: tuple[float, float] = (0.0, 0.0)
    restarted: tuple[float, float] = (0.0, 0.0)


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=200, help="how many jobs (200)")
    parser.add_argument("--pods", type=int, default=4, help="workers of each job (4)")
    parser.add_argument("--endpoint", default="", help="an etcd that all share (one for each)")
    parser.add_argument("--deletions", type=int, default=20, help="pods that are deleted (20)")
    parser.add_argument("--idle-seconds", type=float, default=30.0, help="of doing nothing (30)")
    parser.add_argument("--json", type=Path, help="file for the whole result")
    args = parser.parse_args()
    task = Task(args.jobs, args.pods, args.endpoint, args.deletions, args.idle_seconds)
    figures = run(task)
    if args.json:
        report = {"machine": machine(), "task": asdict(task), "figures": asdict(figures)}
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    print(table(task, figures))
    return 0


def run(task: Task) -> Figures:
    """Starts a server and a controller, takes the figures, and starts another controller."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        config = Path(directory) / "kubeconfig"
        log = stack.enter_context((Path(directory) / "controller.log").open("w"))
        url = stack.enter_context(_server(config))
        with _controller(config, log) as controller:
            figures = asyncio.run(measure(task, url, controller.pid))
        watches = asyncio.run(_watches(url))
        with _controller(config, log) as controller:
            figures.restarted = asyncio.run(_restarted(url, controller.pid, watches))
    return figures


async def _watches(url: str) -> int:
    async with ApiClient(lambda: ClusterCredentials(url), "reconcile-bench") as api:
        return (await _counts(api))[_FOLLOWS]


async def _restarted(url: str, controller: int, watches: int) -> tuple[float, float]:
    async with ApiClient(lambda: ClusterCredentials(url), "reconcile-bench") as api:
        await _until_it_follows(api, watches)
        await _quiet(api)
        return _megabytes(controller)


async def measure(task: Task, url: str, controller: int) -> Figures:
    """Submits the jobs and takes the figures.

    Args:
        task: what is measured.
        url: of the API server.
        controller: its process.
    """
    figures = Figures()
    async with ApiClient(lambda: ClusterCredentials(url), "reconcile-bench") as api:
        await _until_it_follows(api)
        view = _View(api)
        following = asyncio.create_task(view.follow())
        before, begun = await _counts(api), time.monotonic()
        await asyncio.gather(*(_submit(api, task, number) for number in range(task.jobs)))
        await view.wait(lambda: len(view.settled) == task.jobs)
        figures.settled = time.monotonic() - begun
        figures.requests = dict(await _counts(api) - before)
        for number in range(task.deletions):
            name = f"job-{number % task.jobs}-worker-{number % task.pods}"
            figures.answers.append(await _answer(api, view, name))
        await _quiet(api)
        before, spent = await _counts(api), processes.cpu_seconds(controller)
        await asyncio.sleep(task.idle_seconds)
        figures.idle = dict(await _counts(api) - before)
        figures.busy = (processes.cpu_seconds(controller) - spent) / task.idle_seconds
        figures.megabytes = _megabytes(controller)
        following.cancel()
    return figures


class _View:
    """What a client sees of jobs and pods."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._changed = asyncio.Condition()
        self.settled: set[str] = set()
        self.created: dict[str, tuple[str, float]] = {}
        self.deleted: dict[str, float] = {}

    async def follow(self) -> None:
        await asyncio.gather(self._jobs(), self._pods())

    async def wait(self, happened: Callable[[], bool]) -> None:
        async with asyncio.timeout(_PATIENCE), self._changed:
            await self._changed.wait_for(happened)

    async def _jobs(self) -> None:
        async for event in self._api.watch(JOBS.path(), "0"):
            if event["type"] == "BOOKMARK":
                continue
            item: Any = event["object"]
            wanted = item["spec"]["replicaSpecs"]["Worker"]["replicas"]
            workers = item.get("status", {}).get("replicaStatuses", {}).get("Worker", {})
            is_settled = workers.get("ready") == wanted
            (self.settled.add if is_settled else self.settled.discard)(item["metadata"]["name"])
            await self._tell()

    async def _pods(self) -> None:
        async for event in self._api.watch(PODS.path(), "0"):
            now, item = time.monotonic(), event["object"]
            if event["type"] == "ADDED":
                self.created[item["metadata"]["name"]] = (item["metadata"]["uid"], now)
            elif event["type"] == "DELETED":
                self.deleted[item["metadata"]["uid"]] = now
            else:
                continue
            await self._tell()

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()


async def _submit(api: ApiClient, task: Task, number: int) -> None:
    container = {"name": "elasticjob-worker", "image": "train", "args": ["train.py"]}
    template = {"spec": {"containers": [container]}}
    spec: dict[str, Any] = {
        "minReplicas": 1,
        "maxReplicas": task.pods,
        "replicaSpecs": {"Worker": {"replicas": task.pods, "template": template}},
    }
    if task.endpoint:
        spec["rdzvEndpoint"] = task.endpoint
    kind = {"apiVersion": "elastic.pytorch.org/v1alpha1", "kind": "ElasticJob"}
    metadata = {"name": f"job-{number}", "namespace": "default"}
    await api.create(JOBS, "default", {**kind, "metadata": metadata, "spec": spec})


async def _answer(api: ApiClient, view: _View, name: str) -> float:
    """Seconds between a pod's end and the creation of the next one of its name."""
    uid, _ = view.created[name]
    await api.delete(PODS, "default", name, grace=0)
    await view.wait(lambda: view.created[name][0] != uid and uid in view.deleted)
    return view.created[name][1] - view.deleted[uid]


async def _until_it_follows(api: ApiClient, watches: int = 0) -> None:
    """Returns when jobs were watched more often than so."""
    while (await _counts(api))[_FOLLOWS] <= watches:  # noqa: ASYNC110 - in another process
        await asyncio.sleep(0.05)


async def _quiet(api: ApiClient) -> None:
    """Returns when nothing but the Lease was asked for during two seconds."""
    before = await _counts(api)
    while True:
        await asyncio.sleep(2)
        now = await _counts(api)
        if not (now - before).keys() - {_RENEWAL}:
            return
        before = now


async def _counts(api: ApiClient) -> Counter[str]:
    return Counter(await api.get("/fake/counts"))


@contextmanager
def _server(config: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "tests.kube", "--kubeconfig", str(config)]
    with _process(command, stdout=subprocess.PIPE, text=True) as process:
        yield str(json.loads(process.stdout.readline())["url"])


@contextmanager
def _controller(config: Path, log: Any) -> Iterator[subprocess.Popen[str]]:
    port = str(free_port())
    command = [sys.executable, "-m", "elastic_runtime.controller", "--liveness-port", port]
    environment = {**os.environ, "KUBECONFIG": str(config)}
    with _process(command, env=environment, stdout=log) as process:
        yield process


@contextmanager
def _process(command: list[str], **more: Any) -> Iterator[Any]:
    process = subprocess.Popen(command, cwd=Path(__file__).resolve().parents[2], **more)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)
        if process.stdout:
            process.stdout.close()


def _megabytes(pid: int) -> tuple[float, float]:
    found = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("VmRSS", "VmHWM"):
            found[name] = int(value.split()[0]) * 1024 / 1e6
    return found["VmRSS"], found["VmHWM"]


def table(task: Task, figures: Figures) -> str:
    """The four figures, each beside what it should be."""
    asked = sum(figures.requests.values())
    idle = {name: number for name, number in figures.idle.items() if name != _RENEWAL}
    median, worst = quantile(figures.answers, 0.5), max(figures.answers)
    (now, most), (again, most_again) = figures.megabytes, figures.restarted
    renewed = figures.idle.get(_RENEWAL, 0)
    lines = [
        f"{task.jobs} jobs, {task.pods} pods each",
        f"settled after        {figures.settled:.1f} s, {asked} requests",
        f"a pod's successor    {median:.3f} s median, {worst:.3f} s at most",
        f"asked while idle     {idle or 'nothing'} in {task.idle_seconds:g} s",
        f"                     but for the Lease, which was renewed {renewed} times",
        f"                     and {100 * figures.busy:.1f} % of a core were used",
        f"memory               {now:.0f} MB, {most:.0f} MB at most",
        f"                     {again:.0f} MB, {most_again:.0f} MB at most after a restart",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
