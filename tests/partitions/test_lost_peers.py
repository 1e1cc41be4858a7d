"""A plain script whose network is cut: lost in seconds, not minutes; and what heals goes on.

Two ranks of a script that knows nothing of this package exchange numbers over gloo, each in a
network of its own. They are started as the fork server does it, without an agent: it is what the
connections do that is tried here.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.system.tcp_keepalive import ENV_PEER_TIMEOUT
from tests import processes
from tests.partitions.cuts import both
from tests.partitions.network import Network

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.partitions

_SCRIPT = """
    import sys
    import time
    from datetime import timedelta
    from elastic_runtime.system import tcp_keepalive, torch_private
    torch_private.tend_groups(tcp_keepalive.tended)
    import torch
    import torch.distributed as dist

    where, rank, silent = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "silent"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=2,
                            timeout=timedelta(seconds=90))
    number, total = torch.ones(1), 0.0
    print("ready", flush=True)
    if silent and rank:
        time.sleep(600)  # never sends: nothing is on its way
    try:
        if silent:
            dist.recv(number, 1)
        while True:
            number.fill_(1)
            dist.all_reduce(number)
            total += number.item()
            if number.item() != 2.0:
                print("damaged", flush=True)
            print("step", flush=True)
            time.sleep(0.05)
    except RuntimeError as error:
        print("lost", str(error).splitlines()[0][-90:], flush=True)
"""


@pytest.fixture
def net(needs_networks: None) -> Iterator[Network]:
    with Network(["n0", "n1"], store=False) as made:
        yield made


class Pair:
    """The two ranks, and what they have printed."""

    def __init__(self, net: Network, folder: Path, timeout: float, kind: str = "steps") -> None:
        self._logs = [folder / f"rank{rank}" for rank in range(2)]
        where = f"tcp://{net.address('n0')}:29400"
        environ = {
            **os.environ,
            ENV_PEER_TIMEOUT: str(timeout),
            "GLOO_SOCKET_IFNAME": "eth0",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.getcwd(),
        }
        self.processes = []
        for rank, log in enumerate(self._logs):
            words = [sys.executable, "-c", textwrap.dedent(_SCRIPT), where, str(rank), kind]
            with log.open("wb") as stream:
                self.processes.append(
                    subprocess.Popen(
                        [*net.inside(f"n{rank}"), *words],
                        env=environ,
                        stdin=subprocess.DEVNULL,
                        stdout=stream,
                        stderr=subprocess.STDOUT,
                    )
                )

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def said(self, rank: int) -> list[str]:
        return self._logs[rank].read_text().splitlines()

    def wait(self, what: str, times: int, patience: float, ranks: tuple[int, ...] = (0, 1)) -> None:
        """Waits until these ranks have said something so often."""

        def enough() -> bool:
            return all(
                sum(line.startswith(what) for line in self.said(rank)) >= times for rank in ranks
            )

        processes.wait_for(enough, patience, what, lambda: str([self.said(r)[-5:] for r in ranks]))


def test_a_cut_loses_the_peer_in_seconds(net: Network, tmp_path: Path) -> None:
    with Pair(net, tmp_path, timeout=3) as pair:
        pair.wait("step", 5, 60)
        net.cut(both(["n0"], ["n1"]))
        # gloo's own time-out is 90 s, TCP's a quarter of an hour.
        pair.wait("lost", 1, 40)


def test_it_is_lost_as_well_if_nothing_is_being_sent(net: Network, tmp_path: Path) -> None:
    with Pair(net, tmp_path, timeout=3, kind="silent") as pair:
        pair.wait("ready", 1, 60)
        net.cut(both(["n0"], ["n1"]))
        pair.wait("lost", 1, 40, ranks=(0,))


def test_a_cut_that_heals_in_time_costs_nothing(net: Network, tmp_path: Path) -> None:
    with Pair(net, tmp_path, timeout=20) as pair:
        pair.wait("step", 5, 60)
        net.cut(both(["n0"], ["n1"]))
        stood = len(pair.said(0))
        time.sleep(4.0)  # the length of the cut is what is tried
        assert len(pair.said(0)) <= stood + 2
        net.heal()
        pair.wait("step", stood + 20, 30)
        for rank in range(2):
            assert not {"damaged", "lost"} & {line.split()[0] for line in pair.said(rank)}


def test_without_it_a_short_cut_is_all_that_is_noticed(net: Network, tmp_path: Path) -> None:
    """What it is for: nobody notices within several times the other's limit."""
    with Pair(net, tmp_path, timeout=0) as pair:
        pair.wait("step", 5, 60)
        net.cut(both(["n0"], ["n1"]))
        with pytest.raises(AssertionError):
            pair.wait("lost", 1, 12)
