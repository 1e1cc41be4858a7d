"""Groups that get other peers from round to round: real ranks, whose stores and peers die."""

from __future__ import annotations

import os
import signal
import threading
import time
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

from elastic_runtime.system import torch_private
from elastic_runtime.worker.groups import reconfigure
from elastic_runtime.worker.groups.reconfigure import Reconfigure, SameIdentity
from elastic_runtime.worker.groups.round_ranks import Interrupted
from elastic_runtime.worker.groups.store_clients import Stores
from tests import processes
from tests.etcd_server import free_port
from tests.ranks import run_ranks
from tests.unit.worker.groups.roads import (
    begin_in_place,
    meet,
    needs_reconfigure,
    on_ranks,
    place,
    serve,
)

pytestmark = needs_reconfigure

_SOON = timedelta(seconds=50)


def _sum(group: Any = None) -> int:
    """How many ranks are in a group, as one of its collectives sees it."""
    ones = torch.ones(1000)
    dist.all_reduce(ones, group=group)
    return int(ones[0].item())


def outlives_each_host(port: int, ports: list[int]) -> list[tuple[int, int, bool]]:
    """What each round sees whose store is hosted by another rank, which dies in it.

    Rank r hosts the store of round r + 1 and is killed at its end; the ranks after it go on.

    Args:
        port: of a store that stays, for the test.
        ports: of the stores of the rounds.

    Returns:
        For each round: its size as torch says it and as a collective says it, and whether the
        default group is the same object as in the first round.
    """
    me, size = dist.get_rank(), dist.get_world_size()
    mine = dist.TCPStore("127.0.0.1", ports[me], is_master=True, wait_for_workers=False)
    assert mine.port == ports[me]
    _, test = begin_in_place(port)
    here = Reconfigure(Stores())
    here.rehearse()
    first, seen = dist.group.WORLD, []
    for host in range(size):
        ranks = here.ranks(place(ports[host], size - host, rank=me - host, number=host + 1))
        ranks.build()
        counted = _sum(), _sum(ranks.group)
        assert counted[0] == counted[1] == dist.get_world_size()
        seen.append((dist.get_world_size(), counted[0], dist.group.WORLD is first))
        meet(test, f"round {host}", size - host)
        if me == host:
            if size - host > 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return seen
        with pytest.raises(RuntimeError):
            while True:  # until the death of the host breaks it
                _sum()
        ranks.take_apart()
    raise AssertionError("no rank is after the last one")


def test_groups_outlive_every_host_of_their_store() -> None:
    server = serve()
    ports = [free_port() for _ in range(3)]
    *killed, last = run_ranks(3, outlives_each_host, server.port, ports)
    assert [outcome.signal for outcome in killed] == [signal.SIGKILL] * 2
    assert last.value == [(3, 3, True), (2, 2, True), (1, 1, True)], last


def meets_a_newcomer(port: int) -> tuple[int, list[int], int, int]:
    """A rank that was in three rounds with one of the others, and one that is new, in a group each.

    Returns:
        Size and ranks of the default group, and the sizes of the second one and of the script's.
    """
    me, test = begin_in_place(port)
    here = Reconfigure(Stores())
    for number in (1, 2, 3):
        if me < 2:
            ranks = here.ranks(place(port, 2, rank=1 - me, number=number))
            ranks.build()
            assert _sum(dist.new_group()) == 2  # which a newcomer has not made
            meet(test, f"round {number}", 2)
            ranks.take_apart()
    ranks = here.ranks(place(port, 3, rank=me, number=4))
    ranks.build()
    mine = dist.new_group([0, 2])
    known = dist.get_process_group_ranks(dist.group.WORLD)
    counted = _sum(), known, _sum(ranks.group), _sum(mine) if me != 1 else 2
    meet(test, "counted", 3)
    return counted


def test_a_newcomer_and_survivors_make_the_same_groups() -> None:
    assert on_ranks(3, meets_a_newcomer) == [(3, [0, 1, 2], 3, 2)] * 3


