"""Some machines that ssh reaches, all of them this one: a real ``sshd`` for each.

The daemons run as whoever starts them, know one key, and end with ``close``.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from getpass import getuser
from pathlib import Path

from tests import processes
from tests.etcd_server import free_port
from tests.processes import wait_for

PROGRAMS = ("sshd", "ssh", "ssh-keygen")
# Programs of daemons are not on every user's PATH.
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_PATIENCE = 60.0

_SSHD = """
ListenAddress 127.0.0.1
HostKey {home}/host_key
AuthorizedKeysFile {home}/key.pub
StrictModes no
UsePAM no
PasswordAuthentication no
PidFile none
MaxStartups 100
"""
_CLIENT = """
Host *
  HostName 127.0.0.1
  User {user}
  IdentityFile {home}/key
  IdentitiesOnly yes
  UserKnownHostsFile {home}/known_hosts
  StrictHostKeyChecking accept-new
  LogLevel ERROR
"""


def missing() -> list[str]:
    """The programs that this machine lacks."""
    return [name for name in PROGRAMS if not shutil.which(name, path=_PATH)]


class SshMachines:
    """Machines n0, n1, …

    Args:
        count: how many.

    Attributes:
        ssh: the client that reaches them, as ``--ssh`` takes it.
    """

    def __init__(self, count: int = 3) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="elastic-ssh-"))
        self._ports = {f"n{number}": free_port() for number in range(count)}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.ssh = f"ssh -F {self._home}/config"
        try:
            for name in ("key", "host_key"):
                self._call(
                    "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{self._home}/{name}"
                )
            (self._home / "sshd_config").write_text(_SSHD.format(home=self._home))
            hosts = [f"Host {name}\n  Port {port}" for name, port in self._ports.items()]
            text = _CLIENT.format(home=self._home, user=getuser())
            (self._home / "config").write_text("\n".join([*hosts, text]))
            if os.getuid() == 0:  # where it keeps the directory for children without rights
                Path("/run/sshd").mkdir(exist_ok=True)
            for name in self._ports:
                self.start(name)
        except BaseException:
            self.close()
            raise

    def _call(self, *command: str) -> None:
        subprocess.run(command, check=True, timeout=_PATIENCE)

    def start(self, name: str) -> None:
        """Starts the daemon of a machine, again if it has been killed."""
        program = shutil.which("sshd", path=_PATH)
        assert program
        config, port = f"{self._home}/sshd_config", str(self._ports[name])
        with (self._home / f"{name}.log").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                [program, "-D", "-e", "-f", config, "-p", port],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_for(lambda: self._answers(name), _PATIENCE, f"the sshd of {name}", self._story)

    def _answers(self, name: str) -> bool:
        command = [*self.ssh.split(), name, "true"]
        done = subprocess.run(command, capture_output=True, timeout=_PATIENCE, check=False)
        return done.returncode == 0

    def _story(self) -> str:
        return "\n".join(file.read_text(errors="replace") for file in self._home.glob("*.log"))

    def kill(self, name: str) -> None:
        """SIGKILL to all that runs on a machine, its daemon included."""
        daemon = self._daemons.pop(name)
        pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        below = [pid for pid in pids if daemon.pid in processes.ancestors(pid)]
        processes.send([daemon.pid, *below], signal.SIGKILL)
        daemon.wait()

    def close(self) -> None:
        """Ends all of them. Idempotent."""
        for name in list(self._daemons):
            self.kill(name)
        shutil.rmtree(self._home, ignore_errors=True)
