"""What follows when machines appear, vanish, or lose their node: a pure decision.

A machine has one node while it is listed. One that is listed no longer is asked to leave. A node
that ended though the job goes on is started again, with pauses that grow; unless it was asked to
leave by somebody else, or cannot be started there at all.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING

from elastic_runtime.backoff import Backoff
from elastic_runtime.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_LEFT,
    EXIT_NOT_ENOUGH_NODES,
    EXIT_USAGE,
)
from elastic_runtime.system.repeated_signals import StopRequest

if TYPE_CHECKING:
    from elastic_runtime.cli.hosts.listed_hosts import Host

# What an agent ends with when the job is over, or it has waited for others for too long: how the
# job has ended, its store knows; but a store that the nodes have moved to one of them ends with it.
OF_THE_JOB = (EXIT_DONE, EXIT_FAILED, EXIT_NOT_ENOUGH_NODES)
_CERTAIN = (EXIT_DONE, EXIT_FAILED)
# Before a node that has ended is started again.
_PAUSES = Backoff(first=1.0, longest=60.0)
# Seconds: a node that has run for so long did not fail at its start.
RAN_WELL = 60.0
# Seconds that nodes have to end once the job is over.
LAST_NODES = 30.0
# ssh itself has failed: there is no such host, it refuses us, or the connection is lost.
SSH_FAILED = 255
# In the place of an exit code: the job is to go on, with another store.
AGAIN = -1
# Seconds without a sign of a node after which people are told.
SLOW = 30.0


class HostPhase(Enum):
    """What a machine's node does."""

    RUNS = "runs"
    LEAVES = "leaves"
    PAUSES = "pauses"  # it has ended, and is to be started again
    STAYS_AWAY = "stays away"


@dataclass(frozen=True)
class NodeOf:
    """The node of one machine.

    Attributes:
        host: the machine.
        phase: what it does.
        begun: it is really there, and not only on its way.
        failures: how often in a row it has ended soon after its start.
        again_at: when it is to be started again, in seconds on the monotonic clock.
        told_at: when people are told that it has not begun; None: they have been, or it has.
        kill_at: when it is ended, as it was asked to leave and has not; None: it was not asked.
        begun_at: when it has begun.
    """

    host: Host
    phase: HostPhase
    begun: bool = False
    failures: int = 0
    again_at: float = 0.0
    told_at: float | None = None
    kill_at: float | None = None
    begun_at: float = 0.0

    @property
    def there(self) -> bool:
        """It has a process."""
        return self.phase in (HostPhase.RUNS, HostPhase.LEAVES)


@dataclass(frozen=True)
class PlanState:
    """All machines.

    Attributes:
        patience: seconds without any node after which the job ends.
        grace: seconds that a node has to leave.
        leave_code: what a node ends with that has left.
        most: how many nodes may train; None: that was said, and is not for the list to say.
        nodes: by the machine's name.
        listed: the machines that are to have a node.
        request: what asked the job to leave; None: nothing has.
        code: how the job has ended, once a node knows that.
        codes: what nodes ended with that stay away.
        ends_at: when what is left is killed.
        nobody_since: since when no machine has had a node for long; None: one has.
    """

    patience: float
    grace: float = 60.0
    leave_code: int = EXIT_LEFT
    most: int | None = None
    nodes: dict[str, NodeOf] = field(default_factory=dict)
    listed: tuple[Host, ...] = ()
    request: StopRequest | None = None
    code: int | None = None
    codes: tuple[int, ...] = ()
    ends_at: float | None = None
    nobody_since: float | None = None

    @property
    def over(self) -> bool:
        """No further node is started."""
        return self.request is not None or self.code is not None


# ---------------------------------------------------------------- events


@dataclass(frozen=True)
class Listed:
    """These machines are to have a node."""

    hosts: tuple[Host, ...]


@dataclass(frozen=True)
class NodeBegan:
    """A machine has been reached, and its node has begun."""

    name: str


@dataclass(frozen=True)
class NodeEnded:
    """A node's process has ended.

    Attributes:
        name: of its machine.
        code: its exit code; ``SSH_FAILED``: that of ssh.
        lifetime: in seconds.
        began: it was a node; False: it could not be started there.
        outcome: what the job has come to; None: it is not over, or its store does not answer.
        stranded: no node is left, and the store has ended with one of them.
    """

    name: str
    code: int
    lifetime: float
    began: bool
    outcome: int | None = None
    stranded: bool = False


@dataclass(frozen=True)
class Asked:
    """A signal asks this process to end."""

    signum: int


@dataclass(frozen=True)
class TimePassed:
    """Time has passed."""


PlanEvent = Listed | NodeBegan | NodeEnded | Asked | TimePassed

# ---------------------------------------------------------------- actions


