"""What a node can ask for: of the store, of other nodes, and of its agent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic_runtime.rendezvous.core.notices import Notice
    from elastic_runtime.rendezvous.store_contract import Transaction


@dataclass(frozen=True, slots=True)
class ApplyTransaction:
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
    """Begin anew, as the node that has this key."""

    own_key: str


@dataclass(frozen=True, slots=True)
class Probe:
    """Ask a node whether it lives; ``Probed`` follows."""

    node: str
    address: str
    port: int


@dataclass(frozen=True, slots=True)
class ReadMembers:
    """Show the round again, with the members that its record does not name.

    Attributes:
        sample: those are enough whom this node is to look for; ``SampleKnown`` follows.
    """

    sample: bool = False


@dataclass(frozen=True, slots=True)
class ListParts:
    """Find out which parts of rounds there are; ``PartsSeen`` follows, if the store answers.

    Attributes:
        version: of the round's record.
    """

    version: int


@dataclass(frozen=True, slots=True)
class Notify:
    """Tell the agent."""

    notice: Notice


Action = ApplyTransaction | Look | Follow | Probe | ReadMembers | ListParts | Notify
