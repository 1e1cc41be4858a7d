"""What a worker finds in its environment."""

from __future__ import annotations

import pytest

from elastic_runtime.agent.workers.worker_environment import worker_environment
from elastic_runtime.config import SCRIPT, Endpoint, Entry, JobConfig
from elastic_runtime.protocol.round_records import Member, RoundRecord


@pytest.mark.parametrize(
    ("address", "interface"), [("127.0.0.1", "lo"), ("::1", "lo"), ("192.0.2.1", None)]
)
def test_gloo_stays_on_the_loopback_where_one_machine_is_enough(
    address: str, interface: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    config = JobConfig(Entry("script", "x.py"), Endpoint("etcd", ("h:1",)), "run")
    last = RoundRecord(1, "life", (Member("a", "a", address, 1),), 1, "first")
    places = {"error_file": "", "progress_file": "", "channel": ""}
    made = worker_environment(config, last, 0, 0, **places)
    assert made.get("GLOO_SOCKET_IFNAME") == interface
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")  # the user's word
    assert worker_environment(config, last, 0, 0, **places)["GLOO_SOCKET_IFNAME"] == "ib0"


def test_the_signals_of_the_launcher() -> None:
    entry, endpoint = Entry(SCRIPT, "train.py"), Endpoint("c10d", ("127.0.0.1:1",))
    config = JobConfig(entry, endpoint, "run", signals=("SIGTERM", "SIGUSR1"))
    last = RoundRecord(1, "life", (Member("uuid", "node", "127.0.0.1", 1),), 20000, "first")
    found = worker_environment(config, last, 0, 0, error_file="e", progress_file="p", channel="c")
    assert found["TORCHELASTIC_SIGNALS_TO_HANDLE"] == "SIGTERM,SIGUSR1"  # as torchrun has it
