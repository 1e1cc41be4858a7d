"""What one node knows of the rendezvous.

``reducer`` updates a ``NodeState`` from events. ``own_node`` decides what this node does, and
``leader`` what all do if this node leads; ``membership`` puts the three together.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum, auto
from types import MappingProxyType
from typing import TYPE_CHECKING

from elastic_runtime.limits import STALE_REFUSAL
from elastic_runtime.protocol import records
from elastic_runtime.protocol.records import (
    JobRecord,
    NodeRecord,
    OutcomeRecord,
    Record,
    SwitchRecord,
)
from elastic_runtime.protocol.round_records import Member, RoundRecord
from elastic_runtime.rendezvous.store_contract import ABSENT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_runtime.rendezvous.core.membership_events import PartsSeen
    from elastic_runtime.rendezvous.core.notices import Notice
    from elastic_runtime.rendezvous.policy import Policy

# The tag of writes of the node's own key; the tag of any other write is the key that it writes.
OWN = "own"


@dataclass(frozen=True, slots=True)
class StoreProblem:
    """Why the store does not serve this node, and since when (our clock)."""

    since: float
    why: str


@dataclass(frozen=True, slots=True)
class Peer:
    """Another node's record in the store; ``seen`` is when it was first read (our clock)."""

    record: NodeRecord
    created: int
    version: int
    seen: float


@dataclass(frozen=True, slots=True)
class CommonRecord:
    """One of the common keys: its record and version.

    An unreadable record does not displace what a running group knows to be true: the last one
    that could be read stays.
    """

    record: Record | None = None
    version: int = ABSENT
    seen: float = 0.0
    unreadable: bool = False


NOTHING_STORED = CommonRecord()
COMMON: Mapping[str, type[Record]] = MappingProxyType(
    {
        records.JOB: JobRecord,
        records.ROUND: RoundRecord,
        records.SWITCH: SwitchRecord,
        records.OUTCOME: OutcomeRecord,
    }
)


class Timer(Enum):
    """Names of timers: each says since when a condition holds without interruption."""

    WAITING = auto()  # this node waits for what comes through the store: a round, the end
    OUTAGE_REPORTED = auto()  # the last message that the store does not serve this node
    NO_ROUND = auto()  # the store has not known our round, of which we know some members only
    SURVEY = auto()  # this node has probed the others
    # The others are the leader's.
    NO_JOB = auto()  # the store has shown no job, though one may be running
    RESUMING = auto()  # ..., and the job has run before
    OLD_LIFE_SILENT = auto()  # members of the last incarnation may still train, unseen
    OTHER_ROUND = auto()  # the store has shown a round of another incarnation
    LAST_CALL = auto()  # enough nodes for a first round have been there
    TOO_FEW = auto()  # there have been too few nodes for a round
    NO_SURVIVOR = auto()  # all members of the last round have been silent
    GATHERING = auto()  # the leader has waited for the members of the last round
    SURVEY_ORDERED = auto()  # they have been asked which nodes they reach
    WORKERS_BACK = auto()  # a member has had more workers than it takes part with
    ROLL_CALL = auto()  # the members of the last round have not been known
    PARTS_CLEANUP = auto()  # nothing else was to be decided


@dataclass(frozen=True, slots=True)
class OwnNode:
    """This node, since it joined last.

    Attributes:
        record: as it wants to be stored; None before it joins.
        stored, version, created: as the store has it.
        registered: its key has been in the store.
        workers_ready: as those of a job in place must be before the node is registered.
        excluded: it was told to join again as a new node.
        lease_lost: the lease may have ended; nothing is done until the store has shown our key.
        round: the round that it runs, from ``Sealed`` until ``LeftRound``; None: none.
        old_outcome: version of the outcome that was there when it joined: that of another start.
    """

    record: NodeRecord | None = None
    stored: NodeRecord | None = None
    version: int = ABSENT
    created: int = 0
    registered: bool = False
    workers_ready: bool = False
    excluded: bool = False
    lease_lost: bool = False
    round: RoundRecord | None = None
    old_outcome: int | None = None


