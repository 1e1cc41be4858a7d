"""The networks that partitions are tested on: they cut what they should, and leave nothing."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import processes
from tests.partitions.cuts import both
from tests.partitions.network import HUB, How, Network, Way, why_not

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.partitions


@pytest.fixture(scope="module")
def net(needs_networks: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    with Network(["n0", "n1"], tmp_path_factory.mktemp("network")) as made:
        yield made


def _connect(net: Network, sender: str, receiver: str = HUB) -> str:
    """How a connection to the store's port ends."""
    script = f"""
        import socket
        try:
            socket.create_connection(("{net.address(receiver)}", 2379), timeout=1).close()
            print("connected")
        except OSError as error:
            print(type(error).__name__, error.errno or "")
        """
    command = [*net.inside(sender), sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("how", "ends"),
    [
        (How.DROP, "TimeoutError"),
        (How.RESET, "ConnectionRefusedError 111"),
        (How.PROHIBIT, "OSError 113"),
    ],
)
def test_a_cut_closes_some_ways_and_no_others(net: Network, how: How, ends: str) -> None:
    net.cut(both(["n0"], [HUB]), how)
    assert _connect(net, "n0") == ends
    assert _connect(net, "n1") == "connected"
    net.cut([Way("n0", "n1")], how)
    assert _connect(net, "n0") == "connected"
    assert _connect(net, "n0", "n1") == ends
    net.heal()
    assert _connect(net, "n0", "n1") == "ConnectionRefusedError 111"  # nobody listens there


def test_an_answer_that_does_not_come_back_is_silence(net: Network) -> None:
    net.cut([Way(HUB, "n0")])
    assert _connect(net, "n0") == "TimeoutError"
    net.heal()


def test_places_have_names_and_addresses_of_their_own(net: Network) -> None:
    told = subprocess.run(
        [*net.inside("n1"), "sh", "-c", "hostname; ip -brief -4 address show eth0"],
        capture_output=True,
        text=True,
        check=True,
    )
    name, _, _, address = told.stdout.split()
    assert (name, address) == ("n1", f"{net.address('n1')}/24")


def test_what_a_killed_run_has_left_is_removed_by_the_next(net: Network) -> None:
    script = """
        import os, signal, subprocess
        from tests.partitions.network import Network
        made = Network(["n0"], store=False)
        print(os.getpid(), flush=True)
        nothing = subprocess.DEVNULL
        subprocess.Popen([*made.inside("n0"), "sleep", "1000"], stdout=nothing, stderr=nothing)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    killed = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=60,
    )
    left = f"elastic-{int(killed.stdout)}-1-n0"
    assert Path("/run/netns", left).exists()
    inside = subprocess.run(["ip", "netns", "pids", left], capture_output=True, text=True).stdout
    assert inside

    assert not why_not()  # makes one
    assert not Path("/run/netns", left).exists()
    assert not Path("/etc/netns", left).exists()
    assert {processes.state(int(pid)) for pid in inside.split()} <= {"", "Z"}
    assert _connect(net, "n0") == "connected"  # ours is still there
