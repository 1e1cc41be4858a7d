"""The record of a round, and of its members in parts if there are many of them.

All members of a round have read the same record, so all of them know who takes part, in which
order, and where the round's TCPStore is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from elastic_runtime.protocol.records import Record


@dataclass(frozen=True, slots=True)
class Member:
    """One node of a round; its place in the list is its group rank.

    ``workers`` is how many take part; ``store_port`` is where it would host a later round's store;
    ``life`` is as in ``NodeRecord``.
    """

    node: str
    name: str
    address: str
    workers: int
    probe_port: int = 0
    store_port: int = 0
    life: int = 0


@dataclass(frozen=True, slots=True)
class Budget:
    """How much of its failure budget the job has used, carried from round to round.

    Attributes:
        failures: failures of user code so far.
        fruitless: rounds in a row, of any class of fault, without progress.
        best_step: the highest step ever reported; -1: none.
        signature: the signature of the last failure.
        longest: the longest worker lifetime so far, in seconds, for scripts that report no steps.
        killed, lost, planned: rounds that ended so; they cost nothing and are only shown.
        best_inner: the most inner steps after ``best_step`` that a rank has made alone.
    """

    failures: int = 0
    fruitless: int = 0
    best_step: int = -1
    signature: str = ""
    longest: float = 0.0
    killed: int = 0
    lost: int = 0
    planned: int = 0
    best_inner: int = 0

    @property
    def restarts(self) -> dict[str, int]:
        """How many rounds have come to their end, by what ended them."""
        return {
            "failed": self.failures,
            "killed": self.killed,
            "lost": self.lost,
            "planned": self.planned,
        }


@dataclass(frozen=True, slots=True)
class RoundRecord(Record):
    """One agreed membership.

    The store has a small round in one record. Of a large one it has the first members here, and
    all of them in parts under ``group`` (see ``rendezvous.core.round_parts``): n nodes that each
    read n members would read n² of them. So a node may know only some of the members, itself among
    them if it is one.

    Attributes:
        number: grows by one with every round of the job, over all its incarnations.
        incarnation: that of the job that it belongs to.
        members: the nodes in rank order, as far as they are known.
        store_port: port of the round's TCPStore on the first member's address.
        reason: why it was formed, for people.
        budget: the job's budget when it was sealed.
        sealed_by: uuid of the leader that wrote it.
        survivors: how many members, the first ones, were in the round before.
        group: where all members are, if they are not here: what follows ``group/``.
        parts: in how many parts.
        nodes: how many members there are; 0: as many as are known.
        workers: how many workers they have; 0: as many as those that are known.
        ranks: group ranks of the known members; none: their places in the list.
        firsts: the global rank of the first worker of each known member, if ``ranks`` are given.
    """

    kind: ClassVar[str] = "round"

    number: int
    incarnation: str
    members: tuple[Member, ...]
    store_port: int
    reason: str
    budget: Budget = field(default_factory=Budget)
    sealed_by: str = ""
    survivors: int = 0
    group: str = ""
    parts: int = 0
    nodes: int = 0
    workers: int = 0
    ranks: tuple[int, ...] = ()
    firsts: tuple[int, ...] = ()
    _places: dict[str, int] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        places = {member.node: place for place, member in enumerate(self.members)}
        object.__setattr__(self, "_places", places)

    @property
    def version(self) -> int:
        """2 with parts: a program without them would take the first members for all."""
        return 2 if self.group else 1

    def check(self) -> None:
        """A round has a number and members, each once."""
        idle = any(member.workers < 1 for member in self.members)
        if self.number < 1 or not self._places or len(self._places) < len(self.members) or idle:
            raise ValueError("its number or its members are impossible")
        apart = len(self.ranks) == len(self.firsts) == len(self.members)
        if self.group and self.parts < 1:
            raise ValueError("its members are not in the store")
        if (self.ranks or self.firsts) and not (apart and max(self.ranks) < self.nodes):
            raise ValueError("its ranks are impossible")

    @property
    def whole(self) -> bool:
        """Whether all members are known."""
        return len(self.members) >= self.nodes

    @property
    def size(self) -> int:
        """How many members the round has."""
        return self.nodes or len(self.members)

    @property
    def world_size(self) -> int:
        """How many workers the round has."""
        return self.workers or sum(member.workers for member in self.members)

    @property
    def identity(self) -> tuple[object, ...]:
        """Alike for what two nodes know of one round, however much that is."""
        return self.number, self.incarnation, self.store_port, self.group or self.members

    def rank_of(self, node: str) -> int:
        """The group rank of a node, -1 if it is not known to be a member."""
        place = self._places.get(node, -1)
        return self.ranks[place] if self.ranks and place >= 0 else place

    def member(self, group_rank: int) -> Member:
        """The member with this group rank.

        Raises:
            LookupError: there is none, or this node does not know of it.
        """
        return self.members[self._place(group_rank)]

    def first_worker(self, group_rank: int) -> int:
        """The global rank of the first worker of the member with this group rank.

        Raises:
            LookupError: this node does not know of that member.
        """
        if self.ranks:
            return self.firsts[self._place(group_rank)]
        return sum(member.workers for member in self.members[:group_rank])

    def _place(self, group_rank: int) -> int:
        if not self.ranks:
            return group_rank
        if group_rank not in self.ranks:
            raise LookupError(f"round {self.number}: group rank {group_rank} is not known here")
        return self.ranks.index(group_rank)


@dataclass(frozen=True, slots=True)
class GroupRecord(Record):
    """Some of the members of a large round.

    Attributes:
        members: in rank order.
        ranks: their group ranks.
        firsts: the global rank of the first worker of each.
    """

    kind: ClassVar[str] = "group"

    members: tuple[Member, ...]
    ranks: tuple[int, ...]
    firsts: tuple[int, ...]

    @property
    def version(self) -> int:
        """Rounds in parts came with the second version."""
        return 2

    def check(self) -> None:
        """Each member has a rank."""
        if not len(self.members) == len(self.ranks) == len(self.firsts):
            raise ValueError("its ranks are impossible")
