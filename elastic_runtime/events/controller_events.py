"""Events of the Kubernetes controller. They are in its log, not among a cluster's Events."""

from __future__ import annotations

from dataclasses import dataclass

from elastic_runtime.events.event import ERROR, WARNING, Event


@dataclass(frozen=True)
class ControllerWaiting(Event):
    """The API server cannot be reached at the start, or lacks the ElasticJob; tried again."""

    name = "controller.waiting"
    level = WARNING
    sentence = "waiting: {reason}"

    reason: str


@dataclass(frozen=True)
class ControllerReady(Event):
    """The controller has begun to work."""

    name = "controller.ready"
    sentence = "looks after the ElasticJobs of namespaces: {namespace}"

    namespace: str


@dataclass(frozen=True)
class ControllerFailed(Event):
    """The controller cannot go on. The command's last line says it to people."""

    name = "controller.failed"
    level = ERROR
    sentence = "{reason}"
    shown = False

    reason: str


@dataclass(frozen=True)
class ControllerDecided(Event):
    """The controller changes something in the cluster for a job."""

    name = "controller.decided"
    sentence = "{job}: {reason}"

    job: str
    reason: str


@dataclass(frozen=True)
class ControllerRefused(Event):
    """The API server has refused a change, or something else has changed first; tried again."""

    name = "controller.refused"
    level = WARNING
    sentence = "{job}: {reason} (in {delay})"

    job: str
    reason: str
    delay: float


@dataclass(frozen=True)
class ControllerError(Event):
    """A defect, or an answer that nobody expects, while a job is looked after; tried again."""

    name = "controller.error"
    level = ERROR
    sentence = "{job}: {reason} (trying again in {delay})"

    job: str
    reason: str
    delay: float


@dataclass(frozen=True)
class ControllerEventLost(Event):
    """The API server has not taken an Event for a job."""

    name = "controller.event_lost"
    level = WARNING
    sentence = "{job}: an event was not taken: {reason}"

    job: str
    reason: str


@dataclass(frozen=True)
class ControllerWatchBroken(Event):
    """A watch has ended by an error; it begins again."""

    name = "controller.watch_broken"
    level = WARNING
    sentence = "the watch of {kind} broke: {reason}"

    kind: str
    reason: str


@dataclass(frozen=True)
class LeaseHeld(Event):
    """This controller holds the Lease, and is the one that works."""

    name = "lease.held"
    sentence = "this controller is the leader"

    identity: str


@dataclass(frozen=True)
class LeaseWaiting(Event):
    """Another controller holds the Lease; this one waits until it ends."""

    name = "lease.waiting"
    sentence = "{holder} is the leader; this controller waits"

    holder: str


@dataclass(frozen=True)
class LeaseFailed(Event):
    """The Lease could not be taken, renewed or given back, or another controller has it now."""

    name = "lease.failed"
    level = WARNING
    sentence = "the Lease: {reason}"

    reason: str
