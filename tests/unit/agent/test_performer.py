"""What an agent's actions do to its workers, its part in the rendezvous, people, and torch."""

from __future__ import annotations

import signal
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from torch.distributed.elastic.agent.server.api import RunResult, WorkerSpec, WorkerState
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from elastic_runtime.agent.lifecycle import lifecycle_types as actions
from elastic_runtime.agent.lifecycle.lifecycle_state import (
    AgentState,
    LifecycleSettings,
    RoundFacts,
    Step,
)
from elastic_runtime.agent.lifecycle.lifecycle_types import Finish
from elastic_runtime.agent.performer import AgentParts, Performer
from elastic_runtime.agent.run_name import RunName
from elastic_runtime.agent.torch_agent import TorchAgent
from elastic_runtime.errors import EXIT_LEFT
from elastic_runtime.events.worker_events import WorkerStuck
from elastic_runtime.limits import GOODBYE_TIMEOUT
from elastic_runtime.protocol.messages import Ask, Interrupt
from elastic_runtime.protocol.records import FAILED, FaultReport, OutcomeRecord
from elastic_runtime.rendezvous.core.membership_events import (
    Done,
    Goodbye,
    Join,
    LeftRound,
    WorkersAvailable,
)
from tests.unit.agent.jobs import ROUND, job

FAULT = FaultReport(3, FAILED, "it failed", step=4)


class Recorder:
    """Stands for a part of an agent: notes each call, in one list for all parts."""

    def __init__(self, name: str, calls: list[tuple[Any, ...]], **known: Any) -> None:
        self._name, self._calls = name, calls
        vars(self).update(known)

    def __getattr__(self, method: str) -> Any:
        return lambda *args, **named: self._calls.append(
            (self._name, method, *args, *named.items())
        )


class Agent:
    """A performer whose parts only note what is asked of them."""

    def __init__(self, *, step: int = 9, port: int = 5000, accompanied: bool = True) -> None:
        self.calls: list[tuple[Any, ...]] = []
        workers = Recorder(
            "workers",
            self.calls,
            step=lambda: step,
            reserve_port=lambda: port,
            rank_of=lambda local_rank: 10 + local_rank,
        )
        participant = Recorder(
            "participant",
            self.calls,
            node="a",
            secret="s",
            accompanied=accompanied,
            state=SimpleNamespace(round_record=ROUND),
        )
        names = ("reporter", "snapshots", "torch", "importing")
        parts: Any = (workers, participant, *(Recorder(name, self.calls) for name in names))
        self.performer = Performer(job(workers=2), "h", AgentParts(*parts))
        self.state = AgentState(LifecycleSettings(2))

    def perform(self, *acts: Any, **state: Any) -> list[tuple[Any, ...]]:
        """Performs actions; the calls that they came to."""
        self.performer.perform(Step(replace(self.state, **state), acts))
        return self.calls

    def said(self, event: Any) -> Any:
        """The event that reached the rendezvous for one of the lifecycle's."""
        self.perform(actions.TellRendezvous(event))
        (said,) = [args[0] for part, method, *args in self.calls if (part, method) == SAY]
        return said


SAY = ("participant", "say")
FORMED = [("snapshots", "admit", "s"), ("torch", "form_group", ROUND, 1, range(2))]


ON_WORKERS: list[tuple[Any, list[tuple[Any, ...]]]] = [
    (actions.StartForkServer(), [("importing", "begin"), ("workers", "start_server")]),
    (
        actions.StartWorkers(ROUND, 1),
        [*FORMED, ("workers", "start", ROUND, 1), ("torch", "name_workers")],
    ),
    (actions.StartForNextRound((1,)), [("workers", "start_some", ROUND, 0, (1,))]),
    (
        actions.EnterRound(ROUND, 1, (1, 0)),
        [
            FORMED[0],
            ("torch", "form_group", ROUND, 1, (1, 0)),
            ("workers", "enter", ROUND, 1, (1, 0)),
        ],
    ),
    (actions.TellWorkers(Ask(), (1,)), [("workers", "tell", Ask(), (1,))]),
    (
        actions.StopWorkers(5.0, (1,), signal.SIGUSR1),
        [("reporter", "interrupted"), ("workers", "stop", 5.0, (1,), signal.SIGUSR1)],
    ),
    (actions.ForwardSignal(10), [("workers", "forward_signal", 10)]),
    (actions.KillWorkers((0,), "hung"), [("workers", "kill", (0,), "hung")]),
    (actions.HostStore(7), [("workers", "host_store", 7)]),
]


