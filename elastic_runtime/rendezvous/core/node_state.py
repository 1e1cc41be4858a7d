"""What one node knows of the rendezvous, and what it can ask for.

``absorb`` takes events into a ``State``. What follows is decided in ``member`` (for this node) and
``leader`` (for all, when this node leads); ``membership`` puts the three together.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from elastic_runtime.protocol import records
from elastic_runtime.protocol.records import (
    JobRecord,
    Member,
    NodeRecord,
    OutcomeRecord,
    Record,
    RoundRecord,
    SwitchRecord,
)
from elastic_runtime.rendezvous.store_contract import ABSENT, Transaction

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_runtime.rendezvous.core.events import PartsSeen
    from elastic_runtime.rendezvous.core.notices import Notice
    from elastic_runtime.rendezvous.policy import Policy

# A write that failed so long ago, and was not tried again, says nothing about the store (seconds).
STALE = 15.0
# The tag under which a node writes its own key; other writes go by the key that they write.
OWN = "own"

# ---------------------------------------------------------------- actions


@dataclass(frozen=True, slots=True)
class Apply:
    """Perform a transaction; ``Applied`` with the same tag follows.

    Attributes:
        tag: names it.
        transaction: what is to be done.
        first: what has to be done before, or it must not be done.
    """

    tag: str
    transaction: Transaction
    first: tuple[Transaction, ...] = ()


@dataclass(frozen=True, slots=True)
class Look:
    """Change what is followed."""

    wide: bool
    without: frozenset[str]


@dataclass(frozen=True, slots=True)
class Follow:
    """Begin a new life under this key."""

    own_key: str


@dataclass(frozen=True, slots=True)
class Probe:
    """Ask a node whether it lives; ``Probed`` follows."""

    node: str
    address: str
    port: int


@dataclass(frozen=True, slots=True)
class Complete:
    """Show the round again, with all its members.

    Attributes:
        near: only with those whom this node is to look for; ``Around`` follows.
    """

    near: bool = False


@dataclass(frozen=True, slots=True)
class LookAtParts:
    """Find out which parts of rounds there are; ``PartsSeen`` follows, if the store answers.

    Attributes:
        version: of the round's record.
    """

    version: int


@dataclass(frozen=True, slots=True)
class Notify:
    """Tell the agent."""

    notice: Notice


Action = Apply | Look | Follow | Probe | Complete | LookAtParts | Notify


# ---------------------------------------------------------------- knowledge


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why the store does not serve this node, and since when (our clock)."""

    since: float
    why: str


@dataclass(frozen=True, slots=True)
class Peer:
    """Another node as the store shows it; ``seen`` is when it first did (our clock)."""

    record: NodeRecord
    created: int
    version: int
    seen: float


@dataclass(frozen=True, slots=True)
class Slot:
    """One of the common keys: its record and version.

    An unreadable record does not displace what a running group knows to be true: the last one
    that could be read stays.
    """

    record: Record | None = None
    version: int = ABSENT
    seen: float = 0.0
    unreadable: bool = False


EMPTY = Slot()
COMMON: Mapping[str, type[Record]] = MappingProxyType(
    {
        records.JOB: JobRecord,
        records.ROUND: RoundRecord,
        records.SWITCH: SwitchRecord,
        records.OUTCOME: OutcomeRecord,
    }
)


