"""Notices: what the rendezvous reports to the agent of its node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic_runtime.protocol.records import OutcomeRecord
    from elastic_runtime.protocol.round_records import RoundRecord


@dataclass(frozen=True, slots=True)
class Sealed:
    """This node is a member of a new round."""

    round: RoundRecord
    group_rank: int


@dataclass(frozen=True, slots=True)
class Switch:
    """Leave the round: at once if it is broken, at a step boundary otherwise.

    Attributes:
        round: the round's number.
        broken: it cannot go on.
        reason: for people.
        grows: it is for more nodes or workers: in place, not if ``train`` has returned.
    """

    round: int
    broken: bool
    reason: str
    grows: bool = False


@dataclass(frozen=True, slots=True)
class Excluded:
    """The job continued without this node: stop the workers, then join again as a new node."""

    reason: str


@dataclass(frozen=True, slots=True)
class Surveyed:
    """This node has probed the other members of its round.

    Attributes:
        round: the round's number.
        missed: the names of those that it does not reach.
        busy: the names of those with a worker that is busy with something else than training.
    """

    round: int
    missed: tuple[str, ...]
    busy: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """The job is over."""

    outcome: OutcomeRecord


@dataclass(frozen=True, slots=True)
class Prepare:
    """The job recovers in place: the workers must be ready before this node registers."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """No round yet, and why; sent when the reason changes.

    Attributes:
        reason: for people.
        have, minimum, maximum: how many nodes have registered, and the bounds.
        outside: the others train, and this node alone waits.
    """

    reason: str
    have: int
    minimum: int
    maximum: int
    outside: bool = False


@dataclass(frozen=True, slots=True)
class Conflict:
    """Another live job holds this run id, or this node does not fit the job."""

    message: str


@dataclass(frozen=True, slots=True)
class Fenced:
    """No contact with the store for so long that others may continue without this node: its workers
    are to be stopped."""

    reason: str


@dataclass(frozen=True, slots=True)
class StoreState:
    """The store was lost (``up`` False), answers again, or has lost all its data (``forgot``)."""

    up: bool
    why: str = ""
    forgot: bool = False
    refused: bool = False


@dataclass(frozen=True, slots=True)
class StoreTrouble:
    """The store still does not serve this node; repeated from time to time.

    Attributes:
        why: for people.
        seconds: for how long.
    """

    why: str
    seconds: float


@dataclass(frozen=True, slots=True)
class StoreTimeout:
    """This node has waited for too long without being served by the store: end."""

    why: str


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record in the store cannot be used; it is ignored."""

    key: str
    why: str


Notice = (
    Sealed
    | Switch
    | Excluded
    | Surveyed
    | Ended
    | Prepare
    | Waiting
    | Conflict
    | Fenced
    | StoreState
    | StoreTrouble
    | StoreTimeout
    | BadRecord
)
