"""How the records of one run lie in etcd, and what is asked and answered about them: pure.

The keys of a run are ``/<prefix>/<run id>/`` + ``events/… group/… job nodes/… outcome round
switch``. In this order ``job`` and ``outcome … switch`` are two small ranges with neither
``nodes/`` nor ``events/`` nor ``group/`` in them, and ``job … switch`` is one range with all but
``events/`` and ``group/``: so a node that looks wide needs one watch, and sees each transaction in
one piece.
"""

from __future__ import annotations

import urllib.parse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_runtime.protocol.records import JOB, NODES, OUTCOME, SWITCH
from elastic_runtime.rendezvous.store_contract import Changed, StoreEntry, Transaction
from elastic_runtime.rendezvous.stores.etcd import rpc_pb2 as rpc

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

# What etcd takes in one transaction by default (``--max-txn-ops``).
MAX_OPERATIONS = 128
# So many nodes that come after the oldest one are noted.
_MORE_OLD_NODES = 4


@dataclass(frozen=True, slots=True)
class Range:
    """The keys from ``begin`` up to, not including, ``end``; without ``end``, the one key."""

    begin: bytes
    end: bytes = b""

    def __contains__(self, key: bytes) -> bool:
        return self.begin <= key < self.end if self.end else key == self.begin

    def read(self, revision: int = 0, keys_only: bool = False) -> rpc.RangeRequest:
        """A request that reads it, as it was at a revision (0: now)."""
        return rpc.RangeRequest(
            key=self.begin, range_end=self.end, revision=revision, keys_only=keys_only
        )


@dataclass(frozen=True, slots=True)
class WatchScope:
    """What is to be followed: the common keys, the own one, and all nodes or the oldest.

    Attributes:
        own: the node's own key.
        wide: all nodes.
        without: keys of nodes that are not to be taken for the oldest.
    """

    own: str
    wide: bool = False
    without: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class OldNode:
    """One of the oldest nodes, as it was seen once: its key, and the revision that created it.

    Nodes that come later are younger. So the first of the oldest ones that is there still, and
    has not come a second time, is the oldest of all; no request has to sort them again.
    When a leader dies, each node asks who is the oldest now, and for that etcd goes through all
    nodes: a thousand of them at the same moment kept it busy for seconds.
    """

    key: str
    created: int


@dataclass(frozen=True, slots=True)
class LookResult:
    """What a look has shown.

    Attributes:
        revision: the moment of the store that it shows.
        entries: in order of creation.
        followed: what is to be watched from then on.
        leader: key of the other node that is followed; "" if there is none, or all are.
        old_nodes: the oldest nodes in their order, of which the first that is left is the oldest.
    """

    revision: int
    entries: tuple[StoreEntry, ...]
    followed: tuple[Range, ...]
    leader: str = ""
    old_nodes: tuple[OldNode, ...] = ()


