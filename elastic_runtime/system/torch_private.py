"""Process groups, devices and loaders: what leans on undocumented parts of torch, with its reason.

``torch_tcp_store`` and ``torch_formats`` have the rest of it; no other module may do so. A test
beside each fails when torch changes it. torch itself is imported only when something is called.
"""

from __future__ import annotations

import inspect
import os
from contextlib import contextmanager, suppress
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from datetime import timedelta

    import torch


def cuda_is_lost() -> bool:
    """Whether this process is a fork of one that has touched CUDA, and so can never use it.

    There is no public question for it: ``torch.cuda.is_available()`` would itself touch the
    driver, and ``is_initialized()`` is false in such a fork.
    """
    import torch

    lost = getattr(torch._C, "_cuda_isInBadFork", None)  # absent without CUDA
    return bool(lost and lost())


def numa_cpus(gpu: int, mode: str) -> list[int]:
    """The logical processors that torchrun's ``--numa-binding`` would bind a worker to.

    torch only offers to wrap a command in ``numactl``, or to bind the calling process; a worker
    that is forked needs the processors themselves.

    Args:
        gpu: index of the worker's GPU, which is its local rank.
        mode: ``node``, ``socket``, ``exclusive`` or ``core-complex``.
    """
    from torch.numa import binding

    options = binding.NumaOptions(affinity_mode=binding.AffinityMode(mode))
    return sorted(binding._get_logical_cpus_to_bind_to(gpu_index=gpu, numa_options=options))


def end_loader(loader: Any) -> None:
    """Tells the persistent processes of a ``DataLoader`` to end, and waits for them.

    torch does so only where it drops the iterator, and the end of a program need not come there.

    Args:
        loader: the ``DataLoader``.
    """
    iterator = getattr(loader, "_iterator", None)
    if iterator is not None:
        iterator._shutdown_workers()


@contextmanager
def hidden_loader_process() -> Iterator[None]:
    """Has ``get_worker_info()`` say meanwhile that this is no process of a ``DataLoader``.

    Iterable data sets that find themselves in such a process give it a part of the samples only.
    """
    from torch.utils.data._utils import worker

    info = worker._worker_info
    worker._worker_info = None
    try:
        yield
    finally:
        worker._worker_info = info


@contextmanager
def gloo_built_by(build: Callable[[Callable[[], list[bytes]]], list[bytes]]) -> Iterator[None]:
    """Has ``build`` make every gloo group that torch makes within the block.

    torch constructs the group in the calling thread, which then waits for every peer; it offers
    no other way to give up than the time-out. What it makes is a subclass, so that it is still a
    ``ProcessGroupGloo`` for all that ask.

    Args:
        build: calls what it is given, wherever it likes, and raises if it does not wait for it;
            returns what that returns: where the ranks of the group listen for each other.
    """
    _hand_gloo_to_builders()
    _gloo_builders.append(build)
    try:
        yield
    finally:
        _gloo_builders.remove(build)


# In the order in which their blocks were entered. Those blocks may overlap, in several threads.
_gloo_builders: list[Callable[[Callable[[], list[bytes]]], list[bytes]]] = []


def _hand_gloo_to_builders() -> None:
    """Puts the subclass in the place of torch's own, once for a process."""
    from torch.distributed import distributed_c10d

    original: Any = getattr(distributed_c10d, "ProcessGroupGloo", None)
    if original is None or hasattr(original, "__wrapped__"):
        return  # a torch without gloo, or it is there already

    class Gloo(original):  # type: ignore[misc]
        __wrapped__ = original

        def __init__(self, store: Any, rank: int, size: int, *args: Any, **options: Any) -> None:
            builders = tuple(_gloo_builders)

            def make() -> list[bytes]:
                original.__init__(self, store, rank, size, *args, **options)
                return _gloo_listeners(store, size) if builders else []

            for build in builders:
                make = partial(build, make)
            make()

    distributed_c10d.ProcessGroupGloo = Gloo


