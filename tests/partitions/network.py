"""A network for each node of a job: namespaces on a bridge, whose ways to each other can be cut.

All of it is inside of namespaces that are made here: the bridge and the store are in one (the
*hub*), each node has another, with its own host name and addresses. Nothing of the machine's own
network is touched, and several networks exist beside each other. Their names carry the pid of who
made them, so that what a killed run has left behind is known and removed by the next.

A cut drops packets where they *arrive*, so that who sends them learns nothing: a rule for outgoing
packets would be noticed by the sender's own TCP.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from dataclasses import dataclass
from enum import Enum
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from tests import processes
from tests.etcd_server import FAST, binary

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Self

HUB = "hub"  # where the store is
_NET = "10.99.0"
_PORT = 2379
_ETC = Path("/etc/netns")  # ``ip netns exec`` shows what lies there in place of /etc
_NAME = re.compile(r"elastic-(\d+)-\d+-\w+")
_serial = count(1)


class How(Enum):
    """What becomes of a packet that may not pass: a rule of iptables.

    Nothing is said of it, or its sender is told: what tells it (a reset, ICMP) passes itself.
    """

    DROP = "-j DROP"
    RESET = "-p tcp ! --tcp-flags RST RST -j REJECT --reject-with tcp-reset"
    PROHIBIT = "-p tcp -j REJECT --reject-with icmp-host-prohibited"


@dataclass(frozen=True, slots=True)
class Way:
    """One direction between two places, each a node's name or ``HUB``."""

    sender: str
    receiver: str


def why_not() -> str:
    """Why no such network can be made here; "" if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "iptables-restore", "unshare") if not shutil.which(tool)]
    if missing:
        return f"{' and '.join(missing)} not installed; scripts/provision does it"
    try:
        with Network(["n0"], store=False):
            return ""
    except subprocess.CalledProcessError as error:
        return f"no network namespaces: {error.stderr.decode(errors='replace').strip()}"


class Network:
    """Places for nodes, and a real etcd. Use it in a ``with`` statement: at its end all is gone.

    Args:
        names: of the nodes that may be started there.
        directory: for the log and the data of etcd.
        store: start etcd.
    """

    def __init__(
        self, names: Sequence[str], directory: Path | None = None, store: bool = True
    ) -> None:
        self.endpoint = f"{_NET}.1:{_PORT}"
        self.places = [HUB, *names]
        self._prefix = f"elastic-{os.getpid()}-{next(_serial)}-"
        self._etcd: subprocess.Popen[bytes] | None = None
        _remove_leftovers()
        try:
            self._make()
            if store:
                assert directory is not None, "etcd needs a directory"
                self._start_etcd(directory)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def inside(self, place: str) -> list[str]:
        """What a command begins with to run in a place."""
        name = self._prefix + place
        host = ("unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', place)
        return ["ip", "netns", "exec", name, *host]

    def address(self, place: str) -> str:
        """The address of a place."""
        return f"{_NET}.{self.places.index(place) + 1}"

    def cut(self, ways: Iterable[Way], how: How = How.DROP) -> None:
        """Cuts exactly these ways; all others are open from now on.

        Each place changes at once, all of them within some hundredths of a second.
        """
        closed: dict[str, list[str]] = {place: [] for place in self.places}
        for way in ways:
            closed[way.receiver].append(f"-A INPUT -s {self.address(way.sender)} {how.value}")
        runs = []
        for place, rules in closed.items():
            run = subprocess.Popen(
                ["ip", "netns", "exec", self._prefix + place, "iptables-restore"],
                stdin=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            runs.append((run, "\n".join(["*filter", ":INPUT ACCEPT", *rules, "COMMIT", ""])))
        for run, text in runs:
            _, said = run.communicate(text)
            assert run.returncode == 0, f"iptables-restore: {said}"

    def heal(self) -> None:
        """Opens all ways."""
        self.cut(())

    def etcdctl(self, *words: str) -> str:
        """What etcd's own client says, run beside the server."""
        command = [*self.inside(HUB), binary("etcdctl"), "--endpoints", self.endpoint, *words]
        environment = {**os.environ, "ETCDCTL_API": "3"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    def close(self) -> None:
        """Ends what runs in there, and removes everything. Idempotent."""
        _remove(self._prefix)
        if self._etcd is not None:
            self._etcd.wait()

    def _make(self) -> None:
        for place in self.places:
            name = self._prefix + place
            (_ETC / name).mkdir(parents=True)
            # As Debian writes it: the host's own name is no way to it for others.
            (_ETC / name / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {place}\n")
            (_ETC / name / "resolv.conf").write_text("")  # no DNS: nothing may need it
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        hub = self._prefix + HUB
        _ip("-n", hub, "link", "add", "bridge", "type", "bridge")
        _ip("-n", hub, "address", "add", f"{self.address(HUB)}/24", "dev", "bridge")
        _ip("-n", hub, "link", "set", "bridge", "up")
        for number, place in enumerate(self.places[1:]):
            name, port = self._prefix + place, f"port{number}"
            peer = ("type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("-n", hub, "link", "add", port, *peer)
            _ip("-n", hub, "link", "set", port, "master", "bridge", "up")
            _ip("-n", name, "address", "add", f"{self.address(place)}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")

    def _start_etcd(self, directory: Path) -> None:
        url, peer = f"http://{self.endpoint}", f"http://{_NET}.1:{_PORT + 1}"
        command = [
            *self.inside(HUB),
            *("setpriv", "--pdeathsig", "KILL", binary("etcd")),
            *("--data-dir", str(directory / "etcd")),
            *("--listen-client-urls", url, "--advertise-client-urls", url),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"default={peer}", *FAST),
        ]
        with (directory / "etcd.log").open("wb") as log:
            self._etcd = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        processes.wait_for(self._serves, 30.0, "etcd", (directory / "etcd.log").read_text)

    def _serves(self) -> bool:
        try:
            self.etcdctl("get", "nothing")
        except subprocess.CalledProcessError:
            return False
        return True


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, check=True)
    return done.stdout.decode()


def _remove_leftovers() -> None:
    """Removes the networks of test runs that were killed."""
    for name in _known():
        maker = _NAME.fullmatch(name)
        if maker and not processes.state(int(maker[1])):
            _remove(name)


def _known() -> set[str]:
    listed = {line.split()[0] for line in _ip("netns", "list").splitlines()}
    return listed | ({path.name for path in _ETC.iterdir()} if _ETC.is_dir() else set())


def _remove(prefix: str) -> None:
    """Ends all that runs in the namespaces whose names begin so, and removes them."""
    for name in _known():
        if not name.startswith(prefix):
            continue
        if Path(f"/run/netns/{name}").exists():
            processes.wait_for(lambda name=name: _is_empty(name), 10.0, f"the end of all in {name}")
            _ip("netns", "delete", name)
        shutil.rmtree(_ETC / name, ignore_errors=True)


def _is_empty(name: str) -> bool:
    pids = [int(pid) for pid in _ip("netns", "pids", name).split()]
    living = [pid for pid in pids if processes.state(pid) not in ("", "Z")]
    processes.send(living, signal.SIGKILL)
    return not living
