"""The groups of one round, in real processes: what an interrupt releases, and what is not ours."""

from __future__ import annotations

import os
import socket
import threading
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
from elastic_runtime.worker.groups import rebuild
from elastic_runtime.worker.groups.rebuild import Rebuild
from elastic_runtime.worker.groups.round_ranks import Interrupted, Ranks
from elastic_runtime.worker.groups.store_clients import Stores
from elastic_runtime.worker.peers import Peers
from elastic_runtime.worker.recovery import error_classification
from elastic_runtime.worker.recovery.state_transfer import TransferGroup
from tests import processes
from tests.ranks import run_ranks, values
from tests.unit.worker.groups.roads import (
    ROADS,
    begin_in_place,
    in_place,
    meet,
    place,
    regrouping,
    serve,
)

if TYPE_CHECKING:
    from collections.abc import Callable

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def interrupted_in_a_group_of_the_script(port: int, *, road: str) -> str:
    """What rank 0 meets in a group that the script has made, when the other rank is silent."""
    ranks, store = in_place(port, road)
    ranks.build()
    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=20))
    meet(store, "built", 2)  # who is through first does not end while the other one connects
    if ranks.place.rank == 1:
        store.wait(["released"], timedelta(seconds=50))
        return ""
    threading.Thread(target=ranks.interrupt).start()
    with pytest.raises(RuntimeError) as caught:
        dist.barrier(group=group)
    store.set("released", "1")
    return str(caught.value)


@pytest.mark.parametrize("road", ROADS)
def test_an_interrupt_releases_a_rank_from_groups_of_the_script(road: str) -> None:
    server = serve()
    said, _ = values(
        run_ranks(2, partial(interrupted_in_a_group_of_the_script, road=road), server.port)
    )
    assert "Connection closed by peer" in said


def interrupted_while_the_script_makes_a_group(port: int, *, road: str) -> str:
    """What rank 0 meets when it makes a group, and the other rank does not."""
    ranks, store = in_place(port, road)
    ranks.build()
    meet(store, "built", 2)
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


@pytest.mark.parametrize("road", ROADS)
def test_an_interrupt_does_not_wait_for_a_group_that_the_script_makes(road: str) -> None:
    server = serve()
    said, _ = values(
        run_ranks(2, partial(interrupted_while_the_script_makes_a_group, road=road), server.port)
    )
    assert said == "Interrupted"


def enters_a_round_while_a_group_is_made(port: int, *, road: str, told: bool) -> bool:
    """Whether rank 0 is soon in the next round, alone, when the peer has not made the group.

    Args:
        port: of the store.
        told: the round is interrupted; else this rank leaves it by itself, and another of the
            script's threads makes the group.
    """
    rank, store = begin_in_place(port)
    here = regrouping(road)
    ranks = here.ranks(place(port, 2, rank=rank))
    ranks.build()
    ranks.met = True
    meet(store, "built", 2)
    if rank == 1:
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
    alone = here.ranks(place(port, number=2))
    entering = threading.Thread(target=alone.build, daemon=True)
    entering.start()
    entering.join(20)
    store.set("released", "1")
    return not entering.is_alive()


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("told", [True, False])
def test_a_group_that_was_not_finished_does_not_hold_up_the_next_round(
    told: bool, road: str
) -> None:
    server = serve()
    enters = partial(enters_a_round_while_a_group_is_made, told=told, road=road)
    soon, _ = values(run_ranks(2, enters, server.port))
    assert soon


def interrupted_in_the_store(port: int, *, road: str, met: bool) -> tuple[bool, bool]:
    """Whether an interrupt releases a rank from the store, and whether it keeps its client."""
    ranks = regrouping(road).ranks(place(port))
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


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("met", [False, True])
def test_before_the_first_step_an_interrupt_releases_who_waits_in_the_store(
    met: bool, road: str
) -> None:
    server = serve()
    ((released, kept),) = values(
        run_ranks(1, partial(interrupted_in_the_store, met=met, road=road), server.port)
    )
    assert released
    # Another client costs name look-ups, and in a running round nobody waits in this one.
    assert kept is met


def connects_to_who_has_gone(port: int) -> tuple[bool, bool]:
    """How it is judged that a peer has given its address and ended before it was connected to."""
    ranks, store = in_place(port, Rebuild.name)
    ranks.build()
    store.set(f"pid of {ranks.place.rank}", str(os.getpid()))
    meet(store, "built", 2)
    if ranks.place.rank == 1:
        return False, False
    peer = int(store.get("pid of 1"))
    processes.wait_for(lambda: processes.state(peer) in ("", "Z"), 50, "the end of the peer")
    address = "0//cpu//0/1"
    store.set(f"round/2/{address}", store.get(f"round/1/{address}"))
    ranks.take_apart()
    rebuild.BUILD_TIMEOUT = timedelta(seconds=1)
    again = regrouping(Rebuild.name).ranks(place(port, 2, number=2))
    try:
        again.build()
    except RuntimeError as error:
        return error_classification.is_worlds_fault(error, again), worker_main.is_echo(error)
    raise AssertionError("it has connected to nobody")


