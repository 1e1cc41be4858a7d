"""What a worker finds in its environment, and the port kept for it."""

from __future__ import annotations

import os
import random
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_runtime.protocol.messages import (
    ENV_CHANNEL,
    ENV_INCARNATION,
    ENV_MOST_WORKERS,
    ENV_NODE,
    ENV_PROGRESS,
    ENV_ROUND,
    ENV_SERIAL,
)
from elastic_runtime.protocol.round_records import Member, RoundRecord
from elastic_runtime.protocol.snapshot_requests import ENV_SNAPSHOTS
from elastic_runtime.rendezvous.node_address import interface_of
from elastic_runtime.system.listening import where_reached
from elastic_runtime.system.tcp_keepalive import ENV_PEER_TIMEOUT
from elastic_runtime.system.torch_version import ENV_REGROUP

if TYPE_CHECKING:
    from elastic_runtime.config import JobConfig

# Below the range from which the kernel takes ports for outgoing connections (32768 and up by
# default), so that a port that is reserved now is still free when a worker binds it.
_PORTS = range(20000, 32000)


class PortKeeper:
    """Keeps one port of this machine free until the round's store is to be bound to it."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self.port = 0

    def reserve(self) -> int:
        """Takes a free port, giving back the last one; 0 if there is none."""
        self.release()
        for _ in range(100):
            # Bound without SO_REUSEADDR and without listening: no other process gets it, and
            # none can connect to it.
            keeper = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            port = random.choice(_PORTS)
            try:
                keeper.bind(("", port))
            except OSError:
                keeper.close()
                continue
            self._socket, self.port = keeper, port
            return port
        return 0

    def release(self) -> None:
        """Gives the port free for the worker that will bind it."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def provisional(me: Member, last: RoundRecord | None) -> tuple[RoundRecord, int]:
    """The round that a worker finds in its environment before it enters one, and its rank there.

    Args:
        me: this node.
        last: the last round that is known; this node is taken for one more member of it.
    """
    if last is None:
        return RoundRecord(1, "", (me,), 0, ""), 0
    rank = last.rank_of(me.node)
    if rank >= 0:
        return last, rank
    more = replace(
        last,
        members=(*last.members, me),
        nodes=last.size + 1,
        workers=last.world_size + me.workers,
        ranks=(*last.ranks, last.size) if last.ranks else (),
        firsts=(*last.firsts, last.world_size) if last.ranks else (),
    )
    return more, last.size


def worker_environment(
    config: JobConfig,
    last: RoundRecord,
    group_rank: int,
    local_rank: int,
    *,
    error_file: str,
    progress_file: str,
    channel: str,
    serial: int = 0,
    snapshots: str = "",
) -> dict[str, str]:
    """The environment of one worker: torchrun's names, and ours for the library.

    The round's TCPStore is hosted by the rank-0 worker itself, on a port of its own each round
    (``TORCHELASTIC_USE_AGENT_STORE`` is False): so scripts that choose their own address, and
    processes that a worker spawns, work as they do without a launcher.

    Args:
        config: the settings.
        last: the round.
        group_rank: this node's rank in it.
        local_rank: the worker's rank on this node.
        error_file: where the worker writes its error.
        progress_file: the worker's ``ProgressFile``.
        channel: path of the agent's socket.
        serial: how many workers this agent had started with it.
        snapshots: the agent's memory for them, "" if there is none.
    """
    rank = last.first_worker(group_rank) + local_rank
    world = last.world_size
    first = last.members[0]
    environment = {
        **_way_of_gloo(last.member(group_rank).address),
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "GROUP_RANK": str(group_rank),
        "ROLE_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(config.workers),
        "GROUP_WORLD_SIZE": str(last.size),
        "ROLE_WORLD_SIZE": str(world),
        "ROLE_NAME": config.role,
        "MASTER_ADDR": first.address,
        "MASTER_PORT": str(last.store_port),
        **_of_torchelastic(config, last, error_file),
        ENV_CHANNEL: channel,
        ENV_PROGRESS: progress_file,
        ENV_ROUND: str(last.number),
        ENV_INCARNATION: last.incarnation,
        ENV_NODE: config.node_name,
        ENV_SERIAL: str(serial),
        ENV_SNAPSHOTS: snapshots,
        **_settings(config),
    }
    if config.virtual_local_rank:
        environment["LOCAL_RANK"] = "0"
        environment["CUDA_VISIBLE_DEVICES"] = _visible_device(local_rank)
    return environment


def _settings(config: JobConfig) -> dict[str, str]:
    """Settings of the job that act in a worker."""
    return {
        ENV_MOST_WORKERS: str(config.max_nodes * config.workers),
        ENV_REGROUP: config.regroup,
        ENV_PEER_TIMEOUT: os.environ.get(ENV_PEER_TIMEOUT, f"{config.timeouts.lease_ttl:g}"),
    }


def _way_of_gloo(address: str) -> dict[str, str]:
    """Has gloo listen where the other nodes reach this one.

    By itself it asks what the host's name stands for. That is 127.0.1.1 as Debian sets machines up,
    so that no rank on another machine can connect; and where no name server answers, the question
    takes seconds. Where one machine is enough, it is to listen where no other machine reaches it.
    """
    interface = "lo" if where_reached(address).loopback else interface_of(address)
    return {"GLOO_SOCKET_IFNAME": interface} if interface else {}


def _of_torchelastic(config: JobConfig, last: RoundRecord, error_file: str) -> dict[str, str]:
    """What torch's own code in a worker reads."""
    return {
        "TORCHELASTIC_RESTART_COUNT": str(_restart_count(last)),
        "TORCHELASTIC_MAX_RESTARTS": str(config.max_restarts),
        "TORCHELASTIC_RUN_ID": config.run_id,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": ",".join(config.signals),
        "TORCHELASTIC_ERROR_FILE": error_file,
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }


def _restart_count(last: RoundRecord) -> int:
    """How often the workers were started again in this incarnation of the job."""
    budget = last.budget
    return budget.failures + budget.killed + budget.lost + budget.planned


def _visible_device(local_rank: int) -> str:
    devices = os.environ.get("CUDA_VISIBLE_DEVICES")
    if devices is None:
        return str(local_rank)
    return devices.split(",")[local_rank].strip()