class RunKeys:
    """The keys of one run.

    Args:
        prefix: path under which all runs are kept.
        run_id: the run; any text.
    """

    def __init__(self, prefix: str, run_id: str) -> None:
        # A slash in a run id must not make one run a part of another.
        run = urllib.parse.quote(run_id, safe="")
        self._root = f"/{prefix.strip('/')}/{run}/" if prefix.strip("/") else f"/{run}/"

    def absolute(self, key: str) -> bytes:
        """The key as etcd has it."""
        return (self._root + key).encode()

    def relative(self, key: bytes) -> str:
        """The key as the rest of the program has it."""
        return key.decode(errors="replace").removeprefix(self._root)

    def under(self, prefix: str) -> Range:
        """All keys that begin with ``prefix``."""
        begin = self.absolute(prefix)
        return Range(begin, begin[:-1] + bytes((begin[-1] + 1,)))

    def one(self, key: str) -> Range:
        """This key alone."""
        return Range(self.absolute(key))

    def span(self, first: str, last: str) -> Range:
        """The keys from ``first`` to ``last``, both included."""
        return Range(self.absolute(first), self.absolute(last) + b"\0")

    def entry(self, kv: rpc.KeyValue) -> StoreEntry:
        """A pair of etcd's as an entry.

        Keys that one transaction creates share their ``created``; nodes never do, as each
        registers itself.
        """
        return StoreEntry(self.relative(kv.key), kv.value, kv.create_revision, kv.mod_revision)

    # ------------------------------------------------------------ looking

    def always(self, scope: WatchScope) -> tuple[Range, ...]:
        """What is followed whatever a look shows."""
        if scope.wide:
            return (self.span(JOB, SWITCH),)
        return (self.one(JOB), self.span(OUTCOME, SWITCH), self.one(scope.own))

    def look(
        self, scope: WatchScope, old_nodes: Sequence[OldNode] = ()
    ) -> tuple[rpc.RangeRequest, ...]:
        """What to read, as of one moment, of all that is to be followed; see ``seen``."""
        reads = [what.read() for what in self.always(scope)]
        if not scope.wide:
            nodes = self.under(NODES)
            oldest = rpc.RangeRequest(
                key=nodes.begin,
                range_end=nodes.end,
                limit=len(scope.without) + 1 + _MORE_OLD_NODES,
                sort_order=rpc.RangeRequest.ASCEND,
                sort_target=rpc.RangeRequest.CREATE,
            )
            first = oldest_of(scope, old_nodes)
            reads.append(self.one(first.key).read() if first else oldest)
        return tuple(reads)

    def seen(
        self,
        answers: Sequence[rpc.RangeResponse],
        scope: WatchScope,
        old_nodes: Sequence[OldNode] = (),
    ) -> LookResult | None:
        """What the answers to ``look`` show; None: nothing, as the oldest node is gone."""
        shown = [[self.entry(kv) for kv in answer.kvs] for answer in answers]
        followed, leader = self.always(scope), ""
        if not scope.wide:
            oldest = [OldNode(entry.key, entry.created) for entry in shown[-1]]
            first = oldest_of(scope, old_nodes)
            if first is None:
                old_nodes = oldest
            elif oldest != [first]:
                return None
            nodes = [entry for entry in shown.pop() if entry.key not in scope.without]
            if nodes and nodes[0].key != scope.own:
                leader = nodes[0].key
                followed = (*followed, self.one(leader))
                shown.append(nodes[:1])
        entries = sorted(
            (entry for group in shown for entry in group), key=lambda e: (e.created, e.key)
        )
        return LookResult(
            answers[0].header.revision, tuple(entries), followed, leader, tuple(old_nodes)
        )

    def changes(self, events: Iterable[rpc.Event]) -> Iterator[Changed]:
        """The events as changes in which no key is deleted after it was put."""
        puts: list[StoreEntry] = []
        deletes: list[str] = []
        for event in events:
            if event.type == rpc.Event.PUT:
                puts.append(self.entry(event.kv))
                continue
            key = self.relative(event.kv.key)
            if any(entry.key == key for entry in puts):
                yield Changed(tuple(puts), tuple(deletes))
                puts, deletes = [], []
            deletes.append(key)
        if puts or deletes:
            yield Changed(tuple(puts), tuple(deletes))

    # ------------------------------------------------------------ writing

    def writes(self, transaction: Transaction, lease: int) -> list[rpc.TxnRequest]:
        """The requests that perform a transaction.

        The first carries the conditions, all puts and what deletes fit; if it succeeds, the
        others finish the deletes.

        Raises:
            ValueError: it does not fit.
        """
        if max(len(transaction.puts), len(transaction.expects)) > MAX_OPERATIONS:
            raise ValueError(f"etcd takes at most {MAX_OPERATIONS} conditions or writes at once")
        operations = [
            rpc.RequestOp(
                request_put=rpc.PutRequest(
                    key=self.absolute(put.key), value=put.value, lease=lease if put.leased else 0
                )
            )
            for put in transaction.puts
        ]
        operations += [
            rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=self.absolute(key)))
            for key in dict.fromkeys(transaction.deletes)
        ]
        # A key that does not exist has the revision 0, which is what ABSENT says.
        compare = [
            rpc.Compare(
                key=self.absolute(expect.key),
                target=rpc.Compare.MOD,
                result=rpc.Compare.EQUAL,
                mod_revision=expect.version,
            )
            for expect in transaction.expects
        ]
        batches = [
            operations[at : at + MAX_OPERATIONS]
            for at in range(0, max(len(operations), 1), MAX_OPERATIONS)
        ]
        first, *rest = batches
        return [
            rpc.TxnRequest(compare=compare, success=first),
            *(rpc.TxnRequest(success=batch) for batch in rest),
        ]


def oldest_of(scope: WatchScope, old_nodes: Sequence[OldNode]) -> OldNode | None:
    """The oldest node, if it is there still; None: it is not known."""
    return next((node for node in old_nodes if node.key not in scope.without), None)


def with_read_back(request: rpc.TxnRequest) -> rpc.TxnRequest:
    """The same transaction, which shows the keys that it would have written if it fails."""
    again = rpc.TxnRequest()
    again.CopyFrom(request)
    for operation in request.success:
        put = operation.HasField("request_put")
        key = (operation.request_put if put else operation.request_delete_range).key
        again.failure.append(rpc.RequestOp(request_range=Range(key).read()))
    return again


def took_effect(request: rpc.TxnRequest, answer: rpc.TxnResponse) -> bool:
    """Whether an earlier try of ``with_read_back(request)`` did what the request says.

    True if all that it puts is there, written at one moment, and all that it deletes is gone.
    """
    written = set()
    for operation, shown in zip(request.success, answer.responses, strict=True):
        kvs = shown.response_range.kvs
        if operation.HasField("request_put"):
            if not kvs or kvs[0].value != operation.request_put.value:
                return False
            written.add(kvs[0].mod_revision)
        elif kvs:
            return False
    return len(request.success) > 0 and len(written) <= 1


def recall(followed: Mapping[Range, int]) -> tuple[rpc.RangeRequest, ...]:
    """What to read to learn what the store remembers of each range, as of the given revision."""
    return tuple(what.read(revision, keys_only=True) for what, revision in followed.items())