@pytest.mark.parametrize(("action", "calls"), ON_WORKERS, ids=lambda value: type(value).__name__)
def test_each_action_on_workers_reaches_them(action: Any, calls: list[tuple[Any, ...]]) -> None:
    assert Agent().perform(action) == calls


def test_actions_are_performed_in_order_and_every_one_is_known() -> None:
    more = [
        actions.TellRendezvous(Join()),
        actions.SetAlarm(1.0),
        actions.Finish(0),
        actions.TellPeople(WorkerStuck("it hung")),
    ]
    made = [action for action, _ in ON_WORKERS] + more
    assert {type(action) for action in made} == set(get_args(actions.Action))
    one_by_one = [call for action in made for call in Agent().perform(action)]
    assert Agent().perform(*made) == one_by_one


def test_an_order_to_leave_the_round_begins_a_recovery() -> None:
    order = Interrupt(3, "why")
    calls = Agent().perform(actions.TellWorkers(order))
    assert calls == [("reporter", "interrupted", ("ordered", True)), ("workers", "tell", order, ())]


def test_an_alarm_and_the_end_are_kept_for_the_loop() -> None:
    agent = Agent()
    assert agent.performer.alarm == float("inf")
    assert agent.perform(actions.SetAlarm(12.0), actions.Finish(4, "no store")) == []
    assert agent.performer.alarm == 12.0
    assert agent.performer.finish == actions.Finish(4, "no store")


@pytest.mark.parametrize("event", [Join(), WorkersAvailable(2), LeftRound(3, FAULT)])
def test_the_rendezvous_hears_where_a_store_would_be_hosted(event: Any) -> None:
    assert Agent(port=5001).said(event).store_port == 5001


def test_the_rendezvous_hears_how_far_this_nodes_workers_were() -> None:
    assert Agent(step=9).said(Done(3)).step == 9
    agent = Agent(step=9)
    assert agent.said(LeftRound(3, FAULT)).fault.step == 9
    assert ("reporter", "left", 9) in agent.calls
    assert Agent(step=-1).said(LeftRound(3, FAULT)).fault.step == 4, "the worker has reported it"


def test_a_node_that_leaves_waits_until_the_store_knows() -> None:
    calls = Agent().perform(actions.TellRendezvous(Goodbye()))
    assert calls == [(*SAY, Goodbye()), ("participant", "wait_for_goodbye", GOODBYE_TIMEOUT)]


def test_people_read_global_ranks() -> None:
    calls = Agent().perform(actions.TellPeople(WorkerStuck("it hung", local_ranks=(0, 1))))
    assert calls == [("reporter", "tell", WorkerStuck("it hung", (0, 1), ranks=[10, 11]))]


@pytest.mark.parametrize(
    ("left_at_step", "step", "accompanied", "message"),
    [
        (False, 9, False, "a has left"),
        (True, 0, False, "a has left; step 0 is saved"),
        (True, 9, True, "a has left; step 9 is saved; other nodes may continue"),
    ],
)
def test_a_node_that_has_left_says_what_is_saved(
    left_at_step: bool, step: int, accompanied: bool, message: str
) -> None:
    agent = Agent(step=step, accompanied=accompanied)
    facts = RoundFacts(left_at_step=left_at_step)
    agent.perform(actions.Finish(EXIT_LEFT, "has left"), facts=facts)
    assert agent.performer.finish == actions.Finish(EXIT_LEFT, message)