def loses_a_peer_that_connects(port: int, how: str) -> tuple[str, bool, int, bool]:
    """What rank 0 meets when the other one has given its handles, and no more.

    Args:
        port: of the store.
        how: ``killed``, ``stopped``, or ``absent``: it does not even come to the store.

    Returns:
        The error, whether it came with the interrupt, the size of the next round, and whether that
        has the same default group.
    """
    me, test = begin_in_place(port)
    here = Reconfigure(Stores())
    here.rehearse()
    first = dist.group.WORLD
    ranks = here.ranks(place(port, 2, rank=me))
    if me == 1:
        test.set("peer", str(os.getpid()))
        number = signal.SIGSTOP if how == "stopped" else signal.SIGKILL

        def end(*_: Any) -> None:
            os.kill(os.getpid(), number)

        torch_private.reconfigure = end  # the handles are written then
        if how == "absent":
            end()
        ranks.build()
        raise AssertionError("it has ended")
    answer: list[str] = []

    def build() -> None:
        try:
            ranks.build()
        except (Interrupted, RuntimeError) as error:
            answer.append(type(error).__name__)

    building = threading.Thread(target=build, daemon=True)
    building.start()
    test.wait(["peer"], _SOON)
    peer = int(test.get("peer"))
    processes.wait_for(lambda: processes.state(peer) in ("", "Z", "T"), 50, "the end of the peer")
    ranks.interrupt()
    building.join(20)
    ranks.take_apart()
    alone = here.ranks(place(port, number=2))
    alone.build()
    if how == "stopped":
        os.kill(peer, signal.SIGKILL)
    return (*answer, not building.is_alive(), _sum(), dist.group.WORLD is first)


@pytest.mark.parametrize("how", ["absent", "killed", "stopped"])
def test_who_is_lost_while_the_ranks_connect_holds_up_nobody(how: str) -> None:
    server = serve()
    mine, _ = run_ranks(2, loses_a_peer_that_connects, server.port, how)
    error, soon, size, same = mine.value
    assert (error, soon, size) == ("Interrupted", True, 1)
    assert same, "a thread that waits in the store is released, and the groups stay"


def keeps_other_groups_from_a_silent_peer(port: int) -> tuple[bool, int]:
    """Whether other groups are made when a thread does not come out of the old ones."""
    begin_in_place(port)
    here = Reconfigure(Stores())
    here.rehearse()
    first, stuck = dist.group.WORLD, threading.Event()
    given = torch_private.reconfigure

    def hang(*_: Any) -> None:
        stuck.set()
        time.sleep(3600)  # a thread of gloo's that waits for a connection from a silent peer

    torch_private.reconfigure = hang
    ranks = here.ranks(place(port))
    threading.Thread(target=partial(pytest.raises, Interrupted, ranks.build), daemon=True).start()
    stuck.wait(50)
    ranks.interrupt()
    ranks.take_apart()
    torch_private.reconfigure = given
    again = here.ranks(place(port, number=2))
    again.build()
    return dist.group.WORLD is first, _sum()


def test_groups_that_a_thread_does_not_leave_are_given_up() -> None:
    assert on_ranks(1, keeps_other_groups_from_a_silent_peer) == [(False, 1)]


def draws_the_same_identity(port: int) -> tuple[str, int]:
    """What two ranks with one identity meet, and how large their next round is."""
    me, test = begin_in_place(port)

    class Same:
        def randrange(self, _: int) -> int:
            return 7

    drawn = reconfigure.random.SystemRandom
    reconfigure.random.SystemRandom = Same  # type: ignore[assignment,misc]
    here = Reconfigure(Stores())
    here.rehearse()
    reconfigure.random.SystemRandom = drawn  # type: ignore[misc]
    ranks = here.ranks(place(port, 2, rank=me))
    with pytest.raises(SameIdentity) as caught:
        ranks.build()
    meet(test, "refused", 2)
    ranks.take_apart()
    again = here.ranks(place(port, 2, rank=me, number=2))
    again.build()
    size = _sum()
    meet(test, "again", 2)
    return str(caught.value), size


