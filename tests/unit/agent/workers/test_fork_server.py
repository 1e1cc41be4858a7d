"""The fork server: its frames, its start before the agent, refused starts, and what it imports."""

from __future__ import annotations

import errno
import gc
import inspect
import os
import socket
import sys
import threading
from typing import TYPE_CHECKING

import pytest
import torch
from torch.numa import binding

from elastic_runtime.agent.launch import run_agent
from elastic_runtime.agent.lifecycle.lifecycle_types import ForkServerReady
from elastic_runtime.agent.workers import fork_client, preload
from elastic_runtime.agent.workers.fork_client import EarlyForkServer
from elastic_runtime.agent.workers.fork_server import receive, send
from elastic_runtime.agent.workers.start_retry import cause, lacks_resources, next_retry, remedy
from elastic_runtime.agent.workers.worker_processes import WorkerProcesses
from elastic_runtime.config import Endpoint, Output
from elastic_runtime.errors import UsageError
from elastic_runtime.limits import START_RETRY_TIMEOUT
from elastic_runtime.system import torch_private
from tests.processes import state
from tests.unit.agent.jobs import job

if TYPE_CHECKING:
    from pathlib import Path


def test_a_frame_and_its_descriptors() -> None:
    one, other = socket.socketpair()
    with one, other:
        reading, writing = os.pipe()
        body = {"op": "start", "env": {"PATH": "\udcff\u00e9", "N": "\n"}, "args": ["", "x y"]}
        send(one, body, [writing])
        send(one, {"op": "next"})
        os.close(writing)
        received = receive(other)
        assert received is not None
        frame, (descriptor,) = received
        assert frame == body
        os.write(descriptor, b"through")
        os.close(descriptor)
        assert os.read(reading, 100) == b"through"
        os.close(reading)
        assert receive(other) == ({"op": "next"}, [])


def test_a_frame_larger_than_the_sockets_buffer() -> None:
    one, other = socket.socketpair()
    with one, other:
        body = {"env": {str(number): "x" * 1000 for number in range(2000)}}
        sender = threading.Thread(target=send, args=(one, body))
        sender.start()
        received = receive(other)
        sender.join()
        assert received == (body, [])


def test_the_other_end_is_gone() -> None:
    for sent in (b"", b"\0\0", b"\0\0\0\x10", b"\0\0\0\x10{}"):
        one, other = socket.socketpair()
        with other:
            one.sendall(sent)
            one.close()
            assert receive(other) is None


# A fork server that is started before its agent


CONFIG = job(node_name="", cold=True)


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
    config = job(endpoint=Endpoint("etcd", ("h:1",)))
    env = {"ELASTIC_ETCD_PASSWORD": "5ec4e7", "HOME": "/root"}
    assert fork_client.environment_without_secrets(config, env) == {"HOME": "/root"}


# When a start that the machine has refused is tried again


def test_pauses_grow_and_come_to_an_end() -> None:
    retry, now, pauses = next_retry(None, 100.0), 100.0, []
    while retry is not None:
        pauses.append(round(retry.again - now, 6))
        assert retry.refusals == len(pauses)
        now = retry.again
        retry = next_retry(retry, now)
        assert len(pauses) < 100
    assert pauses == sorted(pauses)
    assert pauses[0] < 1.0 < pauses[-1]
    assert START_RETRY_TIMEOUT <= now - 100.0 <= START_RETRY_TIMEOUT + pauses[-1]


def test_a_first_refusal_is_followed_by_another_try(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_runtime.agent.workers.start_retry.START_RETRY_TIMEOUT", 0.0)
    first = next_retry(None, 100.0)
    assert first is not None
    assert next_retry(first, first.again) is None


def test_what_the_machine_lacks_is_told_from_what_the_user_did_wrong() -> None:
    for number in (errno.EAGAIN, errno.ENOMEM, errno.ENOSPC, errno.EMFILE, errno.ENFILE):
        assert lacks_resources(number)
        assert cause(number)
        assert remedy(number)
    for number in (errno.ENOENT, errno.EACCES, errno.ENOEXEC, 0, None):
        assert not lacks_resources(number)


# What the fork server leans on in torch: these fail when torch changes it


@pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="this torch has no CUDA")
def test_the_question_for_a_lost_cuda_exists() -> None:
    assert torch._C._cuda_isInBadFork() is torch_private.cuda_is_lost() is False


@pytest.mark.parametrize("mode", ["node", "socket", "exclusive", "core-complex"])
def test_processors_of_a_gpu(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    # The answer needs a GPU; that the question is put as torch wants it does not.
    given = {}

    def answer(**arguments: object) -> set[int]:
        given.update(arguments)
        return {3, 1}

    real = inspect.signature(binding._get_logical_cpus_to_bind_to)
    monkeypatch.setattr(binding, "_get_logical_cpus_to_bind_to", answer)
    assert torch_private.numa_cpus(2, mode) == [1, 3]
    real.bind(**given)
    assert given == {
        "gpu_index": 2,
        "numa_options": binding.NumaOptions(binding.AffinityMode(mode)),
    }


# What is imported ahead, and what must not be


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def found(root: Path, script: str = "train.py") -> list[str]:
    return list(preload.imports_of(root / script, root))


def test_installed_modules_at_the_top(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "train.py": "import numpy as np, json\n"
            "from sklearn import datasets, nothing_of_this_name\n"
            "from concurrent.futures import ThreadPoolExecutor\n"
            "import no_such_distribution\n"
            "def main():\n    import pickle\n"
            "if __name__ == '__main__':\n    import csv\n"
        },
    )
    assert found(tmp_path) == ["numpy", "json", "sklearn", "sklearn.datasets", "concurrent.futures"]


