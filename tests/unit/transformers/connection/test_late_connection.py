"""Arguments connect no ranks; who goes on otherwise connects them with the trainer."""

from __future__ import annotations

import multiprocessing
from typing import TYPE_CHECKING, Any

import pytest
import torch.distributed as dist
from accelerate.state import PartialState
from transformers import Trainer

from elastic_runtime.errors import UsageError
from elastic_runtime.transformers import ElasticOptions, ElasticTrainer
from tests.etcd_server import free_port
from tests.unit.transformers.hf_trainers import Line, arguments, trainer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The environment of the second of two workers, of which the first one is not there."""
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    yield
    assert not dist.is_initialized()


def test_arguments_wait_for_nobody(tmp_path: Path, launched: None) -> None:
    args = arguments(tmp_path)
    assert (args.world_size, args.process_index, args.local_process_index) == (1, 1, 1)
    assert (args.device.type, args.n_gpu) == ("cpu", 0)
    assert not args.should_save


def test_an_elastic_trainer_waits_for_nobody(tmp_path: Path, launched: None) -> None:
    assert trainer(tmp_path).args.world_size == 1


def ranks(folder: Path, port: int, rank: int, found: Any, elastic: bool) -> None:
    """One of two processes that make a trainer."""
    import os

    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE="2",
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE="2",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        OMP_NUM_THREADS="1",
        GLOO_SOCKET_IFNAME="lo",
    )
    args = arguments(folder)
    before = args.world_size
    if elastic:
        made: Any = trainer(folder, ElasticOptions(in_place=False))
    else:
        made = Trainer(Line(), args)
    found.put((rank, before, made.args.world_size, made.accelerator.num_processes))
    made.accelerator.wait_for_everyone()
    dist.destroy_process_group()


@pytest.mark.slow("two processes that import all of it, for each")
@pytest.mark.parametrize("elastic", [False, True])
def test_who_does_not_go_on_in_place_connects_with_the_trainer(
    tmp_path: Path, elastic: bool
) -> None:
    # A plain Trainer works as it does without this package.
    spawn = multiprocessing.get_context("spawn")
    found, port = spawn.Queue(), free_port()
    both = [spawn.Process(target=ranks, args=(tmp_path, port, r, found, elastic)) for r in (0, 1)]
    for process in both:
        process.start()
    told = sorted(found.get(timeout=100) for _ in both)
    for process in both:
        process.join(150)
        assert process.exitcode == 0
    assert told == [(0, 1, 2, 2), (1, 1, 2, 2)]


def test_ranks_that_are_connected_already_are_refused_in_place(tmp_path: Path) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(UsageError, match="before TrainingArguments are made"):
            trainer(tmp_path)
    finally:
        dist.destroy_process_group()


def test_arguments_that_were_made_before_are_refused(tmp_path: Path) -> None:
    args = arguments(tmp_path)
    vars(args).pop("_elastic_connects_late")
    with pytest.raises(UsageError, match="before TrainingArguments are made"):
        ElasticTrainer(Line(), args)


def test_one_goes_first_and_may_ask_again(tmp_path: Path, launched: None) -> None:
    args = arguments(tmp_path)
    with args.main_process_first(), PartialState().main_process_first():
        order = ["inside"]
    with PartialState().local_main_process_first():
        order.append("again")
    assert order == ["inside", "again"]
