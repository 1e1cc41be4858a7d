"""What the records of a run say about it, for ``elasticctl``: pure.

The records are those of the store; the answers are what the nodes themselves said when asked at
their probe ports. Neither is complete: a node may be out of reach from here and well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeVar

from elastic_runtime.errors import RecordError
from elastic_runtime.protocol.records import (
    DONE,
    EVENTS,
    GONE,
    JOB,
    NODES,
    OUTCOME,
    ROUND,
    SWITCH,
    EventRecord,
    JobRecord,
    NodeRecord,
    OutcomeRecord,
    Record,
    SwitchRecord,
)
from elastic_runtime.protocol.records import (
    LEAVING as WAS_ASKED_TO_LEAVE,
)
from elastic_runtime.protocol.round_records import RoundRecord
from elastic_runtime.rendezvous.core.formation.reachability import cut_message, severed_pairs
from elastic_runtime.rendezvous.core.round_parts import all_members
from elastic_runtime.topology import known_topology, topology_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from elastic_runtime.rendezvous.store_contract import StoreEntry

# The state of a job.
STARTING = "starting"
RUNNING = "running"
CHANGING = "changing"
SUCCEEDED = "succeeded"
FAILED = "failed"
DEAD = "no node is left"

# The role of a node.
MEMBER = "member"
BETWEEN = "between rounds"
JOINING = "joining"
SPARE = "spare"
LEAVING = "leaving"
FINISHED = "done"
SILENT = "silent"
ENDED = "ended"

Answers = Mapping[str, Mapping[str, Any]]

_R = TypeVar("_R", bound=Record)


@dataclass(frozen=True)
class RunRecords:
    """The records of one run, decoded.

    Attributes:
        job, round, switch, outcome: None if absent or unreadable.
        nodes: by uuid, in the order in which they registered.
        events: the oldest first.
        bad: keys of records that cannot be read, and why.
    """

    job: JobRecord | None = None
    round: RoundRecord | None = None
    switch: SwitchRecord | None = None
    outcome: OutcomeRecord | None = None
    nodes: Mapping[str, NodeRecord] = field(default_factory=dict)
    events: tuple[EventRecord, ...] = ()
    bad: tuple[tuple[str, str], ...] = ()

    @property
    def empty(self) -> bool:
        """Whether there is no such run."""
        return self == RunRecords()


@dataclass(frozen=True)
class NodeLine:
    """One node as people see it.

    Attributes:
        name, address: as the node gave them.
        node: its uuid; a node that joins again has a new one.
        role: one of the roles above.
        ranks: global ranks of its workers in the present round, such as ``2-3``; "" if none.
        workers: how many workers it runs.
        step: the highest step known of it; -1: none.
        answers: it answered when asked just now.
        topology: where it says that it is in its network, from far to near; "": not known.
    """

    name: str
    address: str
    node: str
    role: str
    ranks: str
    workers: int
    step: int = -1
    answers: bool = False
    topology: str = ""


@dataclass(frozen=True)
class RunReport:
    """What ``elasticctl status`` shows; ``as_dict`` is its ``--format json``.

    Attributes:
        run_id, endpoint: where it was read.
        state: one of the states above.
        entry: the script or module.
        bounds: the present bounds, in nodes; None if there is no job record.
        launch_bounds: those that the nodes were started with.
        round: number of the present round; 0: none yet.
        world_size: workers in it.
        reason: why it was formed.
        step: the highest step known; -1: none reported.
        failures, killed, lost, planned: rounds that ended so.
        nodes: members by rank, then the others.
        outcome: how it ended; "" if it did not.
        events: the last ones, the oldest first.
        bad: keys of unreadable records, and why.
        apart: which nodes do not reach each other, as they report; "" if none reports it.
        trouble: what the store says is wrong with it; "" if nothing is.
        regroup: in place, how ranks regroup, and the version of torch; "": not in place.
    """

    run_id: str
    endpoint: str
    state: str
    entry: str = ""
    bounds: tuple[int, int] | None = None
    launch_bounds: tuple[int, int] | None = None
    round: int = 0
    world_size: int = 0
    reason: str = ""
    step: int = -1
    failures: int = 0
    killed: int = 0
    lost: int = 0
    planned: int = 0
    nodes: tuple[NodeLine, ...] = ()
    outcome: str = ""
    events: tuple[EventRecord, ...] = ()
    bad: tuple[tuple[str, str], ...] = ()
    apart: str = ""
    trouble: str = ""
    regroup: str = ""

    @property
    def over(self) -> bool:
        """Whether nothing more is to come of this job."""
        return self.state in (SUCCEEDED, FAILED)

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def read_records(entries: Iterable[StoreEntry]) -> RunRecords:
    """Decodes the entries of a run; what cannot be read is listed, and never stops the rest."""
    entries = tuple(entries)
    bad: list[tuple[str, str]] = []

    def decoded(cls: type[_R], entry: StoreEntry) -> _R | None:
        try:
            return cls.decode(entry.key, entry.value)
        except RecordError as error:
            bad.append((error.key, error.why))
            return None

    single: dict[str, Any] = {}
    nodes: dict[str, NodeRecord] = {}
    events: list[EventRecord] = []
    kinds: dict[str, type[Record]] = {
        JOB: JobRecord,
        ROUND: RoundRecord,
        SWITCH: SwitchRecord,
        OUTCOME: OutcomeRecord,
    }
    for entry in entries:
        if entry.key in kinds:
            single[entry.key] = decoded(kinds[entry.key], entry)
        elif entry.key.startswith(NODES) and (node := decoded(NodeRecord, entry)):
            nodes[node.node] = node
        elif entry.key.startswith(EVENTS) and (event := decoded(EventRecord, entry)):
            events.append(event)
    if isinstance(last := single.get(ROUND), RoundRecord):
        single[ROUND] = all_members(last, entries)
    events.sort(key=lambda event: event.at)
    return RunRecords(**single, nodes=nodes, events=tuple(events), bad=tuple(bad))


def make_report(run_id: str, endpoint: str, records: RunRecords, answers: Answers) -> RunReport:
    """Says in people's words how a run is.

    Args:
        run_id: the run.
        endpoint: where its records were read.
        records: the records.
        answers: what nodes answered, by uuid.
    """
    job, last, outcome = records.job, records.round, _outcome(records)
    lines = node_lines(records, answers)
    budget = last.budget if last else None
    reason = last.reason if last else ""
    pairs = severed_pairs([node for node in records.nodes.values() if node.status != GONE])
    return RunReport(
        run_id=run_id,
        endpoint=endpoint,
        state=_state(records),
        entry=job.entry if job else "",
        bounds=(job.min_nodes, job.max_nodes) if job else None,
        launch_bounds=(job.launch_min, job.launch_max) if job else None,
        round=last.number if last else 0,
        world_size=last.world_size if last else 0,
        reason=reason,
        step=max((line.step for line in lines), default=-1),
        failures=budget.failures if budget else 0,
        killed=budget.killed if budget else 0,
        lost=budget.lost if budget else 0,
        planned=budget.planned if budget else 0,
        nodes=lines,
        outcome=f"{outcome.reason}{_at(outcome)}" if outcome else "",
        events=records.events,
        bad=records.bad,
        apart=cut_message(pairs) if pairs else "",
        regroup=_regroup(records),
    )


def _regroup(records: RunRecords) -> str:
    """All nodes have the same, or are refused."""
    if records.job is None or not records.job.in_place:
        return ""
    known = (node for node in records.nodes.values() if node.regroup)
    return next((f"{node.regroup} (torch {node.torch})" for node in known), "")


def _at(outcome: OutcomeRecord) -> str:
    return f" (on {outcome.node})" if outcome.node and not outcome.succeeded else ""


def _outcome(records: RunRecords) -> OutcomeRecord | None:
    """The outcome, if it is of this incarnation of the job; an older one says nothing about it."""
    job, outcome = records.job, records.outcome
    if outcome is None or (job is not None and outcome.incarnation != job.incarnation):
        return None
    return outcome


def _state(records: RunRecords) -> str:
    outcome, last = _outcome(records), records.round
    if outcome is not None:
        return SUCCEEDED if outcome.succeeded else FAILED
    if not any(node.status != GONE for node in records.nodes.values()):
        return DEAD
    if last is None:
        return STARTING
    leaving = records.switch is not None and records.switch.round == last.number
    left = any(
        node.left >= last.number
        for node in records.nodes.values()
        if node.incarnation == last.incarnation
    )
    return CHANGING if leaving or left else RUNNING


def node_lines(records: RunRecords, answers: Answers) -> tuple[NodeLine, ...]:
    """All nodes: the members of the round by rank, also vanished ones, then the others."""
    last, over = records.round, _outcome(records) is not None
    members = last.members if last else ()
    lines = []
    # Of a large round whose parts are not all there, some members are not known.
    firsts = (
        last.firsts if last and last.ranks else accumulate((m.workers for m in members), initial=0)
    )
    for member, first in zip(members, firsts, strict=False):
        assert last is not None
        record, answer = records.nodes.get(member.node), answers.get(member.node, {})
        lines.append(
            NodeLine(
                name=member.name,
                address=member.address,
                node=member.node,
                role=_member_role(record, last, over=over),
                ranks=_ranks(first, member.workers),
                workers=member.workers,
                step=_step(record, answer),
                answers=bool(answer),
                topology=_topology(record),
            )
        )
    known = {member.node for member in members}
    lines += [
        NodeLine(
            name=record.name,
            address=record.address,
            node=record.node,
            role=_outsider_role(record, records),
            ranks="",
            workers=record.workers,
            step=_step(record, answers.get(record.node, {})),
            answers=record.node in answers,
            topology=_topology(record),
        )
        for record in records.nodes.values()
        if record.node not in known and record.status != GONE
    ]
    return tuple(lines)


def _member_role(record: NodeRecord | None, last: RoundRecord, *, over: bool) -> str:
    if over and (record is None or record.status in (DONE, GONE)):
        return ENDED  # with the job
    if record is None:
        return SILENT
    if record.status != "in":
        shown = {WAS_ASKED_TO_LEAVE: LEAVING, DONE: FINISHED, GONE: "gone"}
        return shown.get(record.status, record.status)
    left = record.incarnation == last.incarnation and record.left >= last.number
    return BETWEEN if left else MEMBER


def _outsider_role(record: NodeRecord, records: RunRecords) -> str:
    if record.status == WAS_ASKED_TO_LEAVE:
        return LEAVING
    full = (
        records.job is not None
        and records.round is not None
        and records.round.size >= records.job.max_nodes
    )
    return SPARE if full else JOINING


def _ranks(first: int, workers: int) -> str:
    return str(first) if workers == 1 else f"{first}-{first + workers - 1}"


def _topology(record: NodeRecord | None) -> str:
    return topology_text(known_topology(record.topology)) if record else ""


def _step(record: NodeRecord | None, answer: Mapping[str, Any]) -> int:
    answered = answer.get("step", -1)
    return max(answered if type(answered) is int else -1, record.step if record else -1)
