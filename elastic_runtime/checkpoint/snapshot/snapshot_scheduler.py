"""Snapshots: checkpoints in the memory of the agents, which outlive the workers.

A snapshot has the form of a checkpoint, and is ordered with checkpoints by (term, step). Each node
keeps the files of its own ranks and a copy of those of one other node, its *buddy*. A snapshot is
taken in the background (``snapshot_writer``); one that fails only causes an event, as the one
before is kept until the next one is complete on all nodes. ``newest_state`` decides which state a
job continues from.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from elastic_runtime.checkpoint.format.description import Description
from elastic_runtime.checkpoint.load.newest_state import (
    NodeSnapshot,
    ResumeCandidate,
    other_holders,
    resume_candidates,
)
from elastic_runtime.checkpoint.save.background_thread import Abandoned
from elastic_runtime.checkpoint.snapshot.buddies import Nodes
from elastic_runtime.checkpoint.snapshot.memory_budget import NodeMemory, Refusal, memory_refusal
from elastic_runtime.checkpoint.snapshot.peer_reader import SnapshotSource
from elastic_runtime.checkpoint.snapshot.snapshot_store import SnapshotStore
from elastic_runtime.checkpoint.snapshot.snapshot_writer import SnapshotWriter
from elastic_runtime.checkpoint.storage.storage_contract import storage_errors
from elastic_runtime.errors import CheckpointError
from elastic_runtime.events.snapshot_events import (
    SnapshotDiscarded,
    SnapshotFailed,
    SnapshotIncomplete,
    SnapshotOff,
    SnapshotRefused,
    SnapshotTaken,
    SnapshotUncopied,
    SnapshotUnreadable,
)
from elastic_runtime.protocol.snapshot_requests import SnapshotMemory
from elastic_runtime.system.machine import available_memory, total_memory
from elastic_runtime.worker.agreement import NOTHING_FORESEEN, Foreseen, Wish

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_runtime.checkpoint.format.manifest import CheckpointId, Manifest
    from elastic_runtime.checkpoint.format.write_plan import WritePlan
    from elastic_runtime.checkpoint.save.background_thread import Task
    from elastic_runtime.checkpoint.save.rank_share import FileContent
    from elastic_runtime.checkpoint.save.save_term import SaveTerm
    from elastic_runtime.checkpoint.save_interval import Every
    from elastic_runtime.checkpoint.storage.storage_contract import Storage
    from elastic_runtime.events.event import NotedEvent
    from elastic_runtime.worker.context import WorkerContext
    from elastic_runtime.worker.peers import Peers

# What a snapshot takes beside its tensors, for each rank: values, metadata, the manifest.
_EXTRA = 1 << 20


class SnapshotScheduler:
    """The snapshots of one process."""

    def __init__(
        self, storage: Storage, save_term: SaveTerm, every: Every, context: WorkerContext
    ) -> None:
        """Takes the settings; nothing is touched yet.

        Args:
            storage: where the checkpoints are that snapshots are taken beside.
            save_term: gives the term.
            every: how often to take one.
            context: receives events, and knows the agent.
        """
        self._asked_for = bool(every.steps or every.seconds)
        self._off = False  # in this world: some rank has no memory for them
        self._every = every
        self._save_term = save_term
        self._context = context
        self._place = storage.where
        memory = context.snapshots if self._asked_for else None
        self._store = SnapshotStore(memory, self._place) if memory else None
        self._nodes: Nodes | None = None
        self._description = Description()
        self._reported: set[str] = set()
        self._wished = False
        self._last = time.monotonic()
        self._last_step = 0

    # When

    @property
    def wanted(self) -> bool:
        """Whether any are to be taken in this world, the same on all ranks once they have asked."""
        return self._asked_for and not self._off

    def wish(self, step: int) -> Wish:
        """What rank 0 asks all ranks to do.

        Args:
            step: that was just made.
        """
        waited = time.monotonic() - self._last
        due = self._every.due_between(self._last_step, step) or self._every.due_after(waited)
        if self._wished or not due:
            return Wish.NOTHING
        self._wished = True
        return Wish.SNAPSHOT

    def foreseen(self, step: int) -> Foreseen:
        """When rank 0 will ask for a snapshot.

        Args:
            step: that was just made.
        """
        if not self.wanted:
            return NOTHING_FORESEEN
        every = self._every
        if self._wished:  # it is taken about now
            return Foreseen(every.seconds_left(0.0), every.steps_left(step, step))
        waited = time.monotonic() - self._last
        return Foreseen(every.seconds_left(waited), every.steps_left(self._last_step, step))

    def rest(self, step: int) -> None:
        """Starts the clock again.

        Args:
            step: the present one.
        """
        self._wished = False
        self._last, self._last_step = time.monotonic(), step

    # Where

    def enter(self) -> None:
        """The ranks are others from now on."""
        self._nodes = None
        self._off = False  # a new node does not know it, and asks
        self._wished = False

    def _ready(self, peers: Peers) -> bool:
        """Whether all ranks have memory for snapshots; finds out which of them share it."""
        if not self.wanted:
            return False
        if self._nodes is None:
            found = peers.gather(self._store.memory.encode() if self._store else "")
            missing = [rank for rank, text in enumerate(found) if not text]
            if missing:
                self._off = True
                ranks = ", ".join(map(str, missing[:8]))
                why = f"the agent of rank {ranks} has no memory for them (--snapshot-memory)"
                if not self._context.has_agent:
                    why = "they need elastic-run"
                if "off" not in self._reported:
                    self._reported.add("off")
                    self._note(peers, SnapshotOff(self._place, why))
                return False
            memories = [SnapshotMemory.decode(text) for text in found]
            self._nodes = Nodes.seen_by(peers.rank, memories)
        return True

    # Taking one

    def refuses(self, peers: Peers, size: int, *, has_image: bool) -> bool:
        """Whether no snapshot can be taken now, the same on all ranks; says why.

        Args:
            peers: all ranks, which do the same.
            size: of the tensors in the file of this rank, in bytes.
            has_image: this rank has the memory already that the state is copied to first.
        """
        if not self._ready(peers):
            return True
        nodes = self._nodes
        assert nodes is not None
        sizes = peers.gather(size)
        try:
            needs = peers.on_each(
                lambda: self._memory_needs(sizes, has_image) if nodes.leads else None
            )
        except CheckpointError as error:
            found: Refusal | None = Refusal("unusable", str(error))
        else:
            found = memory_refusal([NodeMemory(*one) for one in needs if one is not None])
        if found is not None:
            self._note_once(peers, found)
        return found is not None

    def _memory_needs(self, sizes: Sequence[int], has_image: bool) -> list[Any]:
        nodes, store = self._nodes, self._store
        assert nodes is not None
        assert store is not None
        memory, own = store.memory, nodes.all[nodes.mine].ranks

        def need(ranks: Sequence[int]) -> int:
            return sum(_EXTRA + sizes[rank] for rank in ranks)

        with storage_errors(f"take snapshots in {memory.directory}"):
            free = os.statvfs(memory.directory)  # a cleaner of /dev/shm may have removed it
        store.tidy()
        needs = NodeMemory(
            node=memory.node,
            machine=memory.machine,
            needed=need(own) + (need(nodes.buddy.ranks) if nodes.buddy else 0),
            beside=0 if has_image else need(own),
            kept=store.used(),
            limit=memory.limit,
            free=free.f_bavail * free.f_frsize,
            available=available_memory(),
            total=total_memory(),
        )
        return needs.encode()

    def take(
        self,
        peers: Peers,
        draft: Manifest,
        plan: WritePlan | None,
        content: FileContent,
        task: Task,
        blocked: float,
    ) -> None:
        """Takes one, in the background. A failure is an event, and nothing else.

        Args:
            peers: all ranks, which do the same.
            draft: what its manifest will say.
            plan: who writes what; rank 0 has it.
            content: this rank's file.
            task: it runs in; says whether the snapshot is still wanted.
            blocked: how many seconds training was stopped for it.
        """
        began = time.monotonic()
        assert self._nodes is not None
        assert self._store is not None
        parts = (self._store, self._nodes, self._save_term, draft, plan, self._description)
        try:
            _, problems = SnapshotWriter(*parts, lambda count: task.check()).run(peers, content)
        except CheckpointError as error:
            self._note(peers, SnapshotFailed(self._place, draft.step, str(error)))
            return
        except Exception as error:
            why = "the world has changed" if isinstance(error, Abandoned) else str(error)
            reason = why.strip().split("\n")[0]
            self._note(peers, SnapshotDiscarded(self._place, draft.step, reason))
            return
        self._reported -= {"limit", "tmpfs", "memory"}
        if problems:
            self._note_once(peers, Refusal(problems[0], problems[0]), SnapshotUncopied)
        seconds = time.monotonic() - began
        taken = SnapshotTaken(
            self._place,
            draft.step,
            bytes=content.size,
            seconds=seconds,
            copied=not problems,
            blocked=blocked,
        )
        self._note(peers, taken)

    # Going on from one

    def resume_candidates(
        self, peers: Peers, stored: Sequence[CheckpointId], over: CheckpointId | None = None
    ) -> list[ResumeCandidate]:
        """All states that there are in memory and in storage, as they are to be tried.

        Args:
            peers: all ranks, which do the same.
            stored: what claims to be whole in storage.
            over: only what is newer than that.
        """
        if not self._ready(peers):
            return resume_candidates([], stored, over)
        nodes, store = self._nodes, self._store
        assert nodes is not None
        assert store is not None
        try:
            found = peers.on_each(
                lambda: [offer.encode() for offer in store.offers()] if nodes.leads else []
            )
        except CheckpointError as error:
            self._note(peers, SnapshotUnreadable(self._place, str(error)))
            return resume_candidates([], stored, over)
        offers = [
            [NodeSnapshot.decode(offer) for offer in found[node.ranks[0]]] for node in nodes.all
        ]
        return resume_candidates(offers, stored, over)

    def open(self, peers: Peers, candidate: ResumeCandidate) -> SnapshotSource | None:
        """A snapshot, to be read; None if some of it cannot be reached, which is an event.

        Args:
            peers: all ranks, which do the same.
            candidate: which one.
        """
        problem = candidate.problem
        if not problem:
            snapshot = self._snapshot(candidate)
            try:
                peers.on_each(lambda: len(snapshot.sizes(candidate.which)))
                return snapshot
            except CheckpointError as error:
                snapshot.close()
                problem = str(error)
        self._note(peers, SnapshotIncomplete(self._place, candidate.which.step, problem))
        return None

    def _snapshot(self, candidate: ResumeCandidate) -> SnapshotSource:
        nodes, store = self._nodes, self._store
        assert nodes is not None
        assert store is not None
        others = {
            name: nodes.all[node].memory
            for name, node in other_holders(candidate, nodes.mine).items()
        }
        names = ", ".join(node.memory.node for node in nodes.all[:3])
        more = f" and {len(nodes.all) - 3} more" if len(nodes.all) > 3 else ""
        directory = store.memory.directory
        return SnapshotSource(store.storage, store.key, others, names + more, directory)

    def keep_only(self, which: CheckpointId | None) -> None:
        """Removes all others: the job has gone on from this one.

        Args:
            which: a snapshot; None: no snapshot.
        """
        if self._nodes is not None and self._nodes.leads and self._store is not None:
            self._store.keep_only(which)

    # Events

    def _note_once(
        self,
        peers: Peers,
        why: Refusal,
        kind: type[SnapshotRefused | SnapshotUncopied] = SnapshotRefused,
    ) -> None:
        if why.kind not in self._reported:
            self._reported.add(why.kind)
            self._note(peers, kind(self._place, why.text))

    def _note(self, peers: Peers, event: NotedEvent) -> None:
        if peers.rank == 0:
            self._context.note(event)
