"""What happens to one node: events of its agent, and results of its probes, reads and writes.

An agent passes an ``AgentEvent`` to ``Participant.say``. The events of a store are in
``store_contract``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from elastic_runtime.rendezvous.store_contract import StoreEvent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_runtime.protocol.records import FaultReport, NodeRecord

# ---------------------------------------------------------------- from the agent


@dataclass(frozen=True, slots=True)
class Join:
    """This node asks to be in the next round, as a new node.

    Attributes:
        store_port: where it would host the round's store.
        workers: how many workers it can take into the round; None: all.
    """

    store_port: int = 0
    workers: int | None = None


@dataclass(frozen=True, slots=True)
class LeftRound:
    """All workers of the round have ended here, or have left it.

    Attributes:
        round: its number.
        fault: why.
        store_port: where this node would host the next round's store.
        stays: it wants to be in the next round.
        workers: how many workers it can take into that; None: as many as before.
    """

    round: int
    fault: FaultReport
    store_port: int = 0
    stays: bool = True
    workers: int | None = None


@dataclass(frozen=True, slots=True)
class WorkersAvailable:
    """In place: so many workers of this node can take part in a round now.

    Attributes:
        workers: how many.
        store_port: where this node hosts the store of a round.
    """

    workers: int
    store_port: int = 0


@dataclass(frozen=True, slots=True)
class RecoversInPlace:
    """The script recovers in place: workers keep their process from round to round."""


@dataclass(frozen=True, slots=True)
class LookForMembers:
    """All workers of this round wait for each other: probe the other members.

    ``notices.Surveyed`` says what was found.
    """

    round: int


@dataclass(frozen=True, slots=True)
class TrainReturned:
    """In place: ``train`` has returned on all ranks of this round, and the script goes on."""

    round: int


@dataclass(frozen=True, slots=True)
class Done:
    """The script has ended well on this node, in this round, at this step."""

    round: int
    step: int = -1


@dataclass(frozen=True, slots=True)
class Leaving:
    """This node was asked to leave; it does so once its workers have stopped at a step boundary."""


@dataclass(frozen=True, slots=True)
class Goodbye:
    """This node leaves now; nothing runs here any longer."""


AgentEvent = (
    Join
    | LeftRound
    | WorkersAvailable
    | RecoversInPlace
    | LookForMembers
    | TrainReturned
    | Done
    | Leaving
    | Goodbye
)


@dataclass(frozen=True, slots=True)
class NewNode:
    """The agent has asked to join, as the node that ``record`` describes."""

    record: NodeRecord


# ---------------------------------------------------------------- results of probes

ALIVE = "alive"
BUSY = "busy"  # alive, and one of its workers makes no steps, as its script has said
REFUSED = "refused"  # nothing listens there
OTHER = "other"  # another agent process answers there
SILENT = "silent"  # no answer in time: no proof of anything
# A proof of death that needs no probe: a later agent process has registered under this name.
REPLACED = "replaced"


@dataclass(frozen=True, slots=True)
class Probed:
    """A probe of a node has ended, with this answer."""

    node: str
    answer: str


# ---------------------------------------------------------------- results of reads and writes


@dataclass(frozen=True, slots=True)
class SampleKnown:
    """The members of a round that this node is to probe are known now.

    Attributes:
        group: as in the round's record.
    """

    group: str


@dataclass(frozen=True, slots=True)
class PartsGone:
    """The parts with the members of the present round have been missing from the store for a while.

    Attributes:
        version: of the round's record.
        wrong: parts that are there but damaged, by key, and why.
    """

    version: int
    wrong: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartsSeen:
    """All parts of rounds that are in the store.

    Attributes:
        version: of the round's record when they were asked for.
        intact: keys of the undamaged ones.
        wrong: keys of the damaged ones.
    """

    version: int
    intact: frozenset[str] = frozenset()
    wrong: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Applied:
    """A transaction has ended.

    Attributes:
        tag: as in ``ApplyTransaction``.
        ok: whether its conditions held; None: the store did not perform it, as far as is known.
        why: the reason for that.
    """

    tag: str
    ok: bool | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Tick:
    """Only time has passed."""


Event = (
    StoreEvent
    | NewNode
    | LeftRound
    | WorkersAvailable
    | RecoversInPlace
    | LookForMembers
    | TrainReturned
    | Done
    | Leaving
    | Goodbye
    | Probed
    | SampleKnown
    | PartsGone
    | PartsSeen
    | Applied
    | Tick
)