def _gloo_listeners(store: Any, size: int) -> list[bytes]:
    """The addresses at which the ranks of a gloo group listen, as they told each other.

    gloo writes it into the group's store and shows it nowhere else. In it is the socket address as
    the system has it, which is all that is relied on.
    """
    keys = [f"0/{rank}" for rank in range(size)]
    if size == 1 or not store.check(keys):
        return []
    return [bytes(said) for said in store.multi_get(keys)]


def set_timeout(group: Any, device: str, timeout: timedelta) -> None:
    """Sets the time-out of one backend of a group; the public way would set that of all.

    Args:
        group: the process group.
        device: ``cpu`` or ``cuda``; the group has a backend for it.
        timeout: for each collective from now on.
    """
    import torch

    backend = group._get_backend(torch.device(device))
    # ``ProcessGroupNCCL2`` of torch 2.15 has the public name only, which older backends lack.
    set_it = getattr(backend, "_set_default_timeout", None) or backend.set_timeout
    set_it(timeout)


def tend_groups(tended: Callable[[], AbstractContextManager[None]]) -> None:
    """Has every process group built within a context, for every caller; once for a process.

    ``init_process_group`` and ``new_group`` both build through this one function, and scripts call
    them by many names; there is no public hook.

    Args:
        tended: makes the context.
    """
    from torch.distributed import distributed_c10d

    build: Any = distributed_c10d._new_process_group_helper
    if hasattr(build, "__wrapped__"):
        return

    @wraps(build)
    def building(*args: Any, **options: Any) -> Any:
        with tended():
            return build(*args, **options)

    distributed_c10d._new_process_group_helper = building


def forget_scaled_step(scaler: torch.amp.GradScaler) -> None:
    """Makes a ``GradScaler`` forget the step that it is in the middle of.

    From ``unscale_`` to ``update`` it keeps for each optimizer how far that is, which its state
    dict leaves out. If a step is begun again, it would take the new gradients for unscaled ones,
    and the optimizer would go 65536 times too far. Only ``update`` clears it, and that changes the
    scale.

    Args:
        scaler: any; one that is disabled has nothing to forget.
    """
    states = getattr(scaler, "_per_optimizer_states", None)
    if states is not None:
        states.clear()


def forget_scale(optimizer: torch.optim.Optimizer) -> None:
    """Takes from an optimizer what a ``GradScaler`` lends it for one step, if it is still there.

    A fused optimizer unscales the gradients itself, by attributes that the scaler deletes after
    the step. If the step raises they stay, and the next scale is multiplied by them.

    Args:
        optimizer: any.
    """
    lent = vars(optimizer)
    if "found_inf" in lent:  # else a grad_scale is the script's own
        del lent["found_inf"]
        lent.pop("grad_scale", None)


def spare_groups(spared: Callable[[], bool]) -> None:
    """Has a script's ``destroy_process_group()`` of all groups ask first; once for a process.

    Most scripts end with that call, and it fails where there is no group any longer. There is no
    hook in it. A script that imports it by name before this was called gets torch's own.

    Args:
        spared: whether it is to be left out where there are no groups; may raise.
    """
    import torch.distributed as dist

    original: Any = dist.destroy_process_group
    if hasattr(original, "__wrapped__"):
        return

    @wraps(original)
    def destroy(group: Any = None) -> None:
        ends_all = group is None or group == dist.group.WORLD
        if not ends_all or not spared() or dist.is_initialized():
            original(group)

    dist.destroy_process_group = dist.distributed_c10d.destroy_process_group = destroy


def end_groups() -> None:
    """Ends all groups in torch's own way, whatever was set with ``spare_groups``."""
    import torch.distributed as dist

    inspect.unwrap(dist.destroy_process_group)()


def all_groups() -> list[Any]:
    """The process groups that torch knows of; it has no public list of them."""
    import torch.distributed as dist

    return list(dist.distributed_c10d._world.pg_map)


