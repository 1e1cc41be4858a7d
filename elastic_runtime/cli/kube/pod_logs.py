"""``elasticctl logs``: what the workers of all pods print, as one stream."""

from __future__ import annotations

import heapq
import json
import queue
import re
import threading
import time
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from elastic_runtime.cli.kube.job_client import NoSuchJob
from elastic_runtime.cli.kube.job_report import (
    PodLine,
    container_state,
    job_line,
    pod_line,
    pod_template,
    worker_container,
)
from elastic_runtime.errors import ClusterUnreachable, ElasticError, UsageError
from elastic_runtime.kubernetes.api_times import format_time
from elastic_runtime.limits import POLL_INTERVAL
from elastic_runtime.reporting.json_lines import WORKER_LINE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from elastic_runtime.cli.kube.job_client import JobClient, Object

_DEFAULT_ROLE = "default"
_ROLE_VARIABLES = ("PET_ROLE", "ELASTIC_ROLE")
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")
_WAITING_LINES = 10_000


@dataclass(frozen=True)
class LogLine:
    """One line of one pod.

    Attributes:
        pod: its short name, ``worker-1``.
        at: nanoseconds since 1970.
        text: without a line end.
    """

    pod: str
    at: int
    text: bytes


@dataclass(frozen=True)
class LogFilter:
    """Which lines are to be shown.

    Attributes:
        pod: a pod's name, whole or short, or a worker's index; "" for all workers.
        rank: only lines of the worker with this global rank; None: all.
        role: what is put before ranks in the output of ``elastic-run``.
        tail: only the last lines of each pod; None: all.
    """

    pod: str = ""
    rank: int | None = None
    role: str = _DEFAULT_ROLE
    tail: int | None = None

    def pods(self, job: str, pods: Iterable[Object]) -> list[Object]:
        """The pods that are meant, by index."""
        pairs = sorted(
            ((pod_line(pod), pod) for pod in pods), key=lambda pair: (pair[0].index, pair[0].name)
        )
        return [pod for line, pod in pairs if self._means(job, line)]

    def matches(self, line: LogLine) -> bool:
        """Whether a line is to be shown: each line of a worker has its rank in front, or in it."""
        if self.rank is None or line.text.startswith(f"[{self.role}{self.rank}]:".encode()):
            return True
        if not line.text.startswith(b"{"):
            return False
        try:  # with --log-format json
            event = json.loads(line.text)
        except ValueError:
            return False
        return bool(event.get("event") == WORKER_LINE and event.get("rank") == self.rank)

    def _means(self, job: str, line: PodLine) -> bool:
        if not self.pod:
            return line.index >= 0
        short = f"worker-{line.index}"
        return self.pod in (line.name, short_name(job, line.name), short, str(line.index))


def role_of(job: Object) -> str:
    """The role that ``elastic-run`` was given, as a flag or in the environment of the pods."""
    container = worker_container(pod_template(job))
    args = [str(arg) for arg in container.get("args") or ()]
    for arg, following in zip(args, args[1:] + args[:1], strict=True):
        if arg == "--role":
            return following
        if arg.startswith("--role="):
            return arg.partition("=")[2]
        if arg == "-m" or arg.endswith(".py"):
            break  # what follows is the script's own
    env = {one.get("name"): one.get("value") for one in container.get("env") or ()}
    return next((env[name] for name in _ROLE_VARIABLES if env.get(name)), _DEFAULT_ROLE)


def short_name(job: str, pod: str) -> str:
    """A pod's name without that of its job, which all of them begin with."""
    return pod.removeprefix(f"{job}-")


def parse_line(pod: str, line: bytes, before: int = 0) -> LogLine:
    """Takes a line of the API apart: a time, a space, and what was printed.

    Args:
        pod: whose it is.
        line: as it came.
        before: time of the line before, which a line without one has too.
    """
    stamp, _, text = line.partition(b" ")
    found = _TIME.fullmatch(stamp.decode("ascii", "replace"))
    if not found:
        return LogLine(pod, before, line)
    whole, fraction, zone = found.groups()
    seconds = int(datetime.fromisoformat(whole + zone).timestamp())
    return LogLine(pod, seconds * 10**9 + int((fraction or "").ljust(9, "0")), text)


def read_logs(
    client: JobClient, job: str, wanted: LogFilter, tell: Callable[[str], None]
) -> Iterator[LogLine]:
    """What there is, of all pods, in the order of time.

    Args:
        client: of the cluster.
        job: whose.
        wanted: which lines.
        tell: says which pods have printed nothing, and why.

    Raises:
        UsageError: no pod is meant.
    """
    present = client.pods(job)
    pods = wanted.pods(job, present)
    if not pods:
        raise _no_pod(job, wanted, present)
    streams = []
    for pod in pods:
        if _has_begun(pod):
            streams.append(_log(client, job, pod, wanted.tail))
        else:
            line = pod_line(pod)
            why = f" ({line.detail})" if line.detail else ""
            tell(f"{short_name(job, line.name)} has printed nothing yet: {line.state}{why}")
    for printed_line in heapq.merge(*streams, key=lambda one: one.at):
        if wanted.matches(printed_line):
            yield printed_line


