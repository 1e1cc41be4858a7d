"""What follows when machines appear, vanish, or lose their node."""

from __future__ import annotations

import random
import signal

import pytest

from elastic_runtime.cli.hosts.host_plan import (
    AGAIN,
    LAST_NODES,
    RAN_WELL,
    SLOW,
    SSH_FAILED,
    Asked,
    AskNode,
    EndAll,
    KillNode,
    Listed,
    NodeBegan,
    NodeEnded,
    PlanAction,
    PlanEvent,
    PlanState,
    StartNode,
    Tell,
    TimePassed,
    decide,
    next_moment,
)
from elastic_runtime.cli.hosts.listed_hosts import Host

A, B, C = Host("a"), Host("b", 4), Host("c")


class Plan:
    """Plays events, and remembers the actions of the last one, but for what people are told."""

    def __init__(self, *hosts: Host, begun: str = "", leave_code: int = 5) -> None:
        self.state = PlanState(patience=600.0, leave_code=leave_code)
        self.now = 100.0
        self.told: list[str] = []
        self.actions: list[PlanAction] = []
        if hosts:
            self.take(Listed(hosts))
        for name in begun:
            self.take(NodeBegan(name))

    def take(self, event: PlanEvent, after: float = 1.0) -> list[PlanAction]:
        self.now += after
        self.state, actions = decide(self.state, event, self.now)
        self.told += [action.text for action in actions if isinstance(action, Tell)]
        self.actions = [action for action in actions if not isinstance(action, Tell)]
        return self.actions

    def pause(self) -> float:
        """Seconds until the next moment, which there is."""
        moment = next_moment(self.state)
        assert moment is not None
        return moment - self.now

    def ended(
        self,
        name: str,
        code: int,
        lifetime: float = 1000.0,
        began: bool = True,
        outcome: int | None = None,
    ) -> list[PlanAction]:
        return self.take(NodeEnded(name, code, lifetime, began, outcome))


def test_each_host_that_is_listed_has_a_node() -> None:
    plan = Plan(A, B)
    assert plan.actions == [StartNode(A), StartNode(B)]
    assert plan.take(Listed((A, B, C))) == [StartNode(C)]
    assert plan.take(Listed((A, C))) == [AskNode("b")]
    assert plan.take(Listed((A, C))) == []
    assert plan.ended("b", 5) == []
    assert plan.take(Listed((A, B, C))) == [StartNode(B)]


def test_a_host_that_is_back_before_its_node_has_left_gets_another_one() -> None:
    plan = Plan(A, B)
    plan.take(Listed((A,)))
    assert plan.take(Listed((A, B))) == []
    assert plan.ended("b", 5) == [StartNode(B)]


def test_an_empty_list_is_taken_for_one_that_is_being_written() -> None:
    plan = Plan(A)
    assert plan.take(Listed(())) == []
    assert "nothing changes" in plan.told[-1]


@pytest.mark.parametrize("code", [0, 1, 3])
def test_a_node_that_knows_the_end_of_the_job_ends_all(code: int) -> None:
    plan = Plan(A, B, begun="b")
    assert plan.ended("a", code, outcome=code) == []
    assert plan.pause() == LAST_NODES
    assert plan.ended("b", 137) == [EndAll(code)]


def test_who_does_not_see_the_end_is_killed() -> None:
    plan = Plan(A, B)
    plan.ended("a", 0, outcome=0)
    assert plan.take(TimePassed(), after=LAST_NODES) == [KillNode("b")]
    assert plan.ended("b", 137) == [EndAll(0)]


@pytest.mark.parametrize("code", [0, 1])
def test_an_agent_knows_how_the_job_has_ended_when_its_store_is_gone(code: int) -> None:
    """As the nodes have moved it to one of them, and it ended with that."""
    plan = Plan(A, B, begun="b")
    plan.ended("b", code)
    assert (plan.state.code, plan.state.ends_at) == (code, plan.now + LAST_NODES)
    assert plan.ended("a", 137) == [EndAll(code)]


@pytest.mark.parametrize("code", [3, 4, 6, 137, SSH_FAILED])
def test_a_node_that_was_lost_is_started_again_after_a_pause(code: int) -> None:
    plan = Plan(A, B)
    assert plan.ended("b", code) == []
    assert plan.pause() == 1.0
    assert plan.take(TimePassed(), after=1.0) == [StartNode(B)]


def test_pauses_grow_until_a_node_has_run_for_a_while() -> None:
    plan = Plan(A, B)
    pauses = []
    for lifetime in (1.0, 1.0, 1.0, 1000.0, 1.0):
        plan.ended("b", SSH_FAILED, lifetime, began=False)
        pauses.append(plan.pause())
        plan.take(TimePassed(), after=pauses[-1])
    assert pauses == [1.0, 2.0, 4.0, 1.0, 2.0]
    assert "ssh cannot reach it" in plan.told[0]


def test_a_host_on_which_no_node_can_be_started_does_not_end_the_job_of_the_others() -> None:
    # A login shell that fails ends with 1, as a job that has failed does.
    plan = Plan(A, B)
    assert plan.ended("b", 1, 0.1, began=False) == []
    assert "no node could be started (exit code 1)" in plan.told[-1]
    assert plan.state.code is None


@pytest.mark.parametrize("code", [2, 5])
def test_who_was_asked_to_leave_there_or_cannot_run_there_stays_away(code: int) -> None:
    plan = Plan(A, B, begun="a")
    assert plan.ended("b", code) == []
    assert plan.take(TimePassed(), after=1000.0) == []
    # Taken from the list and put there again, it is wanted again.
    plan.take(Listed((A,)))
    assert plan.take(Listed((A, B))) == [StartNode(B)]