@dataclass(frozen=True)
class StartNode:
    """Start a node on this machine."""

    host: Host


@dataclass(frozen=True)
class AskNode:
    """Ask the node of this machine to leave."""

    name: str


@dataclass(frozen=True)
class KillNode:
    """End the node of this machine at once."""

    name: str


@dataclass(frozen=True)
class Grow:
    """So many nodes may train from now on."""

    most: int


@dataclass(frozen=True)
class Tell:
    """Tell people."""

    text: str


@dataclass(frozen=True)
class EndAll:
    """No node is left, and none is to come: end with this code; ``AGAIN``: and begin anew."""

    code: int


PlanAction = StartNode | AskNode | KillNode | Grow | Tell | EndAll
Plan = tuple[PlanState, tuple[PlanAction, ...]]


# ---------------------------------------------------------------- the decision


def decide(state: PlanState, event: PlanEvent, now: float) -> Plan:
    """What follows from an event.

    Args:
        state: what is known.
        event: what has happened.
        now: seconds on the monotonic clock.
    """
    match event:
        case Listed():
            state, actions = _listed(state, event, now)
        case NodeBegan(name):
            begun = replace(state.nodes[name], begun=True, told_at=None, begun_at=now)
            state, actions = replace(state, nodes={**state.nodes, name: begun}), ()
        case NodeEnded():
            state, actions = _ended(state, event, now)
        case Asked():
            state, actions = _asked(state, event, now)
        case TimePassed():
            actions = ()
    if any(isinstance(action, EndAll) for action in actions):
        return state, actions
    state, more = _time_has_passed(state, now)
    return state, (*actions, *more)


def next_moment(state: PlanState) -> float | None:
    """When time alone has something follow; None: never."""
    nodes = state.nodes.values()
    moments = [node.told_at for node in nodes if node.told_at is not None]
    moments += [node.kill_at for node in nodes if node.kill_at is not None]
    if state.ends_at is not None:
        moments.append(state.ends_at)
    if not state.over:
        moments += [node.again_at for node in nodes if node.phase is HostPhase.PAUSES]
    if state.nobody_since is not None and not state.over:
        begun = [node.begun_at + RAN_WELL for node in nodes if node.begun]
        moments += begun or [state.nobody_since + state.patience]
    return min(moments, default=None)


def _listed(state: PlanState, event: Listed, now: float) -> Plan:
    if not event.hosts and state.listed:
        # Whoever writes a list begins with an empty one.
        return state, (Tell("no host is listed now: nothing changes until one is"),)
    wanted = {host.name: host for host in event.hosts}
    nodes = dict(state.nodes)
    actions: list[PlanAction] = []
    for name, node in state.nodes.items():
        if name not in wanted and not node.there:
            del nodes[name]
        elif node.phase is HostPhase.RUNS and (why := _why_not(node, wanted.get(name))):
            nodes[name] = _leaving(state, node, now)
            actions += [Tell(f"{name} {why}: its node is asked to leave"), AskNode(name)]
    if not state.over:
        for name, host in wanted.items():
            if name not in nodes:
                nodes[name] = _started(host, now)
                told = (Tell(f"{name} is listed: a node is started there"),) if state.listed else ()
                actions += [*told, StartNode(host)]
        if state.most is not None and len(wanted) > state.most:
            state = replace(state, most=len(wanted))
            actions.append(Grow(len(wanted)))
    return replace(state, nodes=nodes, listed=event.hosts), tuple(actions)


def _why_not(node: NodeOf, wanted: Host | None) -> str:
    """Why a node is not as it is wanted; "": it is."""
    if wanted is None:
        return "is listed no longer"
    if wanted != node.host:
        return f"is to have {wanted.workers or 'the usual number of'} workers now"
    return ""


def _leaving(state: PlanState, node: NodeOf, now: float) -> NodeOf:
    return replace(node, phase=HostPhase.LEAVES, told_at=None, kill_at=now + state.grace)


def _started(host: Host, now: float, failures: int = 0) -> NodeOf:
    return NodeOf(host, HostPhase.RUNS, failures=failures, told_at=now + SLOW)


