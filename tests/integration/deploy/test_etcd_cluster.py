"""deploy/etcd-cluster.yaml: three real members with its command, and the page's certificates."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import processes
from tests.etcd_server import binary, free_port
from tests.unit.deploy.files import DEPLOY, ROOT, objects

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.etcd,
    pytest.mark.skipif(not shutil.which("openssl"), reason="openssl is not installed"),
]
MEMBERS = range(3)
PORTS = (2379, 2380, 2381)  # clients, peers, health


class Cluster:
    """The members on this machine: other ports and directories, but for that as they are.

    Attributes:
        certificates: where they are; the Secret etcd-cluster is in ``secret`` below it.
        ports: for each member the ports that stand for those of its pod.
    """

    def __init__(self, path: Path) -> None:
        self.certificates = path
        self.ports = [{port: free_port() for port in PORTS} for _ in MEMBERS]
        self._path = path
        self._make_certificates()
        self._running = {number: self._start(number) for number in MEMBERS}

    @property
    def endpoint(self) -> str:
        """Where clients find all of them."""
        return ",".join(f"localhost:{ports[2379]}" for ports in self.ports)

    def is_healthy(self, number: int) -> bool:
        """Whether the readiness probe of a member would succeed."""
        url = f"http://127.0.0.1:{self.ports[number][2381]}/health"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def kill(self, number: int) -> None:
        """Ends a member without a word."""
        self._running[number].send_signal(signal.SIGKILL)
        self._running[number].wait(10)

    def close(self) -> None:
        """Ends them all."""
        for number in MEMBERS:
            self.kill(number)

    def log(self) -> str:
        """The end of what they have written."""
        return "\n".join((self._path / f"log-{n}").read_text()[-2000:] for n in MEMBERS)

    def _make_certificates(self) -> None:
        page = (ROOT / "docs" / "kubernetes.md").read_text()
        [commands] = re.findall(r"^```bash\n(namespace=.*?)^```$", page, re.M | re.S)
        script = f"set -euo pipefail\n{commands}"
        subprocess.run(["bash", "-c", script], cwd=self._path, check=True, capture_output=True)
        secret = self._path / "secret"
        secret.mkdir()
        for key, file in (
            ("ca.crt", "ca.crt"),
            ("tls.crt", "etcd-cluster.crt"),
            ("tls.key", "etcd-cluster.key"),
        ):
            shutil.copy(self._path / file, secret / key)

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        [stateful] = [
            each for each in objects(DEPLOY / "etcd-cluster.yaml") if each["kind"] == "StatefulSet"
        ]
        [container] = stateful["spec"]["template"]["spec"]["containers"]
        guard = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        words = [self._here(number, word) for word in container["command"][1:]]
        with (self._path / f"log-{number}").open("wb") as log:
            return subprocess.Popen([*guard, binary("etcd"), *words], stdout=log, stderr=log)

    def _here(self, number: int, word: str) -> str:
        word = word.replace("$(POD_NAME)", f"etcd-cluster-{number}")
        word = re.sub(
            r"etcd-cluster-(\d)\.etcd-cluster-peers:(\d+)",
            lambda at: f"localhost:{self.ports[int(at[1])][int(at[2])]}",
            word,
        )
        word = re.sub(
            r"0\.0\.0\.0:(\d+)", lambda at: f"127.0.0.1:{self.ports[number][int(at[1])]}", word
        )
        word = word.replace("/etc/etcd/tls", str(self._path / "secret"))
        return word.replace("/var/lib/etcd", str(self._path / f"member-{number}"))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    with ExitStack() as stack:
        stack.callback(cluster.close)
        for number in MEMBERS:
            processes.wait_for(
                lambda n=number: cluster.is_healthy(n), 60.0, f"member {number}", cluster.log
            )
        yield cluster


def runs(cluster: Cluster, client: str) -> subprocess.CompletedProcess[str]:
    """``elasticctl runs``, with the certificate of a client ("": none)."""
    shown = {"CA": cluster.certificates / "ca.crt"}
    if client:
        shown |= {
            "CERT": cluster.certificates / f"{client}.crt",
            "KEY": cluster.certificates / f"{client}.key",
        }
    return subprocess.run(
        [
            Path(sys.executable).parent / "elasticctl",
            "runs",
            f"--rdzv-endpoint=etcds://{cluster.endpoint}/team",
        ],
        env={**os.environ, **{f"ELASTIC_ETCD_{name}": str(path) for name, path in shown.items()}},
        capture_output=True,
        text=True,
        timeout=90,
    )


def test_clients_with_the_certificate_are_served_while_two_members_are_left(
    cluster: Cluster,
) -> None:
    for victim in (None, 1):
        if victim is not None:
            cluster.kill(victim)
        ran = runs(cluster, "etcd-client")
        assert ran.returncode == 0, ran.stderr + cluster.log()
    ran = runs(cluster, "")
    assert ran.returncode == 4, ran.stdout + ran.stderr
