"""Events, actions and records in a few words, for traces that a person reads."""

from __future__ import annotations

from elastic_runtime.protocol import records
from elastic_runtime.protocol.records import NodeRecord
from elastic_runtime.protocol.round_records import RoundRecord
from elastic_runtime.rendezvous.core.actions import ApplyTransaction, Notify
from elastic_runtime.rendezvous.core.membership_events import NewNode
from elastic_runtime.rendezvous.core.notices import Sealed
from elastic_runtime.rendezvous.store_contract import Changed, StoreSnapshot


def brief(thing: object) -> str:
    """An event or an action in a few words."""
    match thing:
        case ApplyTransaction(tag, transaction):
            writes = ", ".join(_brief_put(put.key, put.value) for put in transaction.puts)
            expects = ", ".join(f"{e.key}@{e.version}" for e in transaction.expects)
            deletes = f" delete {' '.join(transaction.deletes)}" if transaction.deletes else ""
            return f"Apply {tag}: {writes}{deletes} if {expects}"
        case Notify(notice):
            return f"Notify {brief(notice)}"
        case Sealed(sealed, rank):
            return f"Sealed {brief_round(sealed)} as rank {rank}"
        case NewNode(record):
            return f"NewNode {record.node}"
        case StoreSnapshot():
            found = " ".join(_brief_put(e.key, e.value) for e in thing.entries)
            wide = " wide" if thing.wide else ""
            return f"Snapshot{wide}{' FORGOT' if thing.forgot else ''} [{found}]"
        case Changed():
            found = " ".join(_brief_put(e.key, e.value) + f"@{e.version}" for e in thing.puts)
            return f"Changed [{found}] gone [{' '.join(thing.deletes)}]"
    return repr(thing)


def brief_round(sealed: RoundRecord) -> str:
    """A round in a few words."""
    members = " ".join(member.node for member in sealed.members)
    return f"{sealed.number}/{sealed.incarnation} ({members})"


def _brief_put(key: str, value: bytes) -> str:
    if value[:1] != b"{":
        return f"{key} GARBAGE"
    if key == records.ROUND:
        return f"round {brief_round(RoundRecord.decode(key, value))}"
    if key == records.SWITCH:
        switch = records.SwitchRecord.decode(key, value)
        how = "broken" if switch.broken else "planned"
        return f"switch {switch.round}/{switch.incarnation} {how}: {switch.reason}"
    if key == records.JOB:
        return f"job {records.JobRecord.decode(key, value).incarnation}"
    if key == records.OUTCOME:
        outcome = records.OutcomeRecord.decode(key, value)
        return f"outcome {outcome.incarnation} {outcome.succeeded} {outcome.reason!r}"
    if key.startswith(records.GROUP):
        return key
    node = NodeRecord.decode(key, value)
    return f"{node.node}:{node.status}/left {node.left}/done {node.done_round}"