def test_ranks_that_drew_the_same_identity_draw_again() -> None:
    text = "another rank of the round has the same identity; it draws a new one"
    assert on_ranks(2, draws_the_same_identity) == [(text, 2)] * 2


def is_late_for_a_round(port: int) -> list[bytes]:
    """What a thread of an older round writes into the store once the next round has begun."""
    begin_in_place(port)
    here = Reconfigure(Stores())
    ranks = here.ranks(place(port))
    ranks.build()
    kept = here.groups()
    old = kept.store.current
    assert old is not None
    ranks.take_apart()
    here.ranks(place(port, number=2)).build()
    with kept.store.bound(old), pytest.raises(Interrupted):
        kept.store.set("0//1//cpu//0/0", b"an address of a round that is over")
    test = dist.TCPStore("127.0.0.1", port, wait_for_workers=False)
    late = [f"round/{number}/0//1//cpu//0/0" for number in (1, 2)]
    return [test.get(key) for key in late if test.check([key])]


def test_who_is_late_writes_nothing_into_the_next_round() -> None:
    assert on_ranks(1, is_late_for_a_round) == [[]]


def gives_an_old_handle(port: int) -> str:
    """What a rank meets that gives a handle of an earlier round."""
    begin_in_place(port)
    here = Reconfigure(Stores())
    backend = here.groups().backends[0]
    old = backend.get_reconfigure_handle()
    here.ranks(place(port)).build()
    try:
        torch_private.reconfigure(backend, 2, [old], timedelta(seconds=5))
    except RuntimeError as error:
        return str(error)
    return ""


def test_torch_refuses_a_handle_of_an_earlier_round() -> None:
    (said,) = on_ranks(1, gives_an_old_handle)
    assert "is not part of the new communicator" in said


class _Recorder:
    """A backend for GPUs that needs none: it writes down what is asked of it."""

    def __init__(self, said: list[Any]) -> None:
        self._said = said

    def get_reconfigure_handle(self) -> str:
        """A handle."""
        self._said.append("handle")
        return f"nccl2:{os.getpid()}"

    def reconfigure(self, options: Any) -> Any:
        """Other peers."""
        self._said.append(("reconfigure", options.uuid, len(options.handles)))
        return self

    def wait(self) -> None:
        """Is done."""


def with_a_gpu(port: int) -> list[Any]:
    """What a round asks of a backend for GPUs, and in which order."""
    me, test = begin_in_place(port)
    said: list[Any] = []
    here = Reconfigure(Stores())
    kept = here.groups()
    backends = (*kept.backends, _Recorder(said))
    here._kept = reconfigure._KeptGroups(kept.store, kept.own, backends)
    for number in (1, 2):
        ranks = here.ranks(place(port, 2, rank=me, number=number))
        ranks.build()
        meet(test, f"round {number}", 2)
        ranks.take_apart()
    return said


def test_groups_of_a_gpu_get_the_same_peers() -> None:
    once = ["handle", ("reconfigure", 1, 2), "handle", ("reconfigure", 2, 2)]
    assert on_ranks(2, with_a_gpu) == [once] * 2


def with_a_mesh(port: int) -> list[Any]:
    """What a device mesh of the whole world, made in the first round, is worth in later ones."""
    me, test = begin_in_place(port)
    here = Reconfigure(Stores())
    seen: list[Any] = []
    mesh: Any = None
    for number in (1, 2, 3):
        rank = me if number != 2 else 1 - me
        ranks = here.ranks(place(port, 2, rank=rank, number=number))
        ranks.build()
        if mesh is None:
            mesh = dist.init_device_mesh("cpu", (2,))
        group = mesh.get_group()
        seen.append((group is dist.group.WORLD, _sum(group), mesh.get_local_rank() == rank))
        meet(test, f"round {number}", 2)
        ranks.take_apart()
    return seen


def test_a_mesh_of_all_ranks_goes_on_as_long_as_there_are_so_many() -> None:
    """Its group is the default one."""
    assert on_ranks(2, with_a_mesh) == [[(True, 2, True)] * 3] * 2