def abort_groups() -> list[Any]:
    """Ends all of torch's process groups without a word to the peers.

    ``destroy_process_group`` waits for what is under way; after a fault it never ends.

    Returns:
        The groups. They end when the last reference is dropped, which takes gloo 10 ms.
    """
    import torch.distributed as dist

    world = dist.distributed_c10d._world
    groups = all_groups()
    if dist.is_initialized():
        dist.distributed_c10d._abort_process_group()
    # A failed init leaves it raised, and the ranks then wait for each other under different keys.
    world.group_count = 0
    return groups


def can_reconfigure() -> bool:
    """Whether this torch can give a living group other peers; ``torch_version`` says which do.

    The calls are marked as experimental, so that a later version may lack them.
    """
    import torch.distributed as dist

    known = hasattr(dist, "_reconfigure") and hasattr(dist.ProcessGroup, "reconfigure")
    # With that level all groups are wrapped into some that cannot; a script may set it late.
    return known and dist.is_gloo_available() and dist.get_debug_level() != dist.DebugLevel.DETAIL


def make_reconfigurable(store: Any, identity: int, timeout: timedelta, *, gpu: bool) -> Any:
    """Makes the default group, and one more over gloo, such that they can get other peers.

    Torch makes only the default group so by a public name.

    Args:
        store: through which ranks exchange addresses, as long as the process lives.
        identity: of this process, unique among all that ever meet.
        timeout: for collectives.
        gpu: the default group is for GPUs, too.

    Returns:
        The further group. torch does not list it.
    """
    import torch
    import torch.distributed as dist

    dist.init_process_group(
        "cpu:gloo,cuda:nccl2" if gpu else "gloo",
        store=store,
        rank=identity,
        world_size=1,
        timeout=timeout,
        enable_reconfigure=True,
    )
    prefixed = dist.PrefixStore("elastic/", store)
    gloo = inspect.unwrap(dist.ProcessGroupGloo)
    backend = gloo(prefixed, identity, 1, timeout, enable_reconfigure=True)
    group = dist.ProcessGroup(prefixed, identity, 1)
    group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
    group._set_group_name("elastic")
    group._set_group_desc("elastic")
    return group


def reconfigure(backend: Any, number: int, handles: list[str], timeout: timedelta) -> None:
    """Gives a group other peers.

    ``torch.distributed._reconfigure`` does the same for groups of one backend only.

    Args:
        backend: of a group that was made to be reconfigured.
        number: a fresh one, the same on all ranks.
        handles: a fresh one of each rank, by rank.
        timeout: for the ranks to connect.

    Raises:
        RuntimeError: a peer could not be reached.
    """
    from torch.distributed import distributed_c10d

    options = distributed_c10d.ReconfigureOptions()
    options.uuid = number
    options.handles = handles
    options.timeout = timeout
    backend.reconfigure(options).wait()


def renumber_ranks(group: Any, size: int) -> None:
    """Tells torch which ranks the default group and another one of all ranks have.

    The groups themselves know it; a table from the time when they were made does not, and torch
    looks up there which global rank one of a group is.

    Args:
        group: the other one.
        size: how many ranks there are.
    """
    import torch.distributed as dist

    table = dist.distributed_c10d._world.pg_group_ranks
    for one in (dist.group.WORLD, group):
        table[one] = {rank: rank for rank in range(size)}


def end_other_groups() -> list[Any]:
    """Ends all groups but the default one, without a word to the peers.

    Returns:
        The groups. They end when the last reference is dropped.
    """
    import torch.distributed as dist

    world = dist.distributed_c10d._world
    groups = [group for group in all_groups() if group is not dist.group.WORLD]
    for group in groups:
        dist.distributed_c10d._abort_process_group(group)
    # Names of groups contain it, and a rank that is new has not made those of earlier rounds.
    world.group_count = min(world.group_count, 1)
    return groups


def abort_nccl() -> None:
    """Releases threads that wait in a collective of NCCL, which no socket of ours does."""
    import torch
    import torch.distributed as dist

    if not (torch.cuda.is_available() and dist.is_initialized()):
        return
    for group in list(dist.distributed_c10d._world.pg_map):
        with suppress(RuntimeError):
            group._get_backend(torch.device("cuda")).abort()


