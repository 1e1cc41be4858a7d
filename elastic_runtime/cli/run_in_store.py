"""A run in a store, for whoever is none of its nodes: how it has ended, and its bounds.

Nothing here imports torch with etcd, so that commands answer at once.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from elastic_runtime.endpoint import C10D
from elastic_runtime.errors import RecordError, StoreUnavailable, StoreUnreachable, UsageError
from elastic_runtime.protocol.records import (
    GONE,
    JOB,
    NODES,
    OUTCOME,
    JobRecord,
    NodeRecord,
    OutcomeRecord,
)
from elastic_runtime.rendezvous.store_contract import (
    Changed,
    Expect,
    Put,
    StoreSnapshot,
    Transaction,
)
from elastic_runtime.rendezvous.stores.open_store import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elastic_runtime.config import Endpoint
    from elastic_runtime.rendezvous.store_contract import Store, StoreEntry, StoreEvent

C10D_RUN = "none"  # torchrun's, see cli.run.store_target
_TTL = 10.0  # nothing here takes a lease, but a store wants to know
_CONNECT = 5.0
_OWN_KEY = "elasticctl"  # a key of our own to follow, which is never written
_TRIES = 5
_ENDS_WITH_THE_JOB = (
    "Such a store ends with the job that hosts it: the last lines of elastic-run say how it ended"
)


@dataclass(frozen=True)
class RunInStore:
    """A run, and the store that it is in."""

    endpoint: Endpoint
    run_id: str

    @contextmanager
    def store(self) -> Iterator[Store]:
        """Opens the store and closes it again.

        Raises:
            StoreUnreachable: it does not answer, or refuses us.
        """
        # It is never to be hosted from here, even if the endpoint names this machine.
        endpoint = replace(self.endpoint, hosted_here=True)
        try:
            store = open_store(endpoint, self.run_id, _TTL, _CONNECT)
            store.start(_OWN_KEY, lambda event: None)
            try:
                yield store
            finally:
                store.close()
        except StoreUnavailable as error:
            hint = "is --rdzv-endpoint right, and is it up?"
            if endpoint.backend == C10D:
                hint += f" {_ENDS_WITH_THE_JOB}"
            raise StoreUnreachable(f"{error}; {hint}") from None

    def outcome(self) -> OutcomeRecord | None:
        """How it has ended, as far as its store knows; None if it has not, or none answers."""
        with suppress(StoreUnreachable, RecordError), self.store() as store:
            for entry in store.read(OUTCOME):
                if entry.key == OUTCOME:
                    return OutcomeRecord.decode(entry.key, entry.value)
        return None

    def has_nodes(self) -> bool | None:
        """Whether a node is in it that has not left; None: its store does not answer."""
        with suppress(StoreUnreachable, RecordError), self.store() as store:
            found = [NodeRecord.decode(one.key, one.value) for one in store.read(NODES)]
            return any(node.status != GONE for node in found)
        return None

    def rescale(self, low: int | None, high: int | None) -> JobRecord:
        """Changes its bounds; None leaves one as it is.

        Returns:
            The job with its present bounds.

        Raises:
            UsageError: there is no such run, it has ended, or no world fits the bounds.
            StoreUnreachable: the store does not answer.
        """
        with self.store() as store:
            for _ in range(_TRIES):
                entry, job = self._live_job(store)
                scaled = scaled_job(job, low, high)
                change = Transaction((Expect(JOB, entry.version),), (Put(JOB, scaled.encode()),))
                if store.apply(change):
                    return scaled
        raise StoreUnreachable(f"the job record of {self.run_id!r} keeps changing: try again")

    def _live_job(self, store: Store) -> tuple[StoreEntry, JobRecord]:
        entries = {entry.key: entry for entry in store.read("")}
        if JOB not in entries:
            raise self.unknown()
        job = JobRecord.decode(JOB, entries[JOB].value)
        if OUTCOME in entries:
            try:
                outcome = OutcomeRecord.decode(OUTCOME, entries[OUTCOME].value)
            except RecordError:
                return entries[JOB], job  # the group ignores it as well
            if outcome.incarnation == job.incarnation:
                raise UsageError(f"the run {self.run_id!r} has ended: {outcome.reason}")
        return entries[JOB], job

    def status_command(self) -> str:
        """What to type to see its state."""
        return f"elasticctl status --rdzv-endpoint {self.endpoint} --run-id {self.run_id}"

    def unknown(self) -> UsageError:
        """That the store has no such run."""
        if self.run_id == C10D_RUN:  # which no user has typed
            return self.unnamed()
        return UsageError(
            f"there is no run {self.run_id!r} in {self.endpoint}; "
            "elasticctl runs lists those that there are"
        )

    def unnamed(self) -> UsageError:
        """That nobody has said which run is meant."""
        return UsageError(
            f"which run of {self.endpoint}? Name it with --run-id; elasticctl runs lists them"
        )


class FollowedRun:
    """How a run ends, as its store says while it goes on.

    A store that the nodes have moved to one of them ends with the job, and is asked too late then.

    Args:
        run: the run; what has come of it before does not count.
    """

    def __init__(self, run: RunInStore) -> None:
        self._run = run
        self._heard: OutcomeRecord | None = None
        self._seen = False
        self.before = run.outcome()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Follows the run while the block runs."""
        if self._run.endpoint.backend != C10D:  # it stays, and can be asked at any time
            yield
            return
        endpoint = replace(self._run.endpoint, hosted_here=True)
        store = open_store(endpoint, self._run.run_id, _TTL, _CONNECT)
        store.start(_OWN_KEY, self._hear)
        try:
            yield
        finally:
            store.close()

    def _hear(self, event: StoreEvent) -> None:
        entries: tuple[StoreEntry, ...] = ()
        if isinstance(event, StoreSnapshot):
            entries = event.entries
        elif isinstance(event, Changed):
            entries = event.puts
        for entry in entries:
            if entry.key == OUTCOME:
                with suppress(RecordError):
                    self._heard = OutcomeRecord.decode(entry.key, entry.value)

    def outcome(self) -> OutcomeRecord | None:
        """How it has ended, as far as is known."""
        if self._heard not in (None, self.before):
            return self._heard
        found = self._run.outcome()
        return None if found == self.before else found

    def is_over(self) -> bool:
        """Whether it has ended, or all nodes that were there have left."""
        if self.outcome() is not None:
            return True
        there = self._run.has_nodes()
        self._seen |= bool(there)
        return self._seen and there is False


def scaled_job(job: JobRecord, low: int | None, high: int | None) -> JobRecord:
    """The job with other present bounds; the launch bounds stay: pure.

    Raises:
        UsageError: no world fits the bounds.
    """
    low = job.min_nodes if low is None else low
    high = job.max_nodes if high is None else high
    if low < 1:
        raise UsageError(f"--min is {low}: a job needs at least one node")
    if low > high:
        raise UsageError(f"the minimum {low} would be above the maximum {high}: give both bounds")
    if high < job.node_unit:
        raise UsageError(f"--max is {high}: the job's world is a multiple of {job.node_unit} nodes")
    return replace(job, min_nodes=low, max_nodes=high)
