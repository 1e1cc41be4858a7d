"""How torch's TCPStore is hosted and reached, checked against the torch that is installed."""

from __future__ import annotations

import importlib
import inspect
import socket
import threading
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

from elastic_runtime.system import torch_tcp_store


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
