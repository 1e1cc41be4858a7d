"""The groups of one round, in real processes: what an interrupt releases, and how groups end."""

from __future__ import annotations

import gc
import os
import re
import socket
import threading
import time
import weakref
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
from elastic_runtime.worker.groups import group_disposal, rebuild, round_ranks
from elastic_runtime.worker.groups.rebuild import Rebuild
from elastic_runtime.worker.groups.round_ranks import Interrupted, Ranks
from elastic_runtime.worker.groups.store_clients import Stores
from elastic_runtime.worker.peers import GlooGroups, Peers
from elastic_runtime.worker.recovery import error_classification
from elastic_runtime.worker.recovery.error_classification import WorldChanged, check_groups
from elastic_runtime.worker.recovery.optimizer_gate import OptimizerGate
from elastic_runtime.worker.recovery.state_transfer import TransferGroup
from tests import processes
from tests.ranks import run_ranks, values
from tests.unit.worker.groups.roads import (
    begin_in_place,
    in_place,
    meet,
    on_ranks,
    place,
    regrouping,
)

if TYPE_CHECKING:
    from collections.abc import Callable


CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def interrupted_in_a_group_of_the_script(port: int, *, road: str, made: bool) -> str:
    """What rank 0 meets in a group of the script's in which the other rank is silent.

    Args:
        port: of the store.
        road: how the ranks regroup.
        made: that rank has made it, at least.
    """
    ranks, store = in_place(port, road)
    ranks.build()
    make = partial(dist.new_group, backend="gloo", timeout=timedelta(seconds=20))
    group = make() if made else None
    meet(store, "built", 2)  # who is through first does not end while the other one connects
    if ranks.place.rank == 1:
        store.wait(["released"], timedelta(seconds=50))
        return ""
    threading.Thread(target=ranks.interrupt).start()
    try:
        dist.barrier(group=group or make())
    except (Interrupted, RuntimeError) as error:
        store.set("released", "1")
        return f"{type(error).__name__}: {error}"
    return "nothing"


@pytest.mark.parametrize(
    ("made", "error"),
    [(True, r"RuntimeError: .*Connection closed by peer"), (False, "Interrupted: ")],
)
def test_an_interrupt_ends_waits_in_groups_of_the_script(road: str, made: bool, error: str) -> None:
    said, _ = on_ranks(2, interrupted_in_a_group_of_the_script, road=road, made=made)
    assert re.match(error, said, re.DOTALL)


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


@pytest.mark.parametrize("told", [True, False])
def test_an_unfinished_group_does_not_hold_up_the_next_round(told: bool, road: str) -> None:
    soon, _ = on_ranks(2, enters_a_round_while_a_group_is_made, told=told, road=road)
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


@pytest.mark.parametrize("met", [False, True])
def test_before_the_first_step_an_interrupt_ends_waits_in_the_store(met: bool, road: str) -> None:
    ((released, kept),) = on_ranks(1, interrupted_in_the_store, met=met, road=road)
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
    (worlds, echo), _ = on_ranks(2, connects_to_who_has_gone)
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


def test_what_the_script_connects_meanwhile_is_left_alone(road: str) -> None:
    # Each rank has one connection with each of the two others, in each of the two groups.
    assert on_ranks(3, connected_meanwhile, road=road) == [("to", "fro", 4)] * 3


def time_outs_of_groups(port: int, *, road: str) -> list[float]:
    """The time-outs of the groups of a round, and of one of the script's."""
    ranks = regrouping(road).ranks(place(port))
    ranks.build()
    mine = dist.new_group(backend="gloo", timeout=timedelta(seconds=20))
    another = ranks.another_group()
    groups: list[Any] = [dist.group.WORLD, ranks.group, another, mine]
    return [each._get_backend(CPU).options._timeout.total_seconds() for each in groups]


def test_each_group_keeps_its_time_out(road: str) -> None:
    assert on_ranks(1, time_outs_of_groups, road=road) == [[1800.0, 1800.0, 1800.0, 20.0]]


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


