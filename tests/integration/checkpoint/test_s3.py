"""Checkpoints in S3: against a server that speaks its protocol, from several processes."""

from __future__ import annotations

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import s3fs
import torch
import torch.distributed as dist
from torch import nn

from elastic_runtime import State
from elastic_runtime.checkpoint.format.manifest import CheckpointId
from elastic_runtime.checkpoint.storage.open_storage import open_storage
from elastic_runtime.checkpoint.storage.remote_storage import RemoteStorage
from elastic_runtime.cli.ctl.elasticctl import main as elasticctl
from elastic_runtime.errors import CheckpointError, DamagedCheckpoint
from tests.processes import Launcher
from tests.ranks import run_ranks, values
from tests.s3_server import client_environ, s3_server
from tests.small_checkpoints import FILE, HOLDER, put
from tests.strangers import unused
from tests.trained import trained

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

MIB = 1 << 20


@pytest.fixture(scope="module")
def server() -> Iterator[Mapping[str, str]]:
    with s3_server() as variables:
        yield variables


@pytest.fixture
def s3(server: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[s3fs.S3FileSystem]:
    for name, value in server.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    yield s3fs.S3FileSystem()
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def url(s3: s3fs.S3FileSystem, request: pytest.FixtureRequest) -> str:
    """A place in a bucket of this test's own."""
    bucket = request.node.name.replace("_", "-")[:60].strip("-")
    s3.mkdir(bucket)
    return f"s3://{bucket}/runs/digits"


@pytest.mark.parametrize("path", ["", "/run", "/runs/digits"])
def test_a_missing_bucket_is_named_and_not_made(s3: s3fs.S3FileSystem, path: str) -> None:
    storage = open_storage(f"s3://nobody-made-this{path}")
    assert storage.names() == []
    with pytest.raises(CheckpointError, match=f"s3://nobody-made-this{path}: .*make the bucket"):
        storage.prepare()
    assert "nobody-made-this" not in s3.ls("")


def test_a_term_is_given_to_one_of_many(url: str) -> None:
    storages = [open_storage(url) for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        terms = list(pool.map(lambda storage: storage.take_term(HOLDER), storages))
    assert len(set(terms)) == 6
    storages[terms.index(max(terms))].check_term(max(terms))
    with pytest.raises(CheckpointError, match=r"run r1, round 2, here"):
        storages[terms.index(min(terms))].check_term(min(terms))


def test_a_large_file_goes_up_in_parts_and_comes_down_in_ranges(
    url: str, s3: s3fs.S3FileSystem
) -> None:
    storage, which = open_storage(url), CheckpointId(1, 1)
    content = memoryview(os.urandom(40 * MIB + 7))
    storage.create(which)
    with storage.writer(which, FILE, content.nbytes) as out:
        out.write([content[:100], content[100 : 25 * MIB]])
        assert storage.sizes(which) == {}, "nothing is there before all of it is"
        out.write([content[25 * MIB :]])
    assert "-" in s3.info(f"{url}/{which.name}/{FILE}")["ETag"], "in parts"
    buffers = [memoryview(bytearray(size)) for size in (5 * MIB + 3, 0, 20 * MIB)]
    with storage.reader(which, FILE) as reader:
        reader.readinto(11, buffers)
        assert b"".join(buffers) == content[11 : 11 + 25 * MIB + 3]
        with pytest.raises(DamagedCheckpoint, match=f"ends at byte {content.nbytes}"):
            reader.readinto(30 * MIB, buffers)


def test_an_upload_that_fails_leaves_nothing_to_be_paid_for(
    url: str, s3: s3fs.S3FileSystem
) -> None:
    storage, which = open_storage(url), CheckpointId(1, 1)
    storage.create(which)
    with pytest.raises(ZeroDivisionError), storage.writer(which, FILE, 40 * MIB) as out:
        out.write([memoryview(bytes(40 * MIB))])
        raise ZeroDivisionError
    assert storage.names() == []
    assert s3.list_multipart_uploads(url.removeprefix("s3://").partition("/")[0]) == []


# With a State


def train(url: str, steps: int, keep: int | None) -> tuple[int, list[float]]:
    """A few steps; each adds one to all numbers of the model."""
    model = nn.ParameterList([torch.zeros(11, 3) for _ in range(5)])
    if dist.is_initialized():
        dist.barrier()
    state = State(model=model)
    state.checkpoints(url, every=1, keep=keep)
    with trained(state):
        found = state.step
        for _ in range(steps):
            with torch.no_grad():
                for parameter in model:
                    parameter += 1
            state.commit()
    return found, [float(parameter.sum()) for parameter in model]


def test_a_job_saves_to_s3_and_resumes_in_another_world(url: str) -> None:
    assert values(run_ranks(2, train, url, 3, 2)) == [(0, [99.0] * 5)] * 2
    assert values(run_ranks(1, train, url, 1, 2)) == [(3, [132.0] * 5)]
    names = sorted(open_storage(url).names())
    assert names == ["step-3.term-1", "step-4.term-2", "term-2"]


def test_damage_in_s3_is_found_and_the_older_one_is_taken(url: str, s3: s3fs.S3FileSystem) -> None:
    assert values(run_ranks(1, train, url, 2, None)) == [(0, [66.0] * 5)]
    path = f"{url}/step-2.term-1/{FILE}"
    content = bytearray(s3.cat_file(path))
    content[len(content) // 2] ^= 1
    s3.pipe_file(path, bytes(content))
    assert values(run_ranks(1, train, url, 0, None)) == [(1, [33.0] * 5)]


_SAVES = """
import sys, torch
import elastic_runtime as elastic
model = torch.nn.Linear(1, 1)
state = elastic.State(model=model)
state.checkpoints(sys.argv[1])
elastic.run(lambda world: state.commit(), state, in_place=False)
print("saved step", elastic.load(sys.argv[1], elastic.State(model=model)))
"""


def test_a_job_waits_for_a_store_that_comes_late_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_SAVES)
    port, url = unused(), "s3://late/run"
    environ = client_environ(f"http://127.0.0.1:{port}")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Launcher(tmp_path) as launch:
        job = launch("--log-format", "json", "train.py", url, environ=environ, text=True, **pipes)
        assert job.stderr is not None
        line = next(line for line in job.stderr if "checkpoint.unreachable" in line)
        assert json.loads(line)["path"] == url
        with s3_server(port, ["late"]):
            said, events = job.communicate(timeout=100)
    assert job.returncode == 0, events
    assert "saved step 1" in said


def test_elasticctl_looks_into_a_bucket(
    url: str, s3: s3fs.S3FileSystem, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = open_storage(url)
    assert isinstance(storage, RemoteStorage)
    for step in (10, 20, 30):
        put(storage, step)
    s3.pipe_file(f"{url}/step-30.term-1/{FILE}", b"state 0f 30")
    assert elasticctl(["checkpoint", "verify", url, "--format", "json"]) == 1
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert report["resume"] == {"step": 20, "term": 1}
    assert f"{url}/step-30.term-1/{FILE}" in report["checkpoints"][0]["problem"]
    assert elasticctl(["checkpoint", "prune", url, "--keep", "1"]) == 0
    assert sorted(storage.names()) == ["step-20.term-1", "step-30.term-1"]
    assert elasticctl(["checkpoint", "list", "s3://nobody-made-this/run"]) == 2
    assert "no bucket 'nobody-made-this'" in capsys.readouterr().err
    assert elasticctl(["checkpoint", "list", f"{url}-of-another-run"]) == 2
    assert "there is nothing in s3://" in capsys.readouterr().err
