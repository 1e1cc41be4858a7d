"""The launchers that are compared, and the command with which each starts a node."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
ELASTIC = (sys.executable, "-m", "elastic_runtime")
_IN_PLACE = "train_in_place.py"
_LIGHTNING = "train_lightning.py"
_HF = "train_hf.py"
_HF_ELASTIC = "train_hf_elastic.py"
_ACCELERATE = "train_accelerate.py"
_TORCHTITAN = "train_torchtitan.py"

# What a person would set for all of them: one thread a process, and no five seconds lost in a
# resolver that drops a query (every TCPStore connection asks for the peer's name).
ENVIRONMENT: Mapping[str, str] = {
    "OMP_NUM_THREADS": "1",
    "RES_OPTIONS": "timeout:1 attempts:1",
    "PYTHONUNBUFFERED": "1",
}

# Where scripts/setup has put torchtitan, which needs other versions than the rest; and what lets it
# run without an accelerator.
_TITAN_SCRIPTS = Path(__file__).parents[3] / "tests" / "integration" / "torchtitan" / "scripts"
_WITH_TORCHTITAN: Mapping[str, str] = {
    "PYTHONPATH": f"{Path(sys.prefix) / 'torchtitan-0.3'}:{_TITAN_SCRIPTS}",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}
# As it is not among the installed packages here, what is imported ahead is named.
_PRELOAD_TORCHTITAN = (
    "--preload",
    "cpu_device,torchtitan.train,elastic_runtime.torchtitan.elastic_config",
)


@dataclass(frozen=True)
class Contender:
    """A way to launch the job.

    Attributes:
        name: as in the table.
        program: how the command line begins.
        bounds: the option for "1 to 3 nodes".
        store: ``c10d``, hosted by the first node, or ``etcd``, of its own.
        options: what comes before the script.
        environment: what it needs beyond ``ENVIRONMENT``.
        script: what it trains with, where that is its own; "": the same as all others.
    """

    name: str
    program: tuple[str, ...]
    bounds: tuple[str, ...]
    store: str
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    script: str = ""

    def command(
        self,
        endpoint: str,
        run_id: str,
        script: Sequence[str],
        address: str = "",
        workers: int = 1,
    ) -> list[str]:
        """The command of one node.

        Args:
            endpoint: ``host:port`` of the store.
            run_id: the job's id.
            script: the script and its arguments.
            address: the node's own address, if it must not find it out by itself.
            workers: how many the node has.
        """
        own = ("--local-addr", address) if address else ()
        head = (*self.program, *self.bounds, *self._where(endpoint), *self.options, *own)
        return [*head, "--nproc-per-node", str(workers), self._run_id(), run_id, *script]

    def _run_id(self) -> str:
        return "--run-id" if self.program == ELASTIC else "--rdzv-id"

    def _where(self, endpoint: str) -> tuple[str, ...]:
        if self.program == ELASTIC:
            return ("--rdzv-endpoint", f"{self.store}://{endpoint}")
        return ("--rdzv-backend", self.store, "--rdzv-endpoint", endpoint)


def _torchrun(name: str, *options: str, **environment: str) -> Contender:
    restarts = ("--max-restarts", "100")  # its default is 0: the first fault would end the job
    bounds = ("--nnodes", "1:3")
    return Contender(name, TORCHRUN, bounds, "c10d", (*restarts, *options), environment)


def _torchrun_tuned(name: str) -> Contender:
    return _torchrun(
        name, "--rdzv-conf", "last_call_timeout=1", TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1"
    )


def _trainer(name: str, script: str, environment: Mapping[str, str]) -> Contender:
    bounds = ("--min", "1", "--max", "3")
    return Contender(name, ELASTIC, bounds, "etcd", (), environment, script=script)


def _in_place(name: str, store: str, *options: str) -> Contender:
    bounds = ("--min", "1", "--max", "3")
    return Contender(name, ELASTIC, bounds, store, options, script=_IN_PLACE)


CONTENDERS: Mapping[str, Contender] = {
    contender.name: contender
    for contender in (
        _torchrun("torchrun"),
        _torchrun_tuned("torchrun-tuned"),
        replace(_torchrun_tuned("lightning-torchrun"), script=_LIGHTNING),
        _trainer("lightning-in-place", _LIGHTNING, {"BENCH_LIGHTNING": "in-place"}),
        _trainer("lightning-restart", _LIGHTNING, {"BENCH_LIGHTNING": "restart"}),
        replace(_torchrun_tuned("hf-torchrun"), script=_HF),
        _trainer("hf-in-place", _HF_ELASTIC, {"BENCH_HF": "in-place"}),
        _trainer("hf-restart", _HF_ELASTIC, {"BENCH_HF": "restart"}),
        replace(_torchrun_tuned("accelerate-torchrun"), script=_ACCELERATE),
        _trainer("accelerate-in-place", _ACCELERATE, {"BENCH_ACCELERATE": "in-place"}),
        _trainer("accelerate-restart", _ACCELERATE, {"BENCH_ACCELERATE": "restart"}),
        replace(
            _torchrun_tuned("torchtitan-torchrun"), script=_TORCHTITAN, environment=_WITH_TORCHTITAN
        ),
        replace(
            _trainer("torchtitan-restart", _TORCHTITAN, _WITH_TORCHTITAN),
            environment={**_WITH_TORCHTITAN, "BENCH_TORCHTITAN": "restart"},
            options=_PRELOAD_TORCHTITAN,
        ),
        Contender("elastic-etcd", ELASTIC, ("--min", "1", "--max", "3"), "etcd"),
        Contender("elastic-c10d", ELASTIC, ("--min", "1", "--max", "3"), "c10d"),
        _in_place("in-place-etcd", "etcd"),
        _in_place("in-place-c10d", "c10d"),
        # With a torch that regroups otherwise by itself.
        _in_place("rebuild-etcd", "etcd", "--regroup", "rebuild"),
        _in_place("rebuild-c10d", "c10d", "--regroup", "rebuild"),
    )
}