@dataclass
class _PodStream:
    """One pod that is being read, again and again until its log is known to be complete.

    Attributes:
        pod: as it was seen last.
        at, same: time of the last line that was taken, and how many lines have that time: by them
            is known what a new stream repeats.
        complete: there will be no more.
        thread: reads; None: it was not begun.
    """

    pod: Object
    at: int = -1
    same: int = 0
    complete: bool = False
    thread: threading.Thread | None = None

    @property
    def reading(self) -> bool:
        """Whether it is being read."""
        return self.thread is not None and self.thread.is_alive()

    def since(self) -> str | None:
        """From when on a new stream has to repeat: servers cut times off to the second."""
        if self.at < 0:
            return None
        return format_time(self.at // 10**9)

    def new(self, lines: Iterable[LogLine]) -> Iterator[LogLine]:
        """The lines that no stream before this one has brought."""
        last, repeated = self.at, self.same
        for line in lines:
            if line.at < last:
                continue
            if line.at == last and repeated:
                repeated -= 1
                continue
            self.same = self.same + 1 if line.at == self.at else 1
            self.at = line.at
            yield line


class LogFollower:
    """What all pods of a job have printed and will, until the job is over.

    Pods come and go meanwhile. A stream that ends early is opened again.

    Args:
        client: of the cluster.
        job: the name of the job.
        wanted: which lines.
    """

    def __init__(self, client: JobClient, job: str, wanted: LogFilter) -> None:
        self._client = client
        self._job = job
        self._wanted = wanted
        self._lines: queue.Queue[LogLine] = queue.Queue(_WAITING_LINES)
        self._streams: dict[str, _PodStream] = {}
        self._uid = ""

    def lines(self) -> Iterator[LogLine]:
        """The lines as they come: in order for each pod, nearly so for all of them.

        Raises:
            UsageError: there is no such job.
        """
        self._uid = self._client.job(self._job)["metadata"].get("uid", "")
        ended = False
        while not ended:
            # Whatever was printed until the end that is seen here is in the queue already.
            ended = self._look()
            for line in self._arriving(0.0 if ended else POLL_INTERVAL):
                if self._wanted.matches(line):
                    yield line

    def _arriving(self, patience: float) -> Iterator[LogLine]:
        """Lines, for so many seconds; for 0, those that are there."""
        until = time.monotonic() + patience
        while True:
            left = until - time.monotonic()
            if patience and left <= 0:
                return
            try:
                yield self._lines.get(timeout=left) if patience else self._lines.get_nowait()
            except queue.Empty:
                return

    def _look(self) -> bool:
        """Sees to it that every pod is read; true when all is over and all has been read."""
        try:
            over = self._is_over()
            pods = self._wanted.pods(self._job, self._client.pods(self._job))
        except ClusterUnreachable:
            return False  # it may be back at the next look
        present = {pod["metadata"]["uid"]: pod for pod in pods if _has_begun(pod)}
        for uid, pod in present.items():
            stream = self._streams.setdefault(uid, _PodStream(pod))
            stream.pod = pod
            if not stream.complete and not stream.reading:
                stream.thread = threading.Thread(target=self._read, args=(stream, pod), daemon=True)
                stream.thread.start()
        for uid, stream in self._streams.items():
            if uid not in present and not stream.reading:
                stream.complete = True  # its log went with it
        return over and all(f.complete and not f.reading for f in self._streams.values())

    def _is_over(self) -> bool:
        try:
            job = self._client.job(self._job)
        except NoSuchJob:
            return True
        return job_line(job).over or job["metadata"].get("uid", "") != self._uid

    def _read(self, stream: _PodStream, pod: Object) -> None:
        """Reads one stream of one pod to its end."""
        since = stream.since()
        tail = self._wanted.tail if since is None else None
        try:
            lines = _log(self._client, self._job, pod, tail, follow=True, since=since)
            for line in stream.new(lines):
                self._lines.put(line)
        except ElasticError:
            return  # the next look finds out what there is to do
        # A stream that was opened while the container ran may have been cut off.
        stream.complete = "terminated" in container_state(pod)


def _log(
    client: JobClient,
    job: str,
    pod: Object,
    tail: int | None,
    follow: bool = False,
    since: str | None = None,
) -> Iterator[LogLine]:
    name, at = pod["metadata"]["name"], 0
    container = worker_container(pod).get("name", "")
    for text in client.log(name, container, follow, tail, since):
        line = parse_line(short_name(job, name), text, at)
        at = line.at
        yield line


def _has_begun(pod: Object) -> bool:
    return not container_state(pod).keys().isdisjoint(("running", "terminated"))


def _no_pod(job: str, wanted: LogFilter, pods: Sequence[Object]) -> UsageError:
    names = sorted(short_name(job, pod["metadata"]["name"]) for pod in pods)
    if wanted.pod and names:
        return UsageError(f"{job} has no pod {wanted.pod!r}: it has {', '.join(names)}")
    return UsageError(
        f"{job} has no workers at the moment, and so no logs: elasticctl status {job} says why"
    )