@dataclass(frozen=True, slots=True)
class StoreContact:
    """How well the store serves this node; moments are on our clock.

    Attributes:
        connected, lost_at, lost_why: whether there is contact, since when there is none, and why.
        ever: there was contact at least once.
        unwritten: since when no write was taken, and why; ``refused_at``: the last of them.
        acked_at: when the request was sent that last kept our lease, as of its loss, or of that
            of contact.
        regained_at: when contact was regained last.
        forgot_at: when the store was last found to have lost its data.
        behind: there was no contact for so long that an incarnation of the job that we know nothing
            of may have begun meanwhile; until the store shows a job.
    """

    connected: bool = False
    lost_at: float = 0.0
    lost_why: str = ""
    ever: bool = False
    unwritten: StoreProblem | None = None
    refused_at: float = float("-inf")
    acked_at: float = float("-inf")
    regained_at: float = float("-inf")
    forgot_at: float = float("-inf")
    behind: bool = False


@dataclass(frozen=True, slots=True)
class StoreView:
    """What the store shows.

    Attributes:
        complete: a snapshot has arrived of what we ask to follow.
        wide: we follow all nodes; ``asked`` is what we last asked to follow.
        job … outcome: the common records.
        peers: the other nodes that are followed, by uuid.
        unreadable: keys among those of nodes that cannot be read, and since when.
        sampled: the ``group`` of the round of which this node knows the members that it is to
            probe.
        parts: the last list of all parts of rounds, if it was not acted upon yet.
    """

    complete: bool = False
    wide: bool = False
    asked: tuple[bool, frozenset[str]] = (False, frozenset())
    job: CommonRecord = NOTHING_STORED
    round: CommonRecord = NOTHING_STORED
    switch: CommonRecord = NOTHING_STORED
    outcome: CommonRecord = NOTHING_STORED
    peers: Mapping[str, Peer] = field(default_factory=dict)
    unreadable: Mapping[str, float] = field(default_factory=dict)
    sampled: str = ""
    parts: PartsSeen | None = None


