"""A fork server that is started before its agent."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.agent.launch import run_agent
from elastic_runtime.agent.lifecycle.lifecycle_types import ForkServerReady
from elastic_runtime.agent.workers import fork_client
from elastic_runtime.agent.workers.fork_client import EarlyForkServer
from elastic_runtime.agent.workers.worker_processes import WorkerProcesses
from elastic_runtime.config import SCRIPT, Endpoint, Entry, JobConfig, Output
from elastic_runtime.errors import UsageError
from tests.processes import state

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = JobConfig(Entry(SCRIPT, "train.py"), Endpoint("c10d", ("127.0.0.1:1",)), "r", cold=True)


def test_what_nobody_takes_is_ended() -> None:
    with EarlyForkServer(CONFIG) as early:
        assert early._server is not None
        pid = early._server.process.pid
        assert state(pid)
    assert not state(pid)
    assert early.take() is None


def test_what_is_taken_is_left_alone() -> None:
    with EarlyForkServer(CONFIG) as early:
        server = early.take()
    assert server is not None
    assert server.process.poll() is None
    server.collect(0.0)


def test_the_workers_take_the_server_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with EarlyForkServer(CONFIG) as early:
        monkeypatch.delattr(fork_client, "start")  # no other one

        def heard(event: object) -> None:
            os.write(writing, b"!" if isinstance(event, ForkServerReady) else b"?")

        workers = WorkerProcesses(CONFIG, heard, early=early)
        try:
            workers.start_server()
            assert os.read(reading, 1) == b"!"
        finally:
            workers.close()
    os.close(reading)
    os.close(writing)


def test_an_error_before_the_agent_lives_leaves_no_server(tmp_path: Path) -> None:
    (tmp_path / "logs").touch()
    config = CONFIG.with_(output=Output(log_dir=str(tmp_path / "logs")))
    with EarlyForkServer(config) as early:
        assert early._server is not None
        pid = early._server.process.pid
        with pytest.raises(UsageError, match="--log-dir"):
            run_agent(config, lambda name, **fields: None, early)
        assert not state(pid)


def test_workers_do_not_inherit_the_password_of_the_store() -> None:
    config = JobConfig(Entry(SCRIPT, "x.py"), Endpoint("etcd", ("h:1",)), "run")
    env = {"ELASTIC_ETCD_PASSWORD": "5ec4e7", "HOME": "/root"}
    assert fork_client.environment_without_secrets(config, env) == {"HOME": "/root"}