def _ended(state: PlanState, event: NodeEnded, now: float) -> Plan:
    node, name = state.nodes[event.name], event.name
    others = {other: one for other, one in state.nodes.items() if other != name}
    without = replace(state, nodes=others)
    wanted = next((host for host in state.listed if host.name == name), None)
    if (outcome := _outcome(state, event)) is not None and state.code is None:
        return replace(without, code=outcome, ends_at=now + LAST_NODES), ()
    if state.over:
        return without, ()
    if event.stranded:
        # The nodes had moved it to one of them while this process was stopped or out of reach.
        told = f"{name}: {_how(event)}; no node is left, and the store of the job is gone with them"
        return without, (Tell(f"{told}: the job goes on with a new one"), EndAll(AGAIN))
    left = event.began and event.code in (EXIT_LEFT, state.leave_code)
    if node.phase is HostPhase.LEAVES:
        if wanted is None:
            return without, (Tell(f"{name} has left" if left else f"{name}: {_how(event)}"),)
        back = {**others, name: _started(wanted, now)}
        return replace(state, nodes=back), (StartNode(wanted),)
    if left or (event.began and event.code == EXIT_USAGE):
        why = "was asked to leave there" if left else "cannot run there"
        away = NodeOf(node.host, HostPhase.STAYS_AWAY)
        state = replace(state, nodes={**others, name: away}, codes=(*state.codes, event.code))
        told = f"{name}: its node {why}, and is not started again while {name} is listed"
        return state, (Tell(told),)
    failures = 1 if event.lifetime > RAN_WELL else node.failures + 1
    pause = _PAUSES.pause(failures)
    again = NodeOf(wanted or node.host, HostPhase.PAUSES, failures=failures, again_at=now + pause)
    then = "it is started again" if event.began else "another try"
    told = f"{name}: {_how(event)}; {then} in {pause:g} s"
    return replace(state, nodes={**others, name: again}), (Tell(told),)


def _outcome(state: PlanState, event: NodeEnded) -> int | None:
    """What the job has come to, as the store or the agent of a node says."""
    if event.outcome is not None or not event.began or event.code == state.leave_code:
        return event.outcome
    return event.code if event.code in _CERTAIN else None


def _how(event: NodeEnded) -> str:
    if event.code == SSH_FAILED:
        how = "the connection is lost, or its node was killed" if event.began else ""
        return how or "ssh cannot reach it"
    if event.code > 128:
        return f"its node was ended by signal {event.code - 128}"
    what = "its node has ended" if event.began else "no node could be started"
    return f"{what} (exit code {event.code})"


def _asked(state: PlanState, event: Asked, now: float) -> Plan:
    there = {name: node for name, node in state.nodes.items() if node.there}
    if state.request is None:
        nodes = {name: _leaving(state, node, now) for name, node in there.items()}
        # ssh may be at it for long, and nothing has begun yet that could be asked.
        actions = [AskNode(n) if node.begun else KillNode(n) for n, node in there.items()]
        request = StopRequest(event.signum, now)
        return replace(state, nodes=nodes, request=request), tuple(actions)
    if state.request.repeated_by(event.signum, now):
        return state, ()
    return state, tuple(map(KillNode, there))


def _time_has_passed(state: PlanState, now: float) -> Plan:
    actions: list[PlanAction] = []
    nodes = dict(state.nodes)
    for name, node in state.nodes.items():
        if node.phase is HostPhase.PAUSES and node.again_at <= now and not state.over:
            host = next((host for host in state.listed if host.name == name), node.host)
            nodes[name] = _started(host, now, node.failures)
            actions.append(StartNode(host))
        elif node.told_at is not None and node.told_at <= now:
            nodes[name] = replace(node, told_at=None)
            waits = "ssh still tries, or another node of this run is still there"
            actions.append(Tell(f"{name}: no node has begun there for {SLOW:g} s: {waits}"))
        elif node.kill_at is not None and node.kill_at <= now:
            nodes[name] = replace(node, kill_at=None)
            actions += [Tell(f"{name}: its node does not leave, and is ended"), KillNode(name)]
    if state.ends_at is not None and state.ends_at <= now:
        actions += [KillNode(name) for name, node in nodes.items() if node.there]
        state = replace(state, ends_at=None)
    state = replace(state, nodes=nodes)
    begun = [node.begun_at for node in nodes.values() if node.begun]
    # A node that dies again and again soon after its start is none for long.
    for_long = any(now - since >= RAN_WELL for since in begun)
    since = now if state.nobody_since is None else state.nobody_since
    state = replace(state, nobody_since=None if for_long else since)
    if not state.over and not begun and not for_long and now >= since + state.patience:
        why = f"no host has had a node for {state.patience:g} s (--join-timeout)"
        told = Tell(f"{why}: the job has ended")
        return state, (*actions, told, EndAll(EXIT_NOT_ENOUGH_NODES))
    if (code := _code_of_end(state)) is not None:
        return state, (*actions, EndAll(code))
    return state, tuple(actions)


def _code_of_end(state: PlanState) -> int | None:
    """What to end with, if no machine has a node, and none is to come; None: not yet."""
    if any(node.there for node in state.nodes.values()):
        return None
    if state.code is not None:
        return state.code
    if state.request is not None:
        return state.leave_code
    if state.nodes and all(node.phase is HostPhase.STAYS_AWAY for node in state.nodes.values()):
        return min(state.codes)
    return None