@dataclass(frozen=True, slots=True)
class History:
    """What this node remembers of the job, whatever the store shows.

    Attributes:
        job, round: the last records seen, to write them again into a store that lost its data.
        last_number: the highest number of a round ever seen, of any incarnation.
        took_part: the last incarnation that this agent ran or waited in.
        ended_well: nodes seen to have ended well, with the round.
        draft: a large round that this node has tried to seal, and whose parts it has written.
        unseen: a round that this node has sealed, as far as it knows, and was not shown yet.
        suspects: joiners whose round failed, with strikes and when to try them again.
    """

    job: JobRecord | None = None
    round: RoundRecord | None = None
    last_number: int = 0
    took_part: str = ""
    ended_well: Mapping[str, int] = field(default_factory=dict)
    draft: RoundRecord | None = None
    unseen: RoundRecord | None = None
    suspects: Mapping[str, tuple[int, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reach:
    """What probes have found, by the uuid of the node.

    Attributes:
        sent: when the last probe was sent; ``answers``: the last answers, and ``answered`` when
            the probes were sent that they answer.
        dead: nodes proven dead, by a probe or by a later process of that name, with the proof.
        missed: nodes that this one does not reach.
        wanted: the round whose members the agent wants to be probed; 0: none.
    """

    sent: Mapping[str, float] = field(default_factory=dict)
    answers: Mapping[str, str] = field(default_factory=dict)
    answered: Mapping[str, float] = field(default_factory=dict)
    dead: Mapping[str, str] = field(default_factory=dict)
    missed: Mapping[str, Member] = field(default_factory=dict)
    wanted: int = 0


@dataclass(frozen=True, slots=True)
class InFlight:
    """A request whose effect was not seen yet.

    Attributes:
        until: not to be made again before this moment (our clock).
        tries: how often in a row it was answered.
    """

    until: float
    tries: int = 0


@dataclass(frozen=True, slots=True)
class NodeState:
    """All that one node knows. Never changed in place.

    Attributes:
        policy: the settings.
        own, contact, shown, history, reach: see there.
        in_flight: requests that were made, by tag.
        timers: since when each condition holds; see ``Timer``.
        notices: to be handed to the agent with the next decision.
        given: names of the notices that are given only once and were given.
    """

    policy: Policy
    own: OwnNode = OwnNode()
    contact: StoreContact = StoreContact()
    shown: StoreView = StoreView()
    history: History = History()
    reach: Reach = Reach()
    in_flight: Mapping[str, InFlight] = field(default_factory=dict)
    timers: Mapping[Timer, float] = field(default_factory=dict)
    notices: tuple[Notice, ...] = ()
    given: frozenset[str] = frozenset()

    # -- views

    @property
    def me(self) -> str:
        """This node's uuid."""
        assert self.own.record is not None
        return self.own.record.node

    @property
    def job_record(self) -> JobRecord | None:
        """The job, if the store has one that can be read."""
        return self.shown.job.record if isinstance(self.shown.job.record, JobRecord) else None

    @property
    def secret(self) -> str:
        """The secret with which nodes of this job prove themselves to each other; "": not known."""
        job = self.job_record or self.history.job
        return job.secret if job else ""

    @property
    def round_record(self) -> RoundRecord | None:
        """The last round of the job's present incarnation."""
        record, job = self.shown.round.record, self.job_record
        if isinstance(record, RoundRecord) and job and record.incarnation == job.incarnation:
            return record
        return None

    @property
    def switch_record(self) -> SwitchRecord | None:
        """The order to leave the last round, if there is one."""
        record, last = self.shown.switch.record, self.round_record
        if (
            isinstance(record, SwitchRecord)
            and last is not None
            and (record.round, record.incarnation) == (last.number, last.incarnation)
        ):
            return record
        return None

    @property
    def outcome_record(self) -> OutcomeRecord | None:
        """The end of the job's present incarnation, if it has come."""
        record, job = self.shown.outcome.record, self.job_record
        if isinstance(record, OutcomeRecord) and job and record.incarnation == job.incarnation:
            return record
        return None

    @property
    def stranger(self) -> bool:
        """Whether the job in the store is another one than ours."""
        job, record = self.job_record, self.own.record
        return bool(job and record and job.settings and job.settings != record.settings)

    @property
    def waits(self) -> bool:
        """Whether this node waits for something that comes through the store: a round, an end."""
        return Timer.WAITING in self.timers

    def problem(self, now: float) -> StoreProblem | None:
        """Why the store does not serve this node; None if it does."""
        contact = self.contact
        if not contact.connected:
            since = contact.lost_at or self.timers.get(Timer.WAITING, 0.0)
            return StoreProblem(since, contact.lost_why)
        # A write that is still needed is tried again and again; an old failure does not matter.
        return contact.unwritten if now < contact.refused_at + STALE_REFUSAL else None

    @property
    def remembers_at(self) -> float:
        """Until when a running group may write itself into a store that has lost its data."""
        return self.contact.forgot_at + self.policy.settle

    @property
    def absence_counts_at(self) -> float:
        """From when on an absent key proves that its owner's lease has ended."""
        seen = (self.contact.regained_at, *self.shown.unreadable.values())
        return max(seen) + self.policy.settle

    def goodbye_done(self, now: float) -> bool:
        """Whether this node's goodbye is done: the store has it, or has no key of this node."""
        own = self.own
        if own.record is None or own.record.status != records.GONE:
            return False
        unseen = own.version == ABSENT and not self.pending(OWN, now)
        return unseen or own.stored == own.record

    def pending(self, tag: str, now: float) -> bool:
        """Whether a request with this tag is in flight, or must wait before it is made again."""
        return tag in self.in_flight and self.in_flight[tag].until > now

    def with_pending(self, tag: str, until: float) -> NodeState:
        """With a request that is not to be made again before this moment."""
        tries = self.in_flight[tag].tries if tag in self.in_flight else 0
        return replace(self, in_flight={**self.in_flight, tag: InFlight(until, tries)})

    def start(self, timer: Timer, now: float) -> NodeState:
        """With the timer running; one that runs already is kept."""
        return self if timer in self.timers else self.restart(timer, now)

    def restart(self, timer: Timer, now: float) -> NodeState:
        """With the timer running from ``now`` on."""
        return replace(self, timers={**self.timers, timer: now})

    def stop(self, *timers: Timer) -> NodeState:
        """Without these timers."""
        if not any(timer in self.timers for timer in timers):
            return self
        return replace(self, timers={k: v for k, v in self.timers.items() if k not in timers})

    def with_notice(self, notice: Notice, once: str = "") -> NodeState:
        """With a notice for the agent; with ``once``, only if none of that name was given."""
        if once and once in self.given:
            return self
        given = self.given | {once} if once else self.given
        return replace(self, notices=(*self.notices, notice), given=given)
