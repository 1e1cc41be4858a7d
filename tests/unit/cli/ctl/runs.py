"""A run of two nodes in its third round, as its records say it."""

from __future__ import annotations

from elastic_runtime.cli.ctl.run_report import RunRecords
from elastic_runtime.protocol.records import JobRecord, NodeRecord
from elastic_runtime.protocol.round_records import Budget, Member, RoundRecord

JOB = JobRecord("life", 1, 2, 1, 3, entry="train.py")
A = NodeRecord("a1", "a", "10.0.0.1", 2, probe_port=7, incarnation="life", step=40)
B = NodeRecord("b1", "b", "10.0.0.2", 1, incarnation="life")
C = NodeRecord("c1", "c", "10.0.0.3", 1)
ROUND = RoundRecord(
    3,
    "life",
    (Member("a1", "a", "10.0.0.1", 2), Member("b1", "b", "10.0.0.2", 1)),
    29000,
    "node d lost",
    Budget(failures=1, killed=2, lost=3, planned=4),
)
RUNNING = RunRecords(job=JOB, round=ROUND, nodes={"a1": A, "b1": B})