def _order(calls: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    wanted = {SAY, ("reporter", "tell"), ("participant", "wait_for_goodbye")}
    return [call[:2] for call in calls if call[:2] in wanted]


def test_people_are_told_after_what_others_wait_for() -> None:
    """And the goodbye, which may take long, after that."""
    told, left = actions.TellPeople(WorkerStuck("it hung")), LeftRound(3, FAULT)
    leaves, goes = actions.TellRendezvous(left), actions.TellRendezvous(Goodbye())
    assert _order(Agent().perform(told, leaves)) == [SAY, ("reporter", "tell")]
    last = [SAY, ("participant", "wait_for_goodbye")]
    assert _order(Agent().perform(told, leaves, goes)) == [SAY, ("reporter", "tell"), *last]


def test_people_are_told_of_ranks_as_they_were_when_it_happened() -> None:
    agent = Agent()
    ranks = {0: 10}
    parts: Any = agent.performer._workers
    parts.rank_of = ranks.__getitem__
    parts.start_some = lambda *_: ranks.update({0: 99})  # the replacement has another rank
    stuck = actions.TellPeople(WorkerStuck("it hung", local_ranks=(0,)))
    calls = agent.perform(stuck, actions.StartForNextRound((0,)))
    assert calls == [("reporter", "tell", WorkerStuck("it hung", (0,), ranks=[10]))]


def test_people_are_told_also_if_what_follows_is_impossible() -> None:
    agent = Agent()

    def refuse(*_: object) -> None:
        raise OSError("no port")

    agent.performer._workers.host_store = refuse  # type: ignore[method-assign]
    with pytest.raises(OSError, match="no port"):
        agent.perform(actions.TellPeople(WorkerStuck("it hung")), actions.HostStore(7))
    assert agent.calls == [("reporter", "tell", WorkerStuck("it hung"))]


# torch's part of an agent: what it records of the workers, and what ``run`` returns


ENDED = OutcomeRecord("x.1", succeeded=True, exit_code=0, reason="done")


class Looping:
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
    torch = Looping().torch
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
    torch = Looping().torch
    torch.form_group(ROUND, 1, range(2))
    result = torch.result(Finish(0, outcome=ENDED), {}, lambda local_rank: f"of {local_rank}")
    assert result.state is WorkerState.SUCCEEDED
    assert result.return_values == {2: "of 0", 3: "of 1"}


@pytest.mark.parametrize(
    "outcome", [None, OutcomeRecord("x.1", succeeded=False, exit_code=1, reason="it failed")]
)
def test_any_other_end_returns_the_failures(outcome: OutcomeRecord | None) -> None:
    torch = Looping().torch
    torch.form_group(ROUND, 0, range(2))
    failures = {1: ProcessFailure(1, 77, 1, "")}
    result = torch.result(Finish(1, outcome=outcome), failures, lambda local_rank: None)
    assert result.state is WorkerState.FAILED
    assert result.failures == failures
    assert not result.return_values


def test_run_runs_our_loop_and_ends_with_our_end() -> None:
    results = iter([RunResult(WorkerState.SUCCEEDED, return_values={0: "a", 1: "b"})])
    agent = Looping(results.__next__)
    agent.torch.form_group(ROUND, 0, range(2))
    agent.torch.name_workers()  # or torch does not know whose ends it records
    assert agent.torch.run().return_values == {0: "a", 1: "b"}
    assert agent.closed


def test_run_ends_with_our_end_also_after_an_error() -> None:
    def loop() -> RunResult:
        raise KeyError("broken")

    agent = Looping(loop)
    with pytest.raises(KeyError):
        agent.torch.run()
    assert agent.closed


def test_torch_gets_a_rendezvous_that_has_names_and_never_makes_a_round() -> None:
    name = RunName("etcd", "run")
    assert (name.get_backend(), name.get_run_id()) == ("etcd", "run")
    assert not name.is_closed() and name.num_nodes_waiting() == 0
    with pytest.raises(RuntimeError, match="rounds come from the participant"):
        name.next_rendezvous()
