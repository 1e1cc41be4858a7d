"""A real Slurm with some nodes, all on this machine.

Debian's ``slurmd`` may run several times on one host, each under a name of its own. The daemons run
as whoever starts them, keep all they have in one directory, and end with ``close``.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from getpass import getuser
from pathlib import Path

from tests import processes
from tests.etcd_server import free_port
from tests.processes import PROGRAM_TIMEOUT, wait_for

DAEMONS = ("munged", "slurmctld", "slurmd")
# Programs of daemons are not on every user's PATH.
_SBIN = "/usr/sbin:/sbin"
READY_TIMEOUT = 120.0
_LONGEST_END = 60.0
_KEY_BYTES = 128
_OF_JOBS = {"OMP_NUM_THREADS": "1", "RES_OPTIONS": "timeout:1 attempts:1"}
# Whatever ends with this is queued again.
REQUEUE_EXIT = 75

_CONF = """
ClusterName=elastic-test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={home}/munge.socket,cred_expire=5
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool-%n
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd-%n.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/slurmd-%n.log
ProctrackType=proctrack/{proctrack}
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdTimeout=10
KillWait=20
RequeueExit={requeue_exit}
{nodes}
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 OverSubscribe=EXCLUSIVE GraceTime=8
PartitionName=high Nodes=ALL PriorityTier=10 OverSubscribe=EXCLUSIVE
"""


def missing() -> list[str]:
    """The daemons that this machine lacks."""
    return [name for name in DAEMONS if not shutil.which(name, path=_path())]


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:{_SBIN}"


class SlurmCluster:
    """A running Slurm.

    Args:
        nodes: how many nodes it has, n0, n1, …
        proctrack: how it finds the processes of a step: ``pgid`` (as on clusters with cgroups, a
            signal reaches the tasks), or ``linuxproc`` (every process below them).

    Attributes:
        home: its directory.
        environ: that of a person's shell on it.
    """

    def __init__(self, nodes: int = 4, *, proctrack: str = "pgid") -> None:
        self.home = Path(tempfile.mkdtemp(prefix="elastic-slurm-"))
        where = {"SLURM_CONF": str(self.home / "slurm.conf"), "PATH": _path()}
        self.environ = {**os.environ, **where, **_OF_JOBS}
        self._names = [f"n{number}" for number in range(nodes)]
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        try:
            self._write(proctrack)
            self._start()
        except BaseException:
            self.close()
            raise

    def _write(self, proctrack: str) -> None:
        key = self.home / "munge.key"
        key.write_bytes(secrets.token_bytes(_KEY_BYTES))
        key.chmod(0o600)
        for folder in ("state", *(f"spool-{name}" for name in self._names)):
            (self.home / folder).mkdir()
        host = socket.gethostname().partition(".")[0]
        lines = [
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs=2"
            for name in self._names
        ]
        text = _CONF.format(
            host=host,
            port=free_port(),
            home=self.home,
            user=getuser(),
            proctrack=proctrack,
            requeue_exit=REQUEUE_EXIT,
            nodes="\n".join(lines),
        )
        (self.home / "slurm.conf").write_text(text)

    def _start(self) -> None:
        files = {"key": "key", "socket": "socket", "pid": "pid", "log": "log", "seed": "seed"}
        flags = [f"--{name}-file={self.home}/munge.{file}" for name, file in files.items()]
        flags[1] = f"--socket={self.home}/munge.socket"
        self._spawn("munged", "munged", "--foreground", "--force", *flags)
        wait_for((self.home / "munge.socket").exists, READY_TIMEOUT, "munged's socket", self._story)
        self._spawn("slurmctld", "slurmctld", "-D", "-c", "-f", self.environ["SLURM_CONF"])
        for name in self._names:
            self.start_node(name)
        self.wait_until_idle()

    def wait_until_idle(self) -> None:
        """Waits until no node has anything to do, and all are there."""
        wait_for(self._all_idle, READY_TIMEOUT, "idle nodes", self._story)

    def _all_idle(self) -> bool:
        words = self.call("sinfo", "-h", "-N", "-p", "low", "-o", "%T", check=False).split()
        return words == ["idle"] * len(self._names)

    def _no_jobs(self) -> bool:
        return not self.call("squeue", "-h", check=False).strip()

    def _story(self) -> str:
        """The ends of all logs."""
        files = sorted([*self.home.glob("*.log"), *self.home.glob("*.out")])
        return "\n".join(
            f"{file.name}: {file.read_text(errors='replace')[-800:]}" for file in files
        )

    def start_node(self, name: str) -> None:
        """Starts the daemon of a node, again if it has been killed."""
        self._spawn(name, "slurmd", "-D", "-N", name, "-f", self.environ["SLURM_CONF"])

    def kill_node(self, name: str) -> None:
        """SIGKILL to the daemon of a node; its steps go on until they are killed as well."""
        daemon = self._daemons.pop(name)
        daemon.kill()
        daemon.wait()

    def _spawn(self, name: str, program: str, *args: str) -> None:
        path = shutil.which(program, path=_path())
        assert path, f"no {program} here"
        with (self.home / f"{name}.out").open("wb") as out:
            self._daemons[name] = subprocess.Popen(
                [path, *args],
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def call(self, *command: str, check: bool = True, cwd: Path | None = None) -> str:
        """What a command prints."""
        done = subprocess.run(
            command,
            cwd=cwd,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=PROGRAM_TIMEOUT,
            check=False,
        )
        assert done.returncode == 0 or not check, f"{command}: {done.stderr}"
        return done.stdout

    def job(self, name: str) -> dict[str, str]:
        """What Slurm says of a job, or of an element of an array; nothing if it knows none."""
        words = self.call("scontrol", "--oneliner", "show", "job", name, check=False).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def cancel(self, job: str) -> None:
        """Kills a job at once, and waits for its end."""
        self.call("scancel", "--signal=KILL", "--full", job, check=False)
        self.call("scancel", job, check=False)
        gone = ("squeue", "--noheader", f"--jobs={job}")
        over = lambda: not self.call(*gone, check=False).strip()  # noqa: E731
        wait_for(over, READY_TIMEOUT, f"the end of job {job}", self._story)

    def tasks(self, node: str) -> list[int]:
        """The tasks of steps that run on a node, by process id."""
        steps = {pid: its for pid, its in self._started().items() if "SLURM_STEP_ID" in its}
        return [pid for pid, its in steps.items() if its.get("SLURMD_NODENAME") == node]

    def batch(self, job: str) -> int:
        """The batch script of a job, by process id."""
        found = {pid: its for pid, its in self._started().items() if "SLURM_STEP_ID" not in its}
        (pid,) = (pid for pid, its in found.items() if its.get("SLURM_JOB_ID") == job)
        return pid

    def _started(self) -> dict[int, dict[str, str]]:
        """The environments of all that Slurm itself has started, by process id."""
        found = {}
        for pid in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
            its = processes.environment(pid)
            ours = its.get("SLURM_CONF") == self.environ["SLURM_CONF"]
            if ours and its.get("SLURM_TASK_PID") == str(pid):
                found[pid] = its
        return found

    def kill_steps(self, node: str) -> None:
        """SIGKILL to all that runs on a node, and to its daemon: as if the machine were gone."""
        self.kill_node(node)
        tasks = self.tasks(node)
        parents = [processes.parent(pid) for pid in tasks]  # slurmstepd
        processes.send([*parents, *tasks], signal.SIGKILL)

    def close(self) -> None:
        """Ends all jobs, then the daemons. Idempotent."""
        if "slurmctld" in self._daemons:
            self.call("scancel", "-s", "KILL", "--full", "-u", getuser(), check=False)
            wait_for(self._no_jobs, READY_TIMEOUT, "the end of all jobs", self._story)
        for name in reversed(self._daemons):
            self._daemons[name].send_signal(signal.SIGTERM)
        for daemon in self._daemons.values():
            daemon.wait(_LONGEST_END)
        self._daemons.clear()
        shutil.rmtree(self.home, ignore_errors=True)
