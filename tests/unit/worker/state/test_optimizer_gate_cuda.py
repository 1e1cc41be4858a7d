"""The same order on a real GPU, and on two with NCCL; skipped where there are none."""

from __future__ import annotations

import multiprocessing
import os
import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from elastic_runtime.errors import UsageError
from elastic_runtime.system import torch_private
from elastic_runtime.worker.recovery.error_classification import WorldChanged
from elastic_runtime.worker.recovery.recovery_source import MemoryCondition
from elastic_runtime.worker.state.optimizer_gate import OptimizerGate
from elastic_runtime.worker.state.training_state import State
from tests.etcd_server import free_port
from tests.unit.worker.state.small_job import begun

_GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
_CYCLES = 1_000_000_000  # of the GPU's clock: about half a second


def _job() -> tuple[nn.Module, torch.optim.Optimizer, State]:
    model = nn.Linear(4, 4, bias=False).cuda()
    optim = torch.optim.SGD(model.parameters(), lr=1.0)
    return model, optim, begun(State(model=model, optim=optim))


@pytest.mark.skipif(_GPUS < 1, reason="needs a GPU")
def test_the_optimizer_waits_until_the_gradients_are_there() -> None:
    model, optim, state = _job()
    looked = []
    ended = torch.cuda.Event()

    def check() -> None:
        looked.append(ended.query())
        raise WorldChanged("interrupted while the host waited")

    state._gate = OptimizerGate(check)
    before = model.weight.detach().clone()
    model.weight.grad = torch.ones_like(model.weight)
    torch.cuda._sleep(_CYCLES)  # stands for a collective whose peer is late
    ended.record()
    with pytest.raises(WorldChanged):
        optim.step()
    assert looked == [True]
    torch.cuda.synchronize()
    assert torch.equal(model.weight, before)
    assert state.rank_status().condition is MemoryCondition.CLEAN


@pytest.mark.skipif(_GPUS < 1, reason="needs a GPU")
def test_an_optimizer_is_not_captured_after_its_warm_up() -> None:
    model, optim, _ = _job()
    model.weight.grad = torch.ones_like(model.weight)
    optim.step()
    with pytest.raises(UsageError, match="CUDA graph"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        optim.step()


@pytest.mark.skipif(_GPUS < 2, reason="needs two GPUs")
def test_nobody_commits_what_an_aborted_collective_has_left() -> None:
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    port = free_port()
    ranks = [context.Process(target=_rank, args=(rank, port, answers)) for rank in range(2)]
    for process in ranks:
        process.start()
    try:
        ranks[0].join(120)
        assert ranks[0].exitcode == 0
        raised, same, condition, counted = answers.get()
        assert (raised, same, condition) == (True, True, MemoryCondition.CLEAN.name)
        assert counted == 1
    finally:
        for process in ranks:
            process.kill()
            process.join()


def _rank(rank: int, port: int, answers: Any) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.cuda.set_device(rank)
    dist.init_process_group("cpu:gloo,cuda:nccl", rank=rank, world_size=2)
    model, optim, state = _job()
    interrupted = threading.Event()

    def check() -> None:
        if interrupted.is_set():
            raise WorldChanged

    state._gate = OptimizerGate(check)
    before = torch_private.nccl_collectives() or 0
    dist.all_reduce(torch.ones(1, device="cuda"))
    torch.cuda.synchronize()
    counted = (torch_private.nccl_collectives() or 0) - before
    if rank == 1:
        threading.Event().wait()  # never comes to the next collective

    def interrupt() -> None:
        interrupted.set()
        torch_private.abort_nccl()

    weight = model.weight.detach().clone()
    model.weight.grad = torch.ones_like(model.weight)
    dist.all_reduce(model.weight.grad)
    threading.Timer(1.0, interrupt).start()
    raised = False
    try:
        optim.step()
    except WorldChanged:
        raised = True
    same = bool(torch.equal(model.weight, weight))
    answers.put((raised, same, state.rank_status().condition.name, counted))
    os._exit(0)
