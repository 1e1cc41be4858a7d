"""What leans on torch's undocumented parts, checked against the torch that is installed."""

from __future__ import annotations

import importlib
import inspect
import socket
import threading
import zipfile
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

from elastic_runtime.system import torch_formats, torch_private, torch_tcp_store
from tests.ranks import run_ranks, values

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def versions_around_ddp() -> list[int]:
    torch_private.keep_versions_in_ddp()
    torch_private.keep_versions_in_ddp()  # a second time changes nothing
    model = torch.nn.Linear(2, 2)
    before = [p._version for p in model.parameters()]
    torch.nn.parallel.DistributedDataParallel(model)
    after = [p._version for p in model.parameters()]
    with torch.no_grad():
        model.weight.add_(1)
    return [a - b for a, b in zip(after, before, strict=True)] + [model.weight._version - after[0]]


def test_ddp_leaves_the_version_counters_as_they_are() -> None:
    assert values(run_ranks(2, versions_around_ddp)) == [[0, 0, 1]] * 2


def groups_built_within() -> list[str]:
    seen: list[str] = []

    @contextmanager
    def noted() -> Iterator[None]:
        seen.append("before")
        yield
        seen.append("after")

    torch_private.tend_groups(noted)
    torch_private.tend_groups(noted)  # once is enough
    dist.new_group(backend="gloo")
    dist.barrier()  # who ends first would cut the other's last connection
    return seen


def test_every_group_is_built_within_what_is_asked_for() -> None:
    assert values(run_ranks(2, groups_built_within)) == [["before", "after"]] * 2


@pytest.mark.parametrize("fused", [False, True])
def test_a_scaler_forgets_the_step_that_it_is_in_the_middle_of(fused: bool) -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    optim = torch.optim.SGD([weight], lr=1.0, fused=fused)
    scaler = torch.amp.GradScaler("cpu")

    def fail(*_: object) -> None:
        raise ConnectionResetError

    scaler.scale(-weight.sum()).backward()
    hook = optim.register_step_pre_hook(fail)
    with pytest.raises(ConnectionResetError):
        scaler.step(optim)
    hook.remove()
    assert scaler._per_optimizer_states[id(optim)]["found_inf_per_device"]
    assert fused == hasattr(optim, "found_inf") == hasattr(optim, "grad_scale")
    torch_private.forget_scaled_step(scaler)
    torch_private.forget_scale(optim)
    assert not scaler._per_optimizer_states
    assert not hasattr(optim, "found_inf") and not hasattr(optim, "grad_scale")
    optim.zero_grad()
    scaler.scale(-weight.sum()).backward()
    scaler.step(optim)
    scaler.update()
    assert weight.item() == 1.0


def test_what_a_script_lends_an_optimizer_stays() -> None:
    optim = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    optim.grad_scale = 2.0  # type: ignore[attr-defined]
    torch_private.forget_scale(optim)
    assert optim.grad_scale == 2.0  # type: ignore[attr-defined]
    torch_private.forget_scaled_step(torch.amp.GradScaler("cpu", enabled=False))


def test_who_ends_all_groups_is_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    core: Any = dist.distributed_c10d
    torchs_own = inspect.unwrap(dist.destroy_process_group)  # another test may have run a script
    for module in (dist, core):  # set, so that it is undone
        monkeypatch.setattr(module, "destroy_process_group", torchs_own)
    spared = [False, True, True]
    torch_private.spare_groups(lambda: spared.pop(0))
    torch_private.spare_groups(lambda: True)  # once is enough
    assert core.destroy_process_group is dist.destroy_process_group
    with pytest.raises(AssertionError, match="cannot be None"):
        dist.destroy_process_group()
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.destroy_process_group(dist.new_group(backend="gloo"))  # nobody asks
    assert len(spared) == 1
    dist.destroy_process_group()  # the script's own
    assert not dist.is_initialized()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    torch_private.end_groups()
    assert not dist.is_initialized() and not spared


