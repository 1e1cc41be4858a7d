"""Events of snapshots, the copies of a job's state in the memory of its nodes.

Rank 0 reports them.
"""

from __future__ import annotations

from dataclasses import dataclass

from elastic_runtime.events.event import DEBUG, WARNING, NotedEvent


@dataclass(frozen=True)
class SnapshotTaken(NotedEvent):
    """A snapshot is whole on all nodes, so that a job can go on from it."""

    name = "snapshot.taken"
    sentence = "step {step} is in memory after {seconds}"
    shown = False

    path: str
    step: int
    bytes: int
    seconds: float
    copied: bool
    blocked: float | None = None


@dataclass(frozen=True)
class SnapshotFailed(NotedEvent):
    """A snapshot could not be taken; training goes on."""

    name = "snapshot.failed"
    level = WARNING
    sentence = "the snapshot of step {step} failed: {problem}"

    path: str
    step: int
    problem: str


@dataclass(frozen=True)
class SnapshotDiscarded(NotedEvent):
    """A snapshot was given up, mostly as the world has changed under it."""

    name = "snapshot.discarded"
    level = DEBUG
    sentence = "the snapshot of step {step} was given up: {reason}"
    shown = False

    path: str
    step: int
    reason: str


@dataclass(frozen=True)
class SnapshotOff(NotedEvent):
    """Snapshots are asked for and cannot be taken in this world; once."""

    name = "snapshot.off"
    level = WARNING
    sentence = "no snapshots are taken: {reason}"

    path: str
    reason: str


@dataclass(frozen=True)
class SnapshotRefused(NotedEvent):
    """Some node has no space for a snapshot; once for each reason."""

    name = "snapshot.refused"
    level = WARNING
    sentence = "no snapshot is taken: {problem}"

    path: str
    problem: str


@dataclass(frozen=True)
class SnapshotUncopied(NotedEvent):
    """A snapshot has no second copy, as a node could not be reached; once for each reason."""

    name = "snapshot.uncopied"
    level = WARNING
    sentence = "snapshots have no copy on another node: {problem}"

    path: str
    problem: str


@dataclass(frozen=True)
class SnapshotUnreadable(NotedEvent):
    """A node cannot say which snapshots it has, so that the job goes on from storage."""

    name = "snapshot.unreadable"
    level = WARNING
    sentence = "snapshots cannot be read, and none is used: {problem}"

    path: str
    problem: str


@dataclass(frozen=True)
class SnapshotIncomplete(NotedEvent):
    """Some of a snapshot cannot be had any more; the next older state is taken."""

    name = "snapshot.incomplete"
    level = WARNING
    sentence = "the snapshot of step {step} is not used: {problem}"

    path: str
    step: int
    problem: str
