"""torch's part of an agent: what it records of the workers, and what ``run`` returns."""

from __future__ import annotations

from typing import Any

import pytest
from torch.distributed.elastic.agent.server.api import RunResult, WorkerSpec, WorkerState
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from elastic_runtime.agent.lifecycle.lifecycle_types import Finish
from elastic_runtime.agent.run_name import RunName
from elastic_runtime.agent.torch_agent import TorchAgent
from elastic_runtime.protocol.records import OutcomeRecord
from tests.unit.agent.jobs import ROUND

ENDED = OutcomeRecord("x.1", succeeded=True, exit_code=0, reason="done")


class Agent:
    """torch's agent, with a loop and an end that are noted."""

    def __init__(self, loop: Any = lambda: RunResult(WorkerState.SUCCEEDED)) -> None:
        self.closed = 0
        spec = WorkerSpec(
            role="trainer", local_world_size=2, rdzv_handler=RunName("etcd", "run"), entrypoint="x"
        )
        self.torch = TorchAgent(spec, loop, self._close)

    def _close(self) -> None:
        self.closed += 1


def test_a_group_has_the_ranks_of_this_nodes_workers_in_their_order() -> None:
    torch = Agent().torch
    torch.form_group(ROUND, 1, (2, 0))
    torch.name_workers()
    group = torch.get_worker_group()
    assert (group.group_rank, group.group_world_size) == (1, 2)
    assert (group.master_addr, group.master_port) == ("h1", 4000)
    assert [(w.local_rank, w.global_rank, w.world_size, w.id) for w in group.workers] == [
        (2, 2, 5, 2),
        (0, 3, 5, 3),
    ]
    assert group.state is WorkerState.HEALTHY


def test_a_job_that_is_done_returns_the_values_by_global_rank() -> None:
    torch = Agent().torch
    torch.form_group(ROUND, 1, range(2))
    result = torch.result(Finish(0, outcome=ENDED), {}, lambda local_rank: f"of {local_rank}")
    assert result.state is WorkerState.SUCCEEDED
    assert result.return_values == {2: "of 0", 3: "of 1"}


@pytest.mark.parametrize(
    "outcome", [None, OutcomeRecord("x.1", succeeded=False, exit_code=1, reason="it failed")]
)
def test_any_other_end_returns_the_failures(outcome: OutcomeRecord | None) -> None:
    torch = Agent().torch
    torch.form_group(ROUND, 0, range(2))
    failures = {1: ProcessFailure(1, 77, 1, "")}
    result = torch.result(Finish(1, outcome=outcome), failures, lambda local_rank: None)
    assert result.state is WorkerState.FAILED
    assert result.failures == failures
    assert not result.return_values


def test_run_runs_our_loop_and_ends_with_our_end() -> None:
    results = iter([RunResult(WorkerState.SUCCEEDED, return_values={0: "a", 1: "b"})])
    agent = Agent(results.__next__)
    agent.torch.form_group(ROUND, 0, range(2))
    agent.torch.name_workers()  # or torch does not know whose ends it records
    assert agent.torch.run().return_values == {0: "a", 1: "b"}
    assert agent.closed


def test_run_ends_with_our_end_also_after_an_error() -> None:
    def loop() -> RunResult:
        raise KeyError("broken")

    agent = Agent(loop)
    with pytest.raises(KeyError):
        agent.torch.run()
    assert agent.closed


def test_torch_gets_a_rendezvous_that_has_names_and_never_makes_a_round() -> None:
    name = RunName("etcd", "run")
    assert (name.get_backend(), name.get_run_id()) == ("etcd", "run")
    assert not name.is_closed() and name.num_nodes_waiting() == 0
    with pytest.raises(RuntimeError, match="rounds come from the participant"):
        name.next_rendezvous()
