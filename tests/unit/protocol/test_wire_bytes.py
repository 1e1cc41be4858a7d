"""The bytes of what is kept in the store and said on the channels, which other versions read.

A byte that changes here is a change of the format: a job whose agents run different versions would
not agree on it. What was written before must be read for ever.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_runtime.protocol import messages
from elastic_runtime.protocol.records import (
    EventRecord,
    FaultReport,
    JobRecord,
    NodeRecord,
    OutcomeRecord,
    Record,
    SwitchRecord,
)
from elastic_runtime.protocol.round_records import Budget, GroupRecord, Member, RoundRecord
from elastic_runtime.protocol.snapshot_requests import SnapshotMemory, SnapshotRequest

FAULT = FaultReport(
    3, "failed", "no räum", 5, -9, "ValueError: x", "line 1\nline 2", 100, 33.5, True, 6
)
# What such a report is in the records that hold it, and what these members are.
FAULT_DATA = (
    b'{"round":3,"kind":"failed","reason":"no r\\u00e4um","rank":5,"exit_code":-9,'
    b'"signature":"ValueError: x","traceback":"line 1\\nline 2","step":100,'
    b'"lifetime":33.5,"consequence":true,"inner":6}'
)
MEMBERS = (Member("aa", "node0", "10.0.0.1", 8), Member("bb", "node1", "::1", 4, 1, 2, 3))
AA_DATA = (
    b'{"node":"aa","name":"node0","address":"10.0.0.1","workers":8,"probe_port":0,"store_port":0,'
    b'"life":0}'
)
BB_DATA = (
    b'{"node":"bb","name":"node1","address":"::1","workers":4,"probe_port":1,"store_port":2,'
    b'"life":3}'
)

RECORDS: list[tuple[Record, bytes]] = [
    (
        JobRecord("life", 1, 2, 1, 2),
        (
            b'{"v":1,"kind":"job","incarnation":"life","min_nodes":1,"max_nodes":2,"launch_min":1,'
            b'"launch_max":2,"node_unit":1,"entry":"","in_place":false,"first_round":0,'
            b'"settings":"","secret":"","invocation":"","protocol":"","release":""}'
        ),
    ),
    (
        JobRecord("life", 1, 2, 1, 4, 2, "train.py", True, 6, "f00", "s3cret", "run", "5", "0.1.0"),
        (
            b'{"v":1,"kind":"job","incarnation":"life","min_nodes":1,"max_nodes":2,"launch_min":1,'
            b'"launch_max":4,"node_unit":2,"entry":"train.py","in_place":true,"first_round":6,'
            b'"settings":"f00","secret":"s3cret","invocation":"run","protocol":"5",'
            b'"release":"0.1.0"}'
        ),
    ),
    (
        NodeRecord("aa", "node0", "10.0.0.1", 8, 1, 2, "f00"),
        (
            b'{"v":1,"kind":"node","node":"aa","name":"node0","address":"10.0.0.1","workers":8,'
            b'"probe_port":1,"store_port":2,"settings":"f00","status":"in","incarnation":"",'
            b'"left":0,"done_round":0,"step":-1,"fault":null,"life":0,"checked":0,'
            b'"unreachable":[],"rank":-1,"torch":"","regroup":"","full":0,"returned":0,'
            b'"topology":""}'
        ),
    ),
    (
        NodeRecord(
            *("aa", "node0", "::1", 8, 1, 2, "f00", "gone", "life", 3, 2, 100, FAULT, 7, 4),
            *(("bb",), 1, "2.15.0", "rebuild", 2, 3, "z/räck"),
        ),
        (
            b'{"v":1,"kind":"node","node":"aa","name":"node0","address":"::1","workers":8,'
            b'"probe_port":1,"store_port":2,"settings":"f00","status":"gone","incarnation":"life",'
            b'"left":3,"done_round":2,"step":100,"fault":%b,"life":7,"checked":4,'
            b'"unreachable":["bb"],"rank":1,"torch":"2.15.0","regroup":"rebuild","full":2,'
            b'"returned":3,"topology":"z/r\\u00e4ck"}' % FAULT_DATA
        ),
    ),
    (
        RoundRecord(1, "life", MEMBERS[:1], 29500, "the job began"),
        (
            b'{"v":1,"kind":"round","number":1,"incarnation":"life","members":[%b],'
            b'"store_port":29500,"reason":"the job began","budget":{"failures":0,"fruitless":0,'
            b'"best_step":-1,"signature":"","longest":0.0,"killed":0,"lost":0,"planned":0,'
            b'"best_inner":0},"sealed_by":"","survivors":0,"group":"","parts":0,"nodes":0,'
            b'"workers":0,"ranks":[],"firsts":[]}' % AA_DATA
        ),
    ),
    (
        RoundRecord(
            9, "life", MEMBERS, 29500, "é €", Budget(1, 2, 3, "sig", 1e16, 4, 5, 6, 7), "aa", 1
        ),
        (
            b'{"v":1,"kind":"round","number":9,"incarnation":"life","members":[%b,%b],'
            b'"store_port":29500,"reason":"\\u00e9 \\u20ac","budget":{"failures":1,"fruitless":2,'
            b'"best_step":3,"signature":"sig","longest":1e+16,"killed":4,"lost":5,"planned":6,'
            b'"best_inner":7},"sealed_by":"aa","survivors":1,"group":"","parts":0,"nodes":0,'
            b'"workers":0,"ranks":[],"firsts":[]}' % (AA_DATA, BB_DATA)
        ),
    ),
    (
        RoundRecord(9, "life", MEMBERS, 1, "", Budget(), "", 0, "g1", 3, 8, 64, (1, 4), (8, 32)),
        (
            b'{"v":2,"kind":"round","number":9,"incarnation":"life","members":[%b,%b],'
            b'"store_port":1,"reason":"","budget":{"failures":0,"fruitless":0,"best_step":-1,'
            b'"signature":"","longest":0.0,"killed":0,"lost":0,"planned":0,"best_inner":0},'
            b'"sealed_by":"","survivors":0,"group":"g1","parts":3,"nodes":8,"workers":64,'
            b'"ranks":[1,4],"firsts":[8,32]}' % (AA_DATA, BB_DATA)
        ),
    ),
    (
        GroupRecord(MEMBERS, (1, 4), (8, 32)),
        (
            b'{"v":2,"kind":"group","members":[%b,%b],"ranks":[1,4],"firsts":[8,32]}'
            % (AA_DATA, BB_DATA)
        ),
    ),
    (
        SwitchRecord(3, "life", True, 'a \\ "quote"'),
        (
            b'{"v":1,"kind":"switch","round":3,"incarnation":"life","broken":true,'
            b'"reason":"a \\\\ \\"quote\\"","survey":false,"roll":false,"grows":false}'
        ),
    ),
    (
        SwitchRecord(3, "life", False, "a file \udce9", True, True, True),
        (
            b'{"v":1,"kind":"switch","round":3,"incarnation":"life","broken":false,'
            b'"reason":"a file \\udce9","survey":true,"roll":true,"grows":true}'
        ),
    ),
    (
        OutcomeRecord("life", True, 0, ""),
        (
            b'{"v":1,"kind":"outcome","incarnation":"life","succeeded":true,"exit_code":0,'
            b'"reason":"","fault":null,"node":""}'
        ),
    ),
    (
        OutcomeRecord("life", False, 1, "it failed", FAULT, "node1"),
        (
            b'{"v":1,"kind":"outcome","incarnation":"life","succeeded":false,"exit_code":1,'
            b'"reason":"it failed","fault":%b,"node":"node1"}' % FAULT_DATA
        ),
    ),
    (
        EventRecord(1700000000.25, "round.sealed", 3, "node0", "round 3"),
        (
            b'{"v":1,"kind":"event","at":1700000000.25,"name":"round.sealed","round":3,'
            b'"node":"node0","text":"round 3"}'
        ),
    ),
]

MESSAGES: list[tuple[messages.Message, bytes]] = [
    (
        messages.Hello(1, 2, 3, True, 4, True, True),
        (
            b'{"kind":"hello","rank":1,"round":2,"pid":3,"drains":true,"life":4,"shielded":true,"watched":true}\n'
        ),
    ),
    (
        messages.Note("step.first", 0, 1, {"step": 3, "why": ["ä", {"b": None}], "s": 0.1}),
        (
            b'{"kind":"note","name":"step.first","rank":0,"round":1,"fields":{"step":3,'
            b'"why":["\\u00e4",{"b":null}],"s":0.1}}\n'
        ),
    ),
    (messages.Leave(2, "asked"), b'{"kind":"drain","round":2,"reason":"asked"}\n'),
    (messages.Ready(), b'{"kind":"ready"}\n'),
    (
        messages.Left(1, -1, False, "a peer is gone", True),
        (
            b'{"kind":"left","round":1,"step":-1,"planned":false,"reason":"a peer is gone",'
            b'"released":true}\n'
        ),
    ),
    (messages.Trained(4), b'{"kind":"trained","round":4}\n'),
    (messages.Returned(4), b'{"kind":"returned","round":4}\n'),
    (
        messages.Heard(True, "train.py:3", ""),
        b'{"kind":"heard","collective":true,"where":"train.py:3","busy":""}\n',
    ),
    (messages.Ask(), b'{"kind":"ask"}\n'),
    (
        messages.Enter(1, 0, 2, 0, 1, 0, 2, "h", 1, "k", [["h", 1], ["i", 2]], 7),
        (
            b'{"kind":"enter","round":1,"rank":0,"world":2,"local_rank":0,"local_world":1,'
            b'"group_rank":0,"group_world":2,"host":"h","port":1,"key":"k","spares":[["h",1],'
            b'["i",2]],"committed":7}\n'
        ),
    ),
    (messages.Nearby([["h", 1]]), b'{"kind":"nearby","places":[["h",1]]}\n'),
    (messages.Interrupt(1, "broken"), b'{"kind":"interrupt","round":1,"reason":"broken"}\n'),
    (
        messages.Change(1, "a node comes", False, True),
        b'{"kind":"change","round":1,"reason":"a node comes","goes":false,"grows":true}\n',
    ),
    (messages.Dismiss(True), b'{"kind":"dismiss","saves":true}\n'),
]

MEMORY = SnapshotMemory("/dev/shm/é", 1 << 30, "::1", 7, "node0", "m", ("z", "r"))
REQUEST = SnapshotRequest("0123456789abcdef/step-3.term-1/rank-0.distcp", 5, 1 << 40)


@pytest.mark.parametrize(("record", "data"), RECORDS, ids=lambda one: type(one).__name__)
def test_a_record_is_written_and_read_byte_by_byte(record: Record, data: bytes) -> None:
    assert record.encode() == data
    assert type(record).decode("key", data) == record


@pytest.mark.parametrize(("message", "data"), MESSAGES, ids=lambda one: type(one).__name__)
def test_a_message_is_written_and_read_byte_by_byte(message: messages.Message, data: bytes) -> None:
    assert message.encode() == data
    assert messages.decode(data) == message


def test_each_kind_of_message_is_written_down_here() -> None:
    kinds = {cls.kind for cls in messages.Message.__subclasses__()}
    assert {message.kind for message, _ in MESSAGES} == kinds


def test_what_is_said_of_snapshots_is_written_and_read_byte_by_byte() -> None:
    memory = (
        b'{"directory": "/dev/shm/\\u00e9", "limit": 1073741824, "host": "::1", "port": 7, '
        b'"node": "node0", "machine": "m", "topology": ["z", "r"]}'
    )
    request = (
        b'{"file":"0123456789abcdef/step-3.term-1/rank-0.distcp","offset":5,'
        b'"length":1099511627776}\n'
    )
    assert MEMORY.encode().encode() == memory
    assert SnapshotMemory.decode(memory.decode()) == MEMORY
    older = memory.replace(b', "topology": ["z", "r"]', b"")
    assert SnapshotMemory.decode(older.decode()) == replace(MEMORY, topology=None)
    assert REQUEST.encode() == request
    assert SnapshotRequest.decode(request) == REQUEST


def test_a_node_that_does_not_say_where_it_is_is_understood_and_one_that_says_more() -> None:
    record, data = RECORDS[2]
    older = data.replace(b',"topology":""', b"")
    assert older != data
    assert NodeRecord.decode("key", older) == record
    newer = data.replace(b"}", b',"later":1}')
    assert NodeRecord.decode("key", newer) == record