def test_an_address_at_which_nobody_is_any_more_is_not_the_scripts_fault() -> None:
    server = serve()
    (worlds, echo), _ = values(run_ranks(2, connects_to_who_has_gone, server.port))
    assert worlds
    assert echo, "also for a script that connects by itself"


def connected_meanwhile(port: int, *, road: str) -> tuple[str, str, int]:
    """What becomes of a connection of the script's, and how many the group has."""
    lines: list[socket.socket] = []
    apart = Ranks._apart

    def meanwhile(ranks: Ranks, work: Callable[[], Any]) -> Any:
        def connect_and_work() -> Any:
            with socket.create_server(("127.0.0.1", 0)) as server:
                lines.append(socket.create_connection(server.getsockname()))
                lines.append(server.accept()[0])
            return work()

        return apart(ranks, connect_and_work)

    ranks, store = in_place(port, road)
    Ranks._apart = meanwhile  # type: ignore[method-assign]
    ranks.build()
    mine, far = lines[-2:]
    meet(store, "built", dist.get_world_size())
    cut = len(ranks._sockets)
    ranks.interrupt()
    for line in ranks._sockets:
        line.shut(socket.SHUT_RDWR)
    far.sendall(b"to")
    to = mine.recv(2).decode()
    mine.sendall(b"fro")
    return to, far.recv(3).decode(), cut


@pytest.mark.parametrize("road", ROADS)
def test_what_the_script_connects_meanwhile_is_left_alone(road: str) -> None:
    server = serve()
    # Each rank has one connection with each of the two others, in each of the two groups.
    assert (
        values(run_ranks(3, partial(connected_meanwhile, road=road), server.port))
        == [("to", "fro", 4)] * 3
    )


def time_outs_of_groups(port: int, *, road: str) -> list[float]:
    """The time-outs of the groups of a round, and of one of the script's."""
    ranks = regrouping(road).ranks(place(port))
    ranks.build()
    mine = dist.new_group(backend="gloo", timeout=timedelta(seconds=20))
    another = ranks.another_group()
    groups: list[Any] = [dist.group.WORLD, ranks.group, another, mine]
    return [each._get_backend(CPU).options._timeout.total_seconds() for each in groups]


@pytest.mark.parametrize("road", ROADS)
def test_each_group_keeps_its_time_out(road: str) -> None:
    server = serve()
    assert values(run_ranks(1, partial(time_outs_of_groups, road=road), server.port)) == [
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


def group_for_a_gpu_alone(port: int, *, road: str) -> bool:
    """Whether a save can make its group beside one of the script's that is for GPUs alone."""
    _stand_in([])
    ranks = regrouping(road).ranks(place(port))
    ranks.build()
    dist.new_group(backend="cuda:standin")
    return ranks.another_group() is not None


@pytest.mark.parametrize("road", ROADS)
def test_a_group_of_the_scripts_need_not_serve_the_cpu(road: str) -> None:
    server = serve()
    assert values(run_ranks(1, partial(group_for_a_gpu_alone, road=road), server.port)) == [True]


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
    regrouping(Rebuild.name, stores).ranks(place(port)).build()
    return said, stores.client("127.0.0.1", port).store.timeout.total_seconds()


def what_nccl_is_told(port: int) -> dict[str, str]:
    """What the threads of NCCL read in the environment of a worker that an agent has started."""
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "1"  # as agents set it
    time_outs_with_a_gpu(port)
    return {name: value for name, value in os.environ.items() if name.startswith("TORCH_NCCL")}


def test_a_process_outlives_errors_of_nccl() -> None:
    server = serve()
    (told,) = values(run_ranks(1, what_nccl_is_told, server.port))
    assert told["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "2", "ends collectives, not the process"
    assert told["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "0", "no rank ends itself in a later round"
    assert int(told["TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC"]) < 1000, "four times is waited"


def test_ranks_of_nccl_may_be_minutes_apart() -> None:
    server = serve()
    ((said, store),) = values(run_ranks(1, time_outs_with_a_gpu, server.port))
    assert dict(said) == {"cpu": 1800.0, "cuda": 600.0}
    assert store == 600.0


def under_the_modes_of_the_script(mode: str, road: str) -> list[bool]:
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
    wire = TransferGroup(group._get_backend(CPU), dist.get_rank(), 2)
    told = [wire.gather([dist.get_rank()]), wire.tell({"a": 1}, 0), Peers(group).gather("x" * 2000)]
    order = Orders(5, None, replacement=False).of(1, 0)
    dist.barrier()
    torch_private.abort_groups()
    regrouping(road).rehearse()
    expected = [[[0], [1]], {"a": 1}, ["x" * 2000] * 2]
    return [agreed == Wish.SAVE, told == expected, sorted(order.tolist()) == list(range(5))]


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("mode", ["device", "no gradients", "inference"])
def test_modes_of_the_script_are_for_its_own_tensors(mode: str, road: str) -> None:
    assert (
        values(run_ranks(2, under_the_modes_of_the_script, mode, road)) == [[True, True, True]] * 2
    )