def built_in_overlapping_blocks() -> list[list[str]]:
    """Who builds a group: while two blocks overlap, in the one that is left, and after both."""
    seen: list[str] = []

    def builder(name: str) -> Any:
        def build(make: Any) -> list[bytes]:
            seen.append(name)
            said: list[bytes] = make()
            seen.append(str(len(said)))  # one address for each rank
            return said

        return torch_private.gloo_built_by(build)

    def made() -> list[str]:
        seen.clear()
        group = dist.new_group(backend="gloo")
        assert group is not None
        dist.barrier(group=group)
        return list(seen)

    one, other = builder("one"), builder("other")
    one.__enter__()
    other.__enter__()
    both = made()
    one.__exit__(None, None, None)
    left = made()
    other.__exit__(None, None, None)
    return [both, left, made()]


def test_blocks_in_which_gloo_is_built_may_overlap() -> None:
    expected = [["other", "one", "2", "2"], ["other", "2"], []]
    assert values(run_ranks(2, built_in_overlapping_blocks)) == [expected] * 2


class _PublicTimeout:
    """A backend of a group, and the group, that have the public name for time-outs only."""

    def __init__(self) -> None:
        self.given: list[timedelta] = []

    def _get_backend(self, device: torch.device) -> _PublicTimeout:
        assert device == torch.device("cuda")
        return self

    def set_timeout(self, timeout: timedelta) -> None:
        """As the second NCCL of torch 2.15 has it."""
        self.given.append(timeout)


def test_a_backend_without_the_private_name_gets_its_time_out() -> None:
    group = _PublicTimeout()
    torch_private.set_timeout(group, "cuda", timedelta(minutes=10))
    assert group.given == [timedelta(minutes=10)]


# ---------------------------------------------------------------- how tensors are stored


class _Rebuilding(torch.nn.Linear):
    def _load_from_state_dict(self, *args: Any, **options: Any) -> None:
        super()._load_from_state_dict(*args, **options)


def test_a_module_that_has_a_say_in_loading_is_seen() -> None:
    plain = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    assert torch_formats.loads_plainly(plain)
    assert not torch_formats.loads_plainly(torch.nn.Sequential(_Rebuilding(2, 2)))
    for register in ("register_load_state_dict_pre_hook", "register_load_state_dict_post_hook"):
        hooked = torch.nn.Sequential(torch.nn.Linear(2, 2))
        getattr(hooked[0], register)(lambda *_: None)
        assert not torch_formats.loads_plainly(hooked)