def test_own_modules_are_read_but_not_imported(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "train.py": "import model\nfrom package import part\nfrom package.deep import thing\n",
            "model.py": "import numpy\nimport train\nraise SystemExit\n",
            "package/__init__.py": "",
            "package/part.py": "from . import sibling\nfrom .deep import thing\n",
            "package/sibling.py": "import json\n",
            "package/deep/__init__.py": "from ..other import x\n",
            "package/other.py": "import pickle\n",
        },
    )
    assert sorted(found(tmp_path)) == ["json", "numpy", "pickle"]
    assert "model" not in sys.modules


def test_own_modules_hide_installed_ones(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": "import numpy\n", "numpy.py": "import json\n"})
    assert found(tmp_path) == ["json"]


@pytest.mark.parametrize(
    "text", ["def f(:", "\0", "import " + "(" * 5000, "# -*- coding: none -*-"]
)
def test_what_cannot_be_parsed_is_left_to_the_worker(tmp_path: Path, text: str) -> None:
    write(tmp_path, {"train.py": text})
    assert found(tmp_path) == []


def test_what_a_package_imports_when_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As transformers: its parts are imported with the first name that is taken of them.
    package = tmp_path / "site" / "lazy_of_this_test"
    asked = (
        "from importlib import import_module\n"
        "def __getattr__(name):\n    return import_module('lazy_of_this_test.heavy')\n"
    )
    write(package, {"__init__.py": asked, "heavy.py": ""})
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setattr(preload, "_places", lambda: [str(package.parent)])
    monkeypatch.setattr(preload, "ALWAYS", ())
    monkeypatch.setattr(preload, "_canary", lambda: "")
    monkeypatch.setattr(gc, "freeze", lambda: None)
    write(tmp_path, {"train.py": "from lazy_of_this_test import Trainer, nothing\n"})
    done = preload.preload(str(tmp_path / "train.py"), str(tmp_path), ())
    assert done.modules == ("lazy_of_this_test",)
    assert "lazy_of_this_test.heavy" in sys.modules


def test_adapters_are_imported_as_a_whole(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": "from elastic_runtime.transformers import ElasticTrainer\n"})
    assert "elastic_runtime.transformers" in found(tmp_path)
    write(tmp_path, {"train.py": "import elastic_runtime as elastic\n"})
    assert "elastic_runtime.transformers" not in found(tmp_path)


def test_what_does_not_survive_a_fork_is_not_imported(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": "import grpc\nfrom grpc import aio\nimport json\n"})
    assert found(tmp_path) == ["json"]


def test_our_own_worker_parts_and_never_the_agent(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": "import elastic_runtime as elastic\n"})
    names = found(tmp_path)
    assert "elastic_runtime.checkpoint.checkpointer" in names
    assert not [name for name in names if ".agent" in name or ".rendezvous" in name]


def test_a_module_is_found_without_importing_its_package(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "pack/__init__.py": "raise SystemExit",
            "pack/__main__.py": "",
            "pack/train.py": "",
            "single.py": "",
        },
    )
    assert preload.source_of("pack.train", tmp_path) == tmp_path / "pack" / "train.py"
    assert preload.source_of("pack", tmp_path) == tmp_path / "pack" / "__main__.py"
    assert preload.source_of("single", tmp_path) == tmp_path / "single.py"
    assert preload.source_of("pack.none", tmp_path) is None
    assert preload.source_of("single.none", tmp_path) is None
    assert preload.source_of("no_such_module", tmp_path) is None


def test_a_neighbour_that_a_fork_would_not_find(tmp_path: Path) -> None:
    write(tmp_path, {"json.py": "", "data.py": "", "torch/__init__.py": "", "numpy/notes.txt": ""})
    loaded = ["json", "torch.nn", "numpy", "__main__"]
    assert preload.shadows(tmp_path, loaded) == {"json.py", "torch"}
    assert preload.shadows(tmp_path / "nowhere", loaded) == set()


def test_what_is_installed() -> None:
    assert preload.is_installed("numpy.linalg")
    assert preload.is_installed("os")
    assert not preload.is_installed("tests")
    assert not preload.is_installed("no_such_distribution")


def test_nothing_is_collected_during_the_imports_and_again_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "watches_the_collector.py").write_text("import gc\nWAS_ON = gc.isenabled()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(preload, "ALWAYS", ())
    for question in ("_unfit", "_canary"):
        monkeypatch.setattr(preload, question, lambda *_: "")
    done = preload.preload("", str(tmp_path), ("watches_the_collector", "no_such_module"))
    gc.unfreeze()
    assert done.modules == ("watches_the_collector",)
    assert sys.modules.pop("watches_the_collector").WAS_ON is False
    assert gc.isenabled()