@dataclass(frozen=True, slots=True)
class State:
    """All that one node knows. Never changed in place.

    Attributes:
        policy: the settings.
        record: this node as it wants to be stored; None before it joins.
        stored, version, created: this node as the store has it.
        registered: it was in the store once in this life.
        prepared: its workers are ready, as those of a job in place must be before it asks in.
        excluded: it was told to begin anew.
        lease_lost: the lease may have ended; nothing is done until the store has shown our key.
        connected, lost_at, lost_why: contact to the store, since when there is none, and why.
        contacted: there was contact at least once.
        unwritten: since when no write was taken, and why; ``refused_at``: the last of them.
        acked_at: when the request was sent that last kept our lease, as of its loss, or of that
            of contact.
        regained_at: when contact was regained last.
        forgot_at: when the store was last found to have lost its memory.
        behind: there was no contact for so long that a life of the job that we know nothing of may
            have begun meanwhile; until the store shows a job.
        snapshot: a snapshot of the present life and width has arrived.
        wide: we follow all nodes; ``asked`` is what we last asked to follow.
        job … outcome: the common records.
        current: the round that this node runs, from ``Sealed`` until ``Left``; None outside.
        known_job, known_round: the last records seen, to give them back to a store that forgot.
        last_number: the highest number of a round ever seen, of any life of the job.
        took_part: the last life of the job that this agent ran or waited in.
        old_outcome: version of the outcome that was there when this life began: not ours.
        peers: the other nodes that are followed, by uuid.
        strange: keys among those of nodes that cannot be read, and since when.
        dead: nodes proven dead, by a probe or a later life, with the proof.
        done_seen: nodes seen to have ended well, with the round.
        draft: a large round that this node has tried to seal, and whose parts it has written.
        unseen: a round that this node has sealed, as far as it knows, and was not shown yet.
        around: the ``group`` of the round whose members this node knows as far as it is to look for
            them.
        parts: what was seen of the parts of rounds, and not acted upon yet.
        holds: transactions in flight or to be waited for, by tag, with the end of the hold.
        tries: how often in a row one was answered, by tag, of which nothing was seen yet.
        probed: last probes, by node, with when they were sent; ``answers`` the last answers, and
            ``heard`` when the probes were sent that they answer.
        missed: the nodes that this one has found out of reach, by uuid.
        doubted: the round whose members the agent wants to be looked for; 0: none.
        marks: moments that decisions refer to, by name.
        told: notices given, so that each is given once.
        suspects: joiners with whom a round failed, with strikes and when to try them again.
        notices: to be handed to the agent with the next decision.
    """

    policy: Policy
    record: NodeRecord | None = None
    stored: NodeRecord | None = None
    version: int = ABSENT
    created: int = 0
    registered: bool = False
    prepared: bool = False
    excluded: bool = False
    lease_lost: bool = False
    connected: bool = False
    lost_at: float = 0.0
    lost_why: str = ""
    contacted: bool = False
    unwritten: Trouble | None = None
    refused_at: float = float("-inf")
    acked_at: float = float("-inf")
    regained_at: float = float("-inf")
    forgot_at: float = float("-inf")
    behind: bool = False
    snapshot: bool = False
    wide: bool = False
    asked: tuple[bool, frozenset[str]] = (False, frozenset())
    job: Slot = EMPTY
    round: Slot = EMPTY
    switch: Slot = EMPTY
    outcome: Slot = EMPTY
    current: RoundRecord | None = None
    known_job: JobRecord | None = None
    known_round: RoundRecord | None = None
    last_number: int = 0
    took_part: str = ""
    old_outcome: int | None = None
    peers: Mapping[str, Peer] = field(default_factory=dict)
    strange: Mapping[str, float] = field(default_factory=dict)
    dead: Mapping[str, str] = field(default_factory=dict)
    done_seen: Mapping[str, int] = field(default_factory=dict)
    draft: RoundRecord | None = None
    unseen: RoundRecord | None = None
    around: str = ""
    parts: PartsSeen | None = None
    holds: Mapping[str, float] = field(default_factory=dict)
    tries: Mapping[str, int] = field(default_factory=dict)
    probed: Mapping[str, float] = field(default_factory=dict)
    answers: Mapping[str, str] = field(default_factory=dict)
    heard: Mapping[str, float] = field(default_factory=dict)
    missed: Mapping[str, Member] = field(default_factory=dict)
    doubted: int = 0
    marks: Mapping[str, float] = field(default_factory=dict)
    told: frozenset[str] = frozenset()
    suspects: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    notices: tuple[Notice, ...] = ()

    # -- views

    @property
    def me(self) -> str:
        """This life's uuid."""
        assert self.record is not None
        return self.record.node

    @property
    def job_record(self) -> JobRecord | None:
        """The job, if the store has one that can be read."""
        return self.job.record if isinstance(self.job.record, JobRecord) else None

    @property
    def secret(self) -> str:
        """With which nodes of this job prove themselves to each other; "" if it is not known."""
        job = self.job_record or self.known_job
        return job.secret if job else ""

    @property
    def round_record(self) -> RoundRecord | None:
        """The last round of the job's present incarnation."""
        record, job = self.round.record, self.job_record
        if isinstance(record, RoundRecord) and job and record.incarnation == job.incarnation:
            return record
        return None

    @property
    def switch_record(self) -> SwitchRecord | None:
        """The order to leave the last round, if there is one."""
        record, last = self.switch.record, self.round_record
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
        record, job = self.outcome.record, self.job_record
        if isinstance(record, OutcomeRecord) and job and record.incarnation == job.incarnation:
            return record
        return None

    @property
    def stranger(self) -> bool:
        """Whether the job in the store is another one than ours."""
        job, record = self.job_record, self.record
        return bool(job and record and job.settings and job.settings != record.settings)

    @property
    def waits(self) -> bool:
        """Whether this node waits for something that comes through the store: a round, an end."""
        return "wait" in self.marks

    def trouble(self, now: float) -> Trouble | None:
        """Why the store does not serve this node; None if it does."""
        if not self.connected:
            return Trouble(self.lost_at or self.marks.get("wait", 0.0), self.lost_why)
        # What is needed is tried again and again; an old failure is nobody's concern any more.
        return self.unwritten if now < self.refused_at + STALE else None

    def remembering(self, now: float) -> bool:
        """Whether the store forgot so lately that a running group may still have to speak."""
        return now < self.forgot_at + self.policy.settle

    @property
    def settled_at(self) -> float:
        """From when on an absent key proves that its owner's lease has ended."""
        return max((self.regained_at, *self.strange.values())) + self.policy.settle

    def parted(self, now: float) -> bool:
        """Whether this node's goodbye is said: the store has it, or has nothing of this node."""
        if self.record is None or self.record.status != records.GONE:
            return False
        unseen = self.version == ABSENT and not self.held(OWN, now)
        return unseen or self.stored == self.record

    def held(self, tag: str, now: float) -> bool:
        """Whether a transaction with this tag is in flight, or must wait."""
        return self.holds.get(tag, float("-inf")) > now

    def since(self, mark: str, now: float) -> float:
        """Seconds since the mark was set; 0 if it is not."""
        return now - self.marks.get(mark, now)

    def marked(self, mark: str, now: float) -> State:
        """With the mark set to ``now``, unless it is set already."""
        return self if mark in self.marks else replace(self, marks={**self.marks, mark: now})

    def unmarked(self, *marks: str) -> State:
        """Without these marks."""
        if not any(mark in self.marks for mark in marks):
            return self
        return replace(self, marks={k: v for k, v in self.marks.items() if k not in marks})

    def tell(self, notice: Notice, once: str = "") -> State:
        """With a notice for the agent; with ``once``, only if none of that name was given."""
        if once and once in self.told:
            return self
        told = self.told | {once} if once else self.told
        return replace(self, notices=(*self.notices, notice), told=told)
