"""The groups of one round, in real processes: what an interrupt releases, and what is not ours."""

from __future__ import annotations

import os
import socket
import threading
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeProcessGroup
from torch.distributed.distributed_c10d import _get_default_store

from elastic_runtime.data.epoch_order import Orders
from elastic_runtime.system import torch_private
from elastic_runtime.worker import worker_main
from elastic_runtime.worker.agreement import Agreement, Wish
from elastic_runtime.worker.peers import Peers
from elastic_runtime.worker.recovery import error_classification
from elastic_runtime.worker.recovery import process_groups as ranks_module
from elastic_runtime.worker.recovery.process_groups import (
    Interrupted,
    RankInRound,
    Ranks,
    Stores,
    rehearse,
)
from elastic_runtime.worker.recovery.state_transfer import _TransferGroup
from tests import processes
from tests.ranks import run_ranks, values

if TYPE_CHECKING:
    from collections.abc import Callable

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def _serve() -> dist.TCPStore:
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def _place(port: int, size: int = 1, *, rank: int = 0) -> RankInRound:
    return RankInRound(1, rank, size, "127.0.0.1", port, "round/1")


def _in_place(port: int, make: type[Ranks] = Ranks) -> tuple[Ranks, dist.TCPStore]:
    """The ranks of a round instead of the group that the test begins with."""
    rank, size = dist.get_rank(), dist.get_world_size()
    store = dist.TCPStore("127.0.0.1", port, wait_for_workers=False)  # outlives an interrupt
    _meet(store, "begun", size)
    torch_private.abort_groups()
    return make(_place(port, size, rank=rank), Stores()), store


def _meet(store: dist.TCPStore, name: str, size: int) -> None:
    """Waits for all ranks without a group, so that none breaks what another still needs."""
    if store.add(name, 1) == size:
        store.set(f"all {name}", "1")
    store.wait([f"all {name}"], timedelta(seconds=50))


def interrupted_in_a_group_of_the_script(port: int) -> str:
    """What rank 0 meets in a group that the script has made, when the other rank is silent."""
    ranks, store = _in_place(port)
    ranks.build()
    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=20))
    _meet(store, "built", 2)  # who is through first does not end while the other one connects
    if ranks.place.rank == 1:
        store.wait(["released"], timedelta(seconds=50))
        return ""
    threading.Thread(target=ranks.interrupt).start()
    with pytest.raises(RuntimeError) as caught:
        dist.barrier(group=group)
    store.set("released", "1")
    return str(caught.value)


def test_an_interrupt_releases_a_rank_from_groups_of_the_script() -> None:
    server = _serve()
    said, _ = values(run_ranks(2, interrupted_in_a_group_of_the_script, server.port))
    assert "Connection closed by peer" in said


def interrupted_while_the_script_makes_a_group(port: int) -> str:
    """What rank 0 meets when it makes a group, and the other rank does not."""
    ranks, store = _in_place(port)
    ranks.build()
    _meet(store, "built", 2)
    if ranks.place.rank == 1:
        store.wait(["released"], timedelta(seconds=50))
        return ""
    threading.Thread(target=ranks.interrupt).start()
    try:
        dist.barrier(group=dist.new_group(backend="gloo", timeout=timedelta(seconds=20)))
    except (Interrupted, RuntimeError) as error:
        store.set("released", "1")
        return type(error).__name__
    return "nothing"


def test_an_interrupt_does_not_wait_for_a_group_that_the_script_makes() -> None:
    server = _serve()
    said, _ = values(run_ranks(2, interrupted_while_the_script_makes_a_group, server.port))
    assert said == "Interrupted"


def enters_a_round_while_a_group_is_made(port: int, *, told: bool) -> bool:
    """Whether rank 0 is soon in the next round, alone, when the peer has not made the group.

    Args:
        port: of the store.
        told: the round is interrupted; else this rank leaves it by itself, and another of the
            script's threads makes the group.
    """
    ranks, store = _in_place(port)
    ranks.build()
    ranks.met = True
    _meet(store, "built", 2)
    if ranks.place.rank == 1:
        store.wait(["released"], timedelta(seconds=50))
        return True
    before = store.num_keys()

    def make() -> None:
        with pytest.raises(Interrupted if told else RuntimeError):
            dist.new_group(backend="gloo", timeout=timedelta(seconds=100))

    threading.Thread(target=make, daemon=True).start()
    processes.wait_for(lambda: store.num_keys() > before, 50, "an address of rank 0")
    if told:
        ranks.interrupt()
    ranks.take_apart()
    alone = Ranks(replace(_place(port), key="round/2"), ranks._stores)
    entering = threading.Thread(target=alone.build, daemon=True)
    entering.start()
    entering.join(20)
    store.set("released", "1")
    return not entering.is_alive()


