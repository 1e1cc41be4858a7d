"""The simulated world: nodes, the group that they form, and what must always hold."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_runtime.protocol import records
from elastic_runtime.protocol.records import JobRecord, OutcomeRecord
from elastic_runtime.protocol.round_records import RoundRecord
from elastic_runtime.rendezvous.core.formation.reachability import severed_pairs
from elastic_runtime.rendezvous.core.membership_events import Probed
from elastic_runtime.rendezvous.core.round_parts import all_members
from tests.model.clockwork import Clockwork, Violation
from tests.model.node import PROBE_TIMEOUT, Node, answer_of
from tests.model.store import SimStore
from tests.model.trace import brief_round

if TYPE_CHECKING:
    from elastic_runtime.rendezvous.policy import Policy
    from elastic_runtime.rendezvous.store_contract import StoreEntry

# What somebody else left under one of our keys.
GARBAGE = b"\x80\x04\x95 not ours"

Key = tuple[int, str, tuple[str, ...]]


def key_of(sealed: RoundRecord) -> Key:
    """What tells two rounds apart."""
    return (sealed.number, sealed.incarnation, tuple(member.node for member in sealed.members))


class World:
    """Everything that there is.

    Args:
        clock: the simulation.
        policy: the settings of ordinary nodes.
        work: seconds that a whole group must run to be through.
        reports_steps: the script reports steps.
    """

    def __init__(
        self, clock: Clockwork, *, policy: Policy, work: float, reports_steps: bool
    ) -> None:
        self.clock = clock
        self.policy = policy
        self.work = work
        self.not_before = 0.0  # nobody is through before this moment
        self.reports_steps = reports_steps
        self.in_place = False  # workers keep their process, and a lost one is replaced later
        self.stubborn = 0.0  # share of stops in which workers do not want to end
        self.store = SimStore(clock, self._committed)
        self.nodes: list[Node] = []
        self.by_uuid: dict[str, Node] = {}
        self.by_port: dict[int, Node] = {}
        self.partitions: set[tuple[int, int]] = set()
        self.dark: set[int] = set()
        self.exits: dict[str, str] = {}
        self.seals = 0
        self.fenced = False  # somebody was without the store for so long that it gave up
        # The group.
        self.workers: dict[Key, set[str]] = defaultdict(set)  # who runs workers of a round
        self.well: dict[Key, set[str]] = defaultdict(set)  # whose workers have ended well
        self.excused: set[str] = set()
        self.whole_since: dict[Key, float] = {}
        self.progress: dict[Key, float] = defaultdict(float)
        self.steps = 0.0
        # What was seen.
        self.rounds: dict[Key, RoundRecord] = {}
        self.stored_round: RoundRecord | None = None
        self.garbled = False
        self.parts: dict[str, StoreEntry] = {}  # of rounds, as a node has written them last
        self.failed: dict[Key, list[str]] = defaultdict(list)
        self.outcomes: dict[str, OutcomeRecord] = {}

    # ------------------------------------------------------------ nodes

    def add(self, policy: Policy | None = None, settings: str = "ours") -> Node:
        """Starts a node."""
        number = len(self.nodes) + 1
        node = Node(self, number, policy or self.policy, settings)
        self.nodes.append(node)
        self.by_port[node.port] = node
        self.clock.log(node.name, f"   starts ({settings})")
        node.start()
        return node

    def living(self) -> list[Node]:
        """Nodes whose process has not ended."""
        return [node for node in self.nodes if node.alive]

    def probe(self, asker: Node, uuid: str, port: int) -> None:
        """Sends a probe."""
        self.clock.after(self.clock.hop(), self._probe_arrives, asker, uuid, port)

    def _probe_arrives(self, asker: Node, uuid: str, port: int) -> None:
        node = self.by_port.get(port)
        pair = (min(asker.port, port), max(asker.port, port))
        silent = pair in self.partitions or port in self.dark
        answer = "silent" if silent else answer_of(node, uuid)
        delay = PROBE_TIMEOUT if answer == "silent" else self.clock.hop()
        asker.later(delay, asker.feed, Probed(uuid, answer))

    # ------------------------------------------------------------ groups

    def workers_started(self, node: Node, sealed: RoundRecord) -> None:
        """This node now runs workers of this round."""
        key = key_of(sealed)
        self.workers[key].add(node.uuid)
        self.groups_changed()
        if len(self.workers[key]) == len(sealed.members):
            self._check_one_group()

    def workers_ended(self, node: Node, sealed: RoundRecord, *, well: bool = False) -> None:
        """The workers of this round have ended on this node."""
        key = key_of(sealed)
        was_running = node.uuid in self.workers[key]
        self.workers[key].discard(node.uuid)
        self.excused.discard(node.uuid)
        if well:
            self.well[key].add(node.uuid)
        self.groups_changed()
        if was_running and not well:
            self._break_collectives(key)

    def _break_collectives(self, key: Key) -> None:
        for uuid in key[2]:
            if uuid in self.workers[key] and self.clock.chance(0.6):
                other = self.by_uuid[uuid]
                delay = self.clock.within(0.001, 0.02 if self.clock.chance(0.7) else 0.5)
                other.later(delay, other.agent.worker_hears_of_loss, key[0])

    def _check_one_group(self) -> None:
        """Never two rounds of which each could make progress."""
        whole = [
            key
            for key, running in self.workers.items()
            if len(running) == len(key[2]) and not (running & self.excused)
        ]
        whole = [key for key in whole if not self._paused_too_long(key)]
        if len(whole) > 1:
            text = " and ".join(brief_round(self.rounds[key]) for key in whole)
            raise Violation(f"two rounds can make progress at once: {text}")

    def _paused_too_long(self, key: Key) -> bool:
        limit = 0.8 * self.policy.timeouts.fence_timeout
        nodes = [self.by_uuid[uuid] for uuid in key[2]]
        stood = [since for node in nodes for since in (node.paused_at, node.hung_at) if since]
        return any(self.clock.now - since > limit for since in stood)

    def excuse(self, node: Node) -> None:
        """It was stopped for so long that nobody could have known better."""
        if node.agent.phase in ("starting", "running", "stopping"):
            self.excused.add(node.uuid)

    def groups_changed(self) -> None:
        """Somebody started, ended, was paused or went on: who makes progress now?"""
        now = self.clock.now
        for key, running in self.workers.items():
            going = len(running) == len(key[2]) > 0 and all(
                self.by_uuid[uuid].paused_at is None for uuid in running
            )
            since = self.whole_since.get(key)
            if going and since is None:
                self.whole_since[key] = now
                due = max(self.work, self.not_before - now)
                if self._cannot_meet(key):
                    self._miss_each_other(key, now)
                elif due < float("inf"):
                    self.clock.after(due, self._through, key, now)
            elif not going and since is not None:
                del self.whole_since[key]
                self.progress[key] += now - since
                self.steps += now - since

    def _cannot_meet(self, key: Key) -> bool:
        ports = sorted(self.by_uuid[uuid].port for uuid in key[2])
        return any((one, two) in self.partitions for one in ports for two in ports if one < two)

    def cut_between(self, nodes: list[Node], others: list[Node], duration: float) -> None:
        """These nodes do not reach those for a while."""
        pairs = {
            (min(one.port, two.port), max(one.port, two.port))
            for one in nodes
            for two in others
            if one is not two
        }
        self.partitions |= pairs
        self.clock.after(duration, self.partitions.difference_update, pairs)
        for key, since in list(self.whole_since.items()):
            if self._cannot_meet(key):
                self._miss_each_other(key, since)

    def _miss_each_other(self, key: Key, since: float) -> None:
        """Connections break some time later, or all wait and their agents look around."""
        if self.clock.chance(0.5):
            self.clock.after(self.clock.within(0.05, 0.5), self._fail_to_meet, key, since)
            return
        for uuid in key[2]:
            node = self.by_uuid[uuid]
            node.later(self.clock.within(0.5, 1.0), self._hangs, key, since, node)

    def _hangs(self, key: Key, since: float, node: Node) -> None:
        if self.whole_since.get(key) != since:
            return
        node.agent.doubt(key[0])
        if not self._cannot_meet(key):
            del self.whole_since[key]  # it has healed, and they go on
            self.groups_changed()
            return
        node.later(1.0, self._hangs, key, since, node)

    def _fail_to_meet(self, key: Key, since: float) -> None:
        """Members that do not reach each other form no process group."""
        if self.whole_since.get(key) == since:
            node = self.by_uuid[self.clock.random.choice(key[2])]
            node.later(0.0, node.agent.worker_hears_of_loss, key[0])

    def release(self, moment: float) -> None:
        """Whoever is whole is through at this moment."""
        self.not_before = moment
        for key, since in self.whole_since.items():
            self.clock.after(max(0.0, moment - self.clock.now), self._through, key, since)

    def _through(self, key: Key, since: float) -> None:
        if self.whole_since.get(key) != since or self.clock.now < self.not_before:
            return
        for uuid in key[2]:
            node = self.by_uuid[uuid]
            node.later(
                self.clock.within(0.0, 0.02 if self.clock.chance(0.7) else 0.6),
                node.agent.workers_finish,
                node.agent.turn,
            )

    def step_of(self, sealed: RoundRecord) -> int:
        """The step that the group had reached."""
        if not self.reports_steps:
            return -1
        since = self.whole_since.get(key_of(sealed), self.clock.now)
        return int(10 * (self.steps + self.clock.now - since))

    def note_failure(self, sealed: RoundRecord, kind: str) -> None:
        """User code failed, or a worker was killed."""
        self.failed[key_of(sealed)].append(kind)

    # ------------------------------------------------------------ what is written and told

    def _committed(self, written: list[StoreEntry], _removed: list[str]) -> None:
        for entry in written:
            if entry.value == GARBAGE:
                self.garbled = True
            elif entry.key.startswith(records.GROUP):
                self.parts[entry.key] = entry
            elif entry.key.startswith(records.NODES):
                self._node_written(entry)
            elif entry.key == records.ROUND:
                head = RoundRecord.decode(entry.key, entry.value)
                self._round_written(all_members(head, self._as_written()))
            elif entry.key == records.OUTCOME:
                self._outcome_written(OutcomeRecord.decode(entry.key, entry.value))
        if records.ROUND not in self.store.data:
            self.stored_round = None

    def _as_written(self) -> list[StoreEntry]:
        """What is in the store, with the parts of rounds as they were before a stranger's write."""
        return [
            self.parts.get(entry.key, entry) if entry.value == GARBAGE else entry
            for entry in self.store.data.values()
        ]

    def _node_written(self, entry: StoreEntry) -> None:
        node = self.by_uuid.get(entry.key.removeprefix(records.NODES))
        if node is None or node.hung_at is None or entry.created != entry.version:
            return
        if self.clock.now - node.hung_at > 0.2:  # what was on its way
            raise Violation(f"{node.name} registers, though its main loop hangs")

    def _round_written(self, sealed: RoundRecord) -> None:
        # Its parts may have been there before, and vanished since.
        known = next((r for r in self.rounds.values() if r.group == sealed.group), sealed)
        if not sealed.whole and not known.whole:
            raise Violation(f"round {brief_round(sealed)} is written before its members are")
        if not sealed.whole:
            sealed = replace(sealed, members=known.members, ranks=(), firsts=())
        key = key_of(sealed)
        before, self.stored_round = self.stored_round, sealed
        if key in self.rounds:
            # That which is there may be written again: for its parts, or to tidy up.
            again = before is not None and key_of(before) == key
            if self.store.epoch == 0 and not self.garbled and not again:
                raise Violation(f"round {brief_round(sealed)} was written twice")
            return
        told = [node.agent.round.number for node in self.living() if node.agent.round]
        forgetful = self.store.epoch or self.garbled
        newest = 0 if forgetful else max((key[0] for key in self.rounds), default=0)
        if sealed.number <= max(newest, *told, 0):
            raise Violation(f"round {brief_round(sealed)} is not newer than those before it")
        self.rounds[key] = sealed
        self.seals += 1
        self._check_members(sealed, before)

    def _check_members(self, sealed: RoundRecord, before: RoundRecord | None) -> None:
        entry = self.store.data.get(records.JOB)
        readable = entry is not None and entry.value != GARBAGE
        job = JobRecord.decode(records.JOB, entry.value) if entry and readable else None
        members = key_of(sealed)[2]
        if len(set(members)) != len(members):
            raise Violation(f"a node is twice in round {brief_round(sealed)}")
        if job is not None and job.incarnation == sealed.incarnation:
            fits = job.min_nodes <= len(members) <= job.max_nodes
            if not fits or len(members) % job.node_unit:
                raise Violation(f"round {brief_round(sealed)} has a size that is not allowed")
        if before is None or before.incarnation != sealed.incarnation:
            return
        survivors = [
            node for node in members if before.rank_of(node) >= 0 and self._knew(node, before)
        ]
        if survivors != sorted(survivors, key=before.rank_of):
            raise Violation(f"survivors changed their order in round {brief_round(sealed)}")
        seen = self.by_uuid[sealed.sealed_by].state.shown.peers
        known = [seen[node].record for node in members if node in seen]
        for one, two in severed_pairs(known):
            raise Violation(
                f"round {brief_round(sealed)} holds {one.name} and {two.name}, which are known "
                "not to reach each other"
            )
        if survivors and members[0] != survivors[0]:
            raise Violation(f"rank 0 of round {brief_round(sealed)} is no survivor")
        spent = sealed.budget.failures - before.budget.failures
        failed = records.FAILED in self.failed[key_of(before)]
        if not 0 <= spent <= failed:
            raise Violation(
                f"round {brief_round(before)} cost {spent} failures, of {failed} that it had"
            )

    def _knew(self, uuid: str, before: RoundRecord) -> bool:
        """Whether a member ever learned its place: its part may have vanished before."""
        record = self.by_uuid[uuid].state.own.record
        return record is None or record.left != before.number or record.rank >= 0

    def told_a_round(self, node: Node, sealed: RoundRecord) -> RoundRecord:
        """A node was told to start workers; returns the round with all its members."""
        rank = sealed.rank_of(node.uuid)
        if rank < 0:
            raise Violation(f"{node.name} was told of a round that it is not in")
        whole = next((r for r in self.rounds.values() if r.identity == sealed.identity), sealed)
        true = (whole.rank_of(node.uuid), whole.first_worker(rank), whole.size, whole.world_size)
        if (rank, sealed.first_worker(rank), sealed.size, sealed.world_size) != true:
            raise Violation(f"{node.name} was told another place in round {brief_round(whole)}")
        return whole

    def _outcome_written(self, outcome: OutcomeRecord) -> None:
        known = self.outcomes.get(outcome.incarnation, outcome)
        self.outcomes[outcome.incarnation] = outcome
        if known != outcome and not self.garbled and not self.store.epoch:
            raise Violation(f"two ends of {outcome.incarnation}: {known} and {outcome}")
        if outcome.succeeded and not any(
            key[1] == outcome.incarnation and done >= set(key[2]) for key, done in self.well.items()
        ):
            raise Violation(f"{outcome.incarnation} ended well, but its workers had not")

    def told_the_end(self, node: Node, outcome: OutcomeRecord) -> None:
        """A node learns that the job is over."""
        if self.outcomes.get(outcome.incarnation) != outcome:
            raise Violation(f"{node.name} was told of an end that is none: {outcome}")
