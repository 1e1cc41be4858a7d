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
        first: transactions that must have succeeded before it.
        also: further tags, if it does the work of several; ``Applied`` follows for each.
    """

    tag: str
    transaction: Transaction
    first: tuple[Transaction, ...] = ()
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Look:
    """Change which keys of the store this node follows; see ``Store.look``."""

    wide: bool
    without: frozenset[str]


@dataclass(frozen=True, slots=True)
class Follow:
    """Register again, as a new node with this key; see ``Store.follow``."""

    own_key: str


@dataclass(frozen=True, slots=True)
class Probe:
    """Ask a node directly whether it is alive; ``Probed`` follows."""

    node: str
    address: str
    port: int


@dataclass(frozen=True, slots=True)
class ReadMembers:
    """Read the members that the round's record does not name; the round is then shown again.

    Attributes:
        sample: only those members that this node probes are needed; ``SampleKnown`` follows.
    """

    sample: bool = False


@dataclass(frozen=True, slots=True)
class ListParts:
    """List all parts of rounds in the store; ``PartsSeen`` follows, if the store answers.

    Attributes:
        version: of the round's record.
    """

    version: int


@dataclass(frozen=True, slots=True)
class Notify:
    """Pass a notice to the agent."""

    notice: Notice


Action = ApplyTransaction | Look | Follow | Probe | ReadMembers | ListParts | Notify