def test_if_the_store_is_gone_with_the_last_node_the_job_goes_on_with_another_one() -> None:
    plan = Plan(A, B, begun="ab")
    assert plan.ended("a", SSH_FAILED) == []
    assert plan.take(NodeEnded("b", SSH_FAILED, 1000.0, began=True, stranded=True)) == [
        EndAll(AGAIN)
    ]
    assert "goes on with a new one" in plan.told[-1]


def test_a_host_whose_workers_change_gets_another_node() -> None:
    plan = Plan(A, B, begun="b")
    more = Host("b", 8)
    assert plan.take(Listed((A, more))) == [AskNode("b")]
    assert plan.told[-1] == "b is to have 8 workers now: its node is asked to leave"
    assert plan.ended("b", 5) == [StartNode(more)]
    # One that is lost meanwhile, too.
    plan.ended("b", 137)
    assert plan.take(Listed((A, B))) == [StartNode(B)]


def test_a_leave_code_of_its_own_says_nothing_of_the_job() -> None:
    plan = Plan(A, B, begun="b", leave_code=0)
    plan.take(Listed((A,)))
    assert plan.ended("b", 0) == []
    assert (plan.state.code, plan.told[-1]) == (None, "b has left")
    plan.take(Listed((A, B)))
    plan.ended("b", 0)
    assert "was asked to leave there" in plan.told[-1]
    assert plan.take(Asked(signal.SIGTERM)) == [KillNode("a")]  # which has not begun
    assert plan.ended("a", 255, began=False) == [EndAll(0)]


def test_a_node_that_does_not_leave_is_ended() -> None:
    plan = Plan(A, B, begun="b")
    plan.take(Listed((A,)))
    assert plan.take(TimePassed(), after=plan.state.grace) == [KillNode("b")]
    plan.ended("b", SSH_FAILED)
    assert plan.told[-1] == "b: the connection is lost, or its node was killed"


@pytest.mark.parametrize("seed", range(50))
def test_time_alone_is_never_waited_for_in_vain(seed: int) -> None:
    """A moment that has passed and changes nothing would have it come back at once, for ever."""
    draw = random.Random(seed)
    plan = Plan(A, B, C)
    for _ in range(200):
        name = draw.choice("abc")
        node = plan.state.nodes.get(name)
        roll = draw.random()
        if node is None or not node.there or roll < 0.1:
            plan.take(Listed(tuple(host for host in (A, B, C) if draw.random() < 0.7)))
        elif not node.begun and roll < 0.6:
            plan.take(NodeBegan(name), draw.random() * 40)
        elif roll < 0.98:
            code = draw.choice((0, 1, 2, 5, 137, 255))
            plan.ended(name, code, 5.0, node.begun, draw.choice((None,) * 20 + (0, 1)))
        else:
            plan.take(Asked(signal.SIGTERM))
        if any(isinstance(action, EndAll) for action in plan.actions):
            assert not any(one.begun for one in plan.state.nodes.values())
            return
        moment = next_moment(plan.state)
        if moment is not None and moment <= plan.now:
            plan.take(TimePassed(), 0.0)
            later = next_moment(plan.state)
            assert later is None or later > plan.now


def test_if_all_stay_away_the_job_is_over() -> None:
    plan = Plan(A, B)
    plan.ended("a", 5)
    assert plan.ended("b", 2) == [EndAll(2)]


@pytest.mark.parametrize(
    ("begun", "code", "lifetime"), [(False, SSH_FAILED, 0.1), (True, 139, 5.0)]
)
def test_without_a_node_that_lasts_the_job_ends_when_its_patience_does(
    begun: bool, code: int, lifetime: float
) -> None:
    plan = Plan(A)
    since = plan.now
    while EndAll(3) not in plan.actions:
        if begun:
            plan.take(NodeBegan("a"))
        if EndAll(3) not in plan.ended("a", code, lifetime, began=begun):
            plan.take(TimePassed(), max(0.0, plan.pause()))
        assert plan.now - since <= 700.0
    assert plan.now - since >= 600.0
    assert plan.told[-1] == "no host has had a node for 600 s (--join-timeout): the job has ended"


def test_a_node_that_has_begun_ends_the_wait() -> None:
    plan = Plan(A, B)
    plan.take(NodeBegan("b"), after=500.0)
    assert plan.take(TimePassed(), after=5000.0) == []
    plan.ended("b", SSH_FAILED)
    assert plan.pause() == 1.0
    assert EndAll(3) not in plan.take(TimePassed(), after=599.0)
    assert EndAll(3) in plan.take(TimePassed(), after=1.0)


def test_a_host_that_hangs_is_told_of_once() -> None:
    plan = Plan(A, B)
    plan.take(NodeBegan("a"), after=1.0)
    assert next_moment(plan.state) == plan.now - 1.0 + SLOW
    assert plan.take(TimePassed(), after=SLOW) == []
    (told,) = plan.told
    assert told.startswith("b: no node has begun there for 30 s: ssh still tries, or another node")
    plan.take(TimePassed(), after=RAN_WELL)
    assert next_moment(plan.state) is None
    assert len(plan.told) == 1


def test_a_signal_has_all_leave_and_the_next_one_ends_them() -> None:
    plan = Plan(A, B, begun="a")
    plan.ended("b", 137)
    assert plan.take(Asked(signal.SIGTERM)) == [AskNode("a")]
    assert plan.take(TimePassed(), after=50.0) == []
    assert plan.take(Listed((A, B, C))) == []
    assert plan.take(Asked(signal.SIGINT)) == [KillNode("a")]
    assert plan.ended("a", 137) == [EndAll(5)]