@pytest.mark.parametrize("told", [True, False])
def test_a_group_that_was_not_finished_does_not_hold_up_the_next_round(told: bool) -> None:
    server = _serve()
    enters = partial(enters_a_round_while_a_group_is_made, told=told)
    soon, _ = values(run_ranks(2, enters, server.port))
    assert soon


def interrupted_in_the_store(port: int, *, met: bool) -> tuple[bool, bool]:
    """Whether an interrupt releases a rank from the store, and whether it keeps its client."""
    ranks = Ranks(_place(port), Stores())
    ranks.build()
    ranks.met = met
    before = ranks._stores.client("127.0.0.1", port)
    waits = threading.Event()

    def wait() -> None:
        waits.set()
        with pytest.raises(RuntimeError):  # as ranks of NCCL wait for what names their group
            _get_default_store().get("what nobody sets")

    waiting = threading.Thread(target=wait, daemon=True)
    if not met:
        waiting.start()
        waits.wait(50)
    ranks.interrupt()
    if not met:
        waiting.join(20)
    return not waiting.is_alive(), ranks._stores.client("127.0.0.1", port) is before


@pytest.mark.parametrize("met", [False, True])
def test_before_the_first_step_an_interrupt_releases_who_waits_in_the_store(met: bool) -> None:
    server = _serve()
    ((released, kept),) = values(
        run_ranks(1, partial(interrupted_in_the_store, met=met), server.port)
    )
    assert released
    # Another client costs name look-ups, and in a running round nobody waits in this one.
    assert kept is met


def connects_to_who_has_gone(port: int) -> tuple[bool, bool]:
    """How it is judged that a peer has given its address and ended before it was connected to."""
    ranks, store = _in_place(port)
    ranks.build()
    store.set(f"pid of {ranks.place.rank}", str(os.getpid()))
    _meet(store, "built", 2)
    if ranks.place.rank == 1:
        return False, False
    peer = int(store.get("pid of 1"))
    processes.wait_for(lambda: processes.state(peer) in ("", "Z"), 50, "the end of the peer")
    address = "0//cpu//0/1"
    store.set(f"round/2/{address}", store.get(f"round/1/{address}"))
    ranks.take_apart()
    ranks_module._BUILD_TIMEOUT = timedelta(seconds=1)
    again = Ranks(replace(ranks.place, key="round/2"), Stores())
    try:
        again.build()
    except RuntimeError as error:
        return error_classification.is_worlds_fault(error, again), worker_main.is_echo(error)
    raise AssertionError("it has connected to nobody")


def test_an_address_at_which_nobody_is_any_more_is_not_the_scripts_fault() -> None:
    server = _serve()
    (worlds, echo), _ = values(run_ranks(2, connects_to_who_has_gone, server.port))
    assert worlds
    assert echo, "also for a script that connects by itself"


class _Connecting(Ranks):
    """Has a thread of the script that connects while a group is built."""

    mine: socket.socket
    far: socket.socket

    def _build_gloo(self, make: Callable[[], list[bytes]]) -> list[bytes]:
        def meanwhile() -> list[bytes]:
            with socket.create_server(("127.0.0.1", 0)) as server:
                self.mine = socket.create_connection(server.getsockname())
                self.far, _ = server.accept()
            return make()

        return super()._build_gloo(meanwhile)


def connected_meanwhile(port: int) -> tuple[str, str, int]:
    """What becomes of a connection of the script's, and how many the group has."""
    ranks, store = _in_place(port, _Connecting)
    assert isinstance(ranks, _Connecting)
    ranks.build()
    mine, far = ranks.mine, ranks.far
    _meet(store, "built", dist.get_world_size())
    cut = len(ranks._sockets)
    ranks.interrupt()
    for line in ranks._sockets:
        line.shut(socket.SHUT_RDWR)
    far.sendall(b"to")
    to = mine.recv(2).decode()
    mine.sendall(b"fro")
    return to, far.recv(3).decode(), cut