# What groups of this package are called, so that its own collectives are not taken for a script's.
OWN_GROUP = "elastic_runtime"
_KINDS_OF_DEVICE = ("cpu", "cuda")


def collectives_of_script() -> int:
    """How many collectives this process has called in all groups but those of this package.

    There is no public count. It tells whether there was one between two looks.
    """
    import torch
    import torch.distributed as dist

    counted = 0
    if not dist.is_initialized():
        return counted
    for group in all_groups():
        if group.group_desc == OWN_GROUP:
            continue
        for device in _KINDS_OF_DEVICE:
            with suppress(RuntimeError):  # it has no backend for that
                backend = group._get_backend(torch.device(device))
                counted += backend._get_sequence_number_for_group()
    return counted


def nccl_collectives() -> int | None:
    """How many collectives this process has queued on NCCL, in all groups that exist.

    There is no public count. It tells whether anything was queued between two looks; what goes
    from one rank to another (send and receive) is not counted.

    Returns:
        The number, or None if a group does not say.
    """
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        return 0
    counted = 0
    for group in all_groups():
        # A group of gloo alone has no part in it: it says so by a RuntimeError.
        with suppress(RuntimeError):
            backend = group._get_backend(torch.device("cuda"))
            count = getattr(backend, "_get_sequence_number_for_group", None)
            if count is None:
                return None
            counted += count()
    return counted


def outlive_nccl_errors() -> None:
    """Tells NCCL's threads in this process that an error ends a round, and not the process.

    To be called before a group is made. If torch's watchdog meets a lost peer before an abort
    does, it waits for a minute and then ends the process, long after the next round has begun; and
    it leaves a key in the store, outside of the group's prefix, for which all ranks of all later
    rounds end themselves after 8 minutes. (``Watchdog::runLoop`` and ``HeartbeatMonitor::runLoop``
    of ``ProcessGroupNCCL.cpp``.) ``nccl_failure`` sees what has failed instead.
    """
    # 1 is what launchers set, 3 what torch takes; both end the process. 2 ends collectives only.
    if os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3") in ("1", "3"):
        os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "2"
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "0")
    # Four times as long waits the thread of a group that has ended, and whoever drops the group.
    os.environ.setdefault("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "100")


def nccl_failure() -> str:
    """What a group of NCCL says of itself that no caller has heard yet; "" if nothing.

    A collective that ran out of time, or an error of the network, is noticed by a thread of torch,
    which ends the collective. There is no public way to ask.
    """
    import torch
    import torch.distributed as dist

    if not (torch.cuda.is_available() and dist.is_initialized()):
        return ""
    for group in all_groups():
        with suppress(RuntimeError):
            ask = getattr(group._get_backend(torch.device("cuda")), "get_error", None)
            said = ask() if ask is not None else None
            if said is not None and said.name != "SUCCESS":
                return str(said.name)
    return ""


def module_hooks(module: torch.nn.Module) -> dict[str, Any]:
    """The hooks that others have registered on a module, as its attributes; torch has no list.

    Args:
        module: any.
    """
    return {
        name: value
        for name, value in vars(module).items()
        if name.startswith("_") and ("_hooks" in name) and isinstance(value, dict)
    }


def keep_versions_in_ddp() -> None:
    """Makes ``DDP(model)`` leave the version counters of parameters as they are.

    DDP begins by giving all ranks the parameters of rank 0. In place all ranks have them already,
    so nothing changes; but to the version counters, by which changes outside of optimizers are
    seen, it would look like a change of everything. There is no hook around that broadcast, and
    ``init_sync=False`` is the script's to say.
    """
    import torch
    from torch.nn.parallel import distributed

    sync = distributed._sync_module_states
    if hasattr(sync, "__wrapped__"):
        return

    @wraps(sync)
    def quietly(module: torch.nn.Module, *args: Any, **options: Any) -> None:
        with torch.autograd._unsafe_preserve_version_counter(tuple(module.parameters())):
            sync(module, *args, **options)

    distributed._sync_module_states = quietly