def sharded() -> bool:
    """Whether a module that FSDP2 has sharded is read to its place."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 3))
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (1,)))
    assert model[0]._load_state_dict_post_hooks
    with torch.no_grad():
        for value in model.state_dict().values():
            value.to_local().fill_(7.0)
    assert model(torch.ones(1, 3)).tolist() == [[7 * 5 * 28.0 + 7] * 3]
    return torch_formats.loads_plainly(model)


def test_what_is_read_into_shards_of_fsdp_needs_no_more() -> None:
    assert values(run_ranks(1, sharded)) == [True]


def test_torch_makes_a_tensor_of_its_pickle_and_its_bytes(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "tensor", "w") as archive:
        pickled = torch_formats.tensor_pickle(torch.bfloat16, (2, 3), 12)
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/version", b"3\n")
        archive.writestr("archive/data/0", b"\x80\x3f" * 6)
    loaded = torch.load(tmp_path / "tensor", weights_only=True)
    assert torch.equal(loaded, torch.ones(2, 3, dtype=torch.bfloat16))


def where_a_shard_is() -> Any:
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    return torch_formats.dtensor_chunk(distribute_tensor(torch.ones(5, 2), mesh, [Shard(0)]))


def test_a_shard_says_where_it_is() -> None:
    assert values(run_ranks(2, where_a_shard_is)) == [((0, 0), (3, 2)), ((3, 0), (2, 2))]


# ---------------------------------------------------------------- its TCPStore


@pytest.fixture
def rendezvous(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = importlib.import_module("torch.distributed.rendezvous")
    # Set once, so that what the function under test sets is undone with it.
    monkeypatch.setattr(module, "_create_c10d_store", module._create_c10d_store)
    return module


def test_torch_makes_its_stores_where_we_wait(rendezvous: Any) -> None:
    names = list(inspect.signature(rendezvous._create_c10d_store).parameters)
    assert names == ["hostname", "port", "rank", "world_size", "timeout", "use_libuv"]
    for handler in (rendezvous._env_rendezvous_handler, rendezvous._tcp_rendezvous_handler):
        assert "_create_c10d_store" in handler.__code__.co_names


def test_a_client_connects_only_once_its_store_listens(
    rendezvous: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    listening = threading.Event()
    connected: list[bool] = []

    def create(
        hostname: str, port: int, rank: int, world_size: int, timeout: timedelta, _: bool
    ) -> str:
        connected.append(listening.is_set())
        return "a store"

    monkeypatch.setattr(rendezvous, "_create_c10d_store", create)
    torch_tcp_store.host_where_reached()
    made: list[str] = []
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))  # the port is taken, and refuses
        port = server.getsockname()[1]
        client = threading.Thread(
            target=lambda: made.append(
                rendezvous._create_c10d_store("127.0.0.1", port, 1, 2, timedelta(seconds=20))
            )
        )
        client.start()
        client.join(0.1)
        assert not connected
        listening.set()
        server.listen()
        client.join(20)
    assert connected == [True]
    assert made == ["a store"]


@pytest.mark.parametrize("use_libuv", [True, False])
def test_a_tcp_store_is_greeted_as_its_own_clients_greet_it(use_libuv: bool) -> None:
    store = dist.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=use_libuv
    )
    assert torch_tcp_store.greet_store("127.0.0.1", store.port, 20.0)


def test_who_says_nothing_is_no_store_and_who_hangs_up_may_be_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(TimeoutError):
            torch_tcp_store.greet_store("127.0.0.1", port, 0.05)
        server.accept()[0].close()
        end = threading.Thread(target=lambda: server.accept()[0].close())
        end.start()
        assert not torch_tcp_store.greet_store("127.0.0.1", port, 20.0)
        end.join()


def test_a_client_is_made_of_a_store_that_answers_and_of_nothing_else() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = torch_tcp_store.connect_store("127.0.0.1", store.port, 20.0)
    client.set("key", "value")
    assert store.get("key") == b"value"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(TimeoutError):
            torch_tcp_store.connect_store("127.0.0.1", port, 0.05)
    with pytest.raises(ConnectionRefusedError):
        torch_tcp_store.connect_store("127.0.0.1", port, 20.0)


def test_a_store_that_never_listens_is_left_to_the_client_to_report() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        assert not torch_tcp_store.await_listener("127.0.0.1", server.getsockname()[1], 0.05)


def test_the_host_of_the_store_does_not_wait(
    rendezvous: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "_create_c10d_store", lambda *args, **options: "made")
    torch_tcp_store.host_where_reached()
    assert rendezvous._create_c10d_store("nowhere", 1, 0, 2, timedelta(seconds=1)) == "made"


@pytest.mark.parametrize("use_libuv", [True, False])
def test_the_store_is_hosted_at_its_address_only_and_shared_in_its_process(
    rendezvous: Any, *, use_libuv: bool
) -> None:
    torch_tcp_store.host_where_reached()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    made = [
        rendezvous._create_c10d_store(
            "127.0.0.1", port, 0, 1, timedelta(seconds=20), use_libuv=use_libuv
        )
        for _ in range(2)  # a script that makes its groups anew
    ]
    made[0].set("key", "value")
    assert made[1].get("key") == b"value"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=20)