def test_a_group_of_the_scripts_need_not_serve_the_cpu(road: str) -> None:
    assert on_ranks(1, group_for_a_gpu_alone, road=road) == [True]


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
    (told,) = on_ranks(1, what_nccl_is_told)
    assert told["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "2", "ends collectives, not the process"
    assert told["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "0", "no rank ends itself in a later round"
    assert int(told["TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC"]) < 1000, "four times is waited"


def test_ranks_of_nccl_may_be_minutes_apart() -> None:
    ((said, store),) = on_ranks(1, time_outs_with_a_gpu)
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


@pytest.mark.parametrize("mode", ["device", "no gradients", "inference"])
def test_modes_of_the_script_are_for_its_own_tensors(mode: str, road: str) -> None:
    assert (
        values(run_ranks(2, under_the_modes_of_the_script, mode, road)) == [[True, True, True]] * 2
    )


# On a GPU nothing may use what an aborted collective has left


PATIENCE = 30.0


class Gpu:
    """A collective is queued, which only an abort releases."""

    def __init__(self) -> None:
        self.waits = threading.Event()
        self.aborted = threading.Event()

    def in_use(self) -> bool:
        return True

    def collectives(self) -> int | None:
        return 1

    def refuse_recording(self) -> None:
        pass

    def wait(self, optimizer: torch.optim.Optimizer | None) -> None:
        self.waits.set()
        assert self.aborted.wait(PATIENCE)


def interrupted_before_a_step(port: int, road: str) -> list[Any]:
    """An optimizer that waits for its gradients while the round is interrupted."""
    begin_in_place(port)
    ranks = regrouping(road).ranks(place(port))
    ranks.build()
    gpu = Gpu()
    gate = OptimizerGate(partial(check_groups, ranks), gpu)
    known: list[bool] = []

    def abort() -> None:
        known.append(ranks.interrupted.is_set())
        gpu.aborted.set()

    assert round_ranks.torch_private is torch_private
    torch_private.abort_nccl = abort

    def interrupt() -> None:
        gpu.waits.wait(PATIENCE)
        ranks.interrupt()

    thread = threading.Thread(target=interrupt)
    thread.start()
    weight = torch.zeros(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    try:
        gate.before_optimizer(optimizer)
        said = "it may step"
    except WorldChanged as change:
        said = str(change)
    thread.join(PATIENCE)
    ranks.take_apart()
    return [known, said]


def test_who_is_released_by_an_abort_knows_that_the_round_is_broken(road: str) -> None:
    (found,) = on_ranks(1, interrupted_before_a_step, road)
    assert found == [[True], "the round is broken"]


def builds_other_groups(port: int) -> list[Any]:
    """What there is before, in and after two rounds, and alone."""
    me, test = begin_in_place(port)
    here = Rebuild(Stores())
    here.rehearse()
    found: list[Any] = [dist.is_initialized()]
    groups = []
    for number in (1, 2):
        ranks = here.ranks(place(port, 2, rank=me, number=number))
        ranks.build()
        ones = torch.ones(1)
        dist.all_reduce(ones, group=ranks.group)
        found.append(ones.item())
        groups.append(dist.group.WORLD)
        meet(test, f"round {number}", 2)
        ranks.take_apart()
        found.append(dist.is_initialized())
    here.alone()
    found += [dist.get_world_size(), groups[0] is groups[1]]
    here.close()
    return found


def test_each_round_has_groups_of_its_own() -> None:
    expected = [False, 2.0, False, 2.0, False, 1, False]
    assert on_ranks(2, builds_other_groups) == [expected] * 2


# The end of process groups: nobody who is needed waits for it, and nothing is left


def lets_go_of_a_group_that_waits(port: int) -> int:
    """Drops what refers to a group in which a collective never ends; the time-out is half an hour.

    Returns:
        How many threads wait for that end.
    """
    ranks, store = in_place(port, Rebuild.name)
    ranks.build()
    meet(store, "built", 2)
    if ranks.place.rank == 1:
        store.wait(["dropped"], timedelta(seconds=50))
        return 0
    group = ranks.group
    assert group is not None
    holder = [GlooGroups(group, ranks.another_group, ranks.interrupted.is_set)]
    work: Any = group._get_backend(CPU).allreduce([torch.ones(1)])
    held = [weakref.ref(group)]
    del group, work
    ranks.group = None
    group_disposal.drop_later(torch_private.abort_groups())
    resting = group_disposal._background[-1]
    resting.join(timeout=50)
    holder.clear()  # it comes after the rest, as a checkpointer does in the next round
    processes.wait_for(lambda: held[0]() is None, 50, "the end of the last reference")
    group_disposal._background[-1].join(timeout=1.0)
    waits = sum(one.is_alive() for one in group_disposal._background)
    store.set("dropped", "1")
    return waits


def test_nobody_who_is_needed_waits_for_the_end_of_a_group() -> None:
    waits, _ = on_ranks(2, lets_go_of_a_group_that_waits)
    assert waits


def drops_the_groups_of_a_round(port: int) -> tuple[int, int]:
    """Trains once in a round, and waits until nothing refers to its groups any more.

    Returns:
        How many groups it had, and how many are still kept.
    """
    ranks, _ = in_place(port, Rebuild.name)
    Rebuild(Stores()).rehearse()
    ranks.build()
    torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))(torch.ones(1)).backward()
    groups = [weakref.ref(group) for group in torch_private.all_groups()]
    ranks.take_apart()
    for one in group_disposal._background:
        one.join(timeout=50)
    gc.collect()
    processes.wait_for(lambda: not any(one() for one in groups), 50, "the end of all groups")
    return len(groups), len(group_disposal._kept)


def test_the_groups_of_a_round_are_dropped_when_nobody_refers_to_them() -> None:
    for had, kept in on_ranks(2, drops_the_groups_of_a_round):
        assert had >= 2, "the default group, and that of the runtime"
        assert kept == 0


class _Cycle:
    """Stands for a ``DDP``: refers to a group until it is collected as garbage."""

    def __init__(self, group: object) -> None:
        self.group = group
        self.me = self


class _Group:
    """Is as good as a group, as far as dropping goes."""


def test_what_only_garbage_refers_to_does_not_pile_up() -> None:
    groups: list[Any] = [_Group() for _ in range(group_disposal._MANY + 1)]
    held = [weakref.ref(group) for group in groups]
    gc.disable()
    try:
        for group in groups:
            _Cycle(group)
        del group
        group_disposal.drop_later(groups)
        assert processes.wait_for(
            lambda: not any(ref() for ref in held), 50, "the end of all groups"
        )
    finally:
        gc.enable()


def test_a_rest_does_not_count_while_the_machine_runs_nobody() -> None:
    slept = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        begun = time.monotonic()
        while time.monotonic() < begun + (0.06 if len(slept) <= 7 else 0.001):
            pass

    group_disposal.rest(sleep)
    assert len(slept) >= 7 + 10


def test_a_rest_ends_on_a_machine_that_is_always_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_disposal, "_LONGEST_REST", 0.2)
    monkeypatch.setattr(group_disposal, "_REST", 0.0)
    slept: list[float] = []
    group_disposal.rest(slept.append)
    assert len(slept) > 10