def test_what_the_script_connects_meanwhile_is_left_alone() -> None:
    server = _serve()
    # Each rank has one connection with each of the two others, in each of the two groups.
    assert values(run_ranks(3, connected_meanwhile, server.port)) == [("to", "fro", 4)] * 3


def time_outs_of_groups(port: int) -> list[float]:
    """The time-outs of the groups of a round, and of one of the script's."""
    ranks = Ranks(_place(port), Stores())
    ranks.build()
    mine = dist.new_group(backend="gloo", timeout=timedelta(seconds=20))
    another = ranks.another_group()
    groups: list[Any] = [dist.group.WORLD, ranks.group, another, mine]
    return [each._get_backend(CPU).options._timeout.total_seconds() for each in groups]


def test_each_group_keeps_its_time_out() -> None:
    server = _serve()
    assert values(run_ranks(1, time_outs_of_groups, server.port)) == [
        [1800.0, 1800.0, 1800.0, 20.0]
    ]


def _stand_in(said: list[float]) -> None:
    """A backend for GPUs that needs none, in the place of NCCL."""

    class Backend(dist.Backend):
        pass

    def make(options: Any, _: Any) -> Any:
        said.append(options.timeout.total_seconds())
        return FakeProcessGroup._create_internal(options.group_rank, options.group_size)

    dist.Backend.register_backend("standin", make, extended_api=True, devices=["cuda"])


def group_for_a_gpu_alone(port: int) -> bool:
    """Whether a save can make its group beside one of the script's that is for GPUs alone."""
    _stand_in([])
    ranks = Ranks(_place(port), Stores())
    ranks.build()
    dist.new_group(backend="cuda:standin")
    return ranks.another_group() is not None


def test_a_group_of_the_scripts_need_not_serve_the_cpu() -> None:
    server = _serve()
    assert values(run_ranks(1, group_for_a_gpu_alone, server.port)) == [True]


def time_outs_with_a_gpu(port: int) -> tuple[list[Any], float]:
    """The time-outs that the backends of a round get, and that of the store in which they meet."""
    _stand_in([])
    said: list[Any] = []
    init, given = dist.init_process_group, torch_private.set_timeout

    def without_nccl(backend: str, **options: Any) -> None:
        init(backend.replace("nccl", "standin"), **options)

    def heard(group: Any, device: str, timeout: timedelta) -> None:
        said.append((device, timeout.total_seconds()))
        assert group._get_backend(torch.device(device)) is not None
        if device == "cpu":
            given(group, device, timeout)

    torch.cuda.is_available = lambda: True
    dist.init_process_group = without_nccl
    torch_private.set_timeout = heard
    stores = Stores()
    Ranks(_place(port), stores).build()
    return said, stores.client("127.0.0.1", port).store.timeout.total_seconds()


def test_ranks_of_nccl_may_be_minutes_apart() -> None:
    server = _serve()
    ((said, store),) = values(run_ranks(1, time_outs_with_a_gpu, server.port))
    assert dict(said) == {"cpu": 1800.0, "cuda": 600.0}
    assert store == 600.0


def under_the_modes_of_the_script(mode: str) -> list[bool]:
    """Whether what is ours works under a mode that the script has set for the whole process."""
    inference = torch.inference_mode(mode == "inference")
    inference.__enter__()  # a script may never leave it
    if mode == "no gradients":
        torch.set_grad_enabled(False)
    elif mode == "device":
        torch.set_default_device("meta")
    group: Any = dist.group.WORLD
    agreement = Agreement(group)
    agreement.step(lambda: Wish.SAVE)
    agreed = agreement.step(lambda: Wish.NOTHING)
    wire = _TransferGroup(group._get_backend(CPU), dist.get_rank(), 2)
    told = [wire.gather([dist.get_rank()]), wire.tell({"a": 1}, 0), Peers(group).gather("x" * 2000)]
    order = Orders(5, None, replacement=False).of(1, 0)
    dist.barrier()
    torch_private.abort_groups()
    rehearse()
    expected = [[[0], [1]], {"a": 1}, ["x" * 2000] * 2]
    return [agreed == Wish.SAVE, told == expected, sorted(order.tolist()) == list(range(5))]


@pytest.mark.parametrize("mode", ["device", "no gradients", "inference"])
def test_modes_of_the_script_are_for_its_own_tensors(mode: str) -> None:
    assert values(run_ranks(2, under_the_modes_of_the_script, mode)) == [[True, True, True]] * 2
