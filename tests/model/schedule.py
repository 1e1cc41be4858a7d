"""Schedules: worlds of every kind, and what happens to them, as a seed decides."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_runtime.config import Timeouts
from elastic_runtime.errors import EXIT_NOT_ENOUGH_NODES
from elastic_runtime.protocol import records
from elastic_runtime.protocol.round_records import RoundRecord
from elastic_runtime.rendezvous.core.round_parts import all_members, keys
from elastic_runtime.rendezvous.policy import Layout, Policy
from elastic_runtime.rendezvous.store_contract import Put
from tests.model.clockwork import Clockwork, Violation
from tests.model.store import ANSWER, RECONNECT
from tests.model.themes import OUTAGE, PARTED, PARTS, THEMES, Theme
from tests.model.world import GARBAGE, Key, World, key_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.model.node import Node

POLICY = Policy(
    min_nodes=1,
    max_nodes=4,
    timeouts=Timeouts(
        last_call=1.5,
        join_timeout=12.0,
        rejoin_timeout=3.0,
        fence_timeout=8.0,
        batch=0.4,
        connect_timeout=6.0,
    ),
    settle=1.5,
    answer=ANSWER,
    max_restarts=6,
)
# Longest time from the last fault until all are together, and from then until all have left.
TOGETHER = 240.0
# Share of schedules whose jobs recover in place.
_IN_PLACE = 0.4
# Share of schedules whose rounds lie in parts, as those of hundreds of nodes do.
_IN_PARTS = 0.4
# ... and the share of those in which the parts themselves are what fails.
_PARTS_GO = 0.2
OVER = 120.0


class Schedule:
    """One schedule: a world, and what happens to it."""

    def __init__(self, seed: int, theme: Theme | None = None, *, tracing: bool = False) -> None:
        self.clock = clock = Clockwork(seed, tracing=tracing)
        chance = clock.random
        count = chance.choice((1, 2, 2, 3, 3, 3, 4, 5))
        high = chance.choice((count, count, count + 1, max(1, count - 1)))
        low = chance.choice((1, 1, min(2, high), high))
        unit = chance.choice((1, 1, 1, 1, 1, 2)) if high > 1 else 1
        self.policy = replace(
            POLICY,
            min_nodes=low,
            max_nodes=high,
            node_unit=unit,
            timeouts=replace(POLICY.timeouts, batch=chance.choice((0.1, 0.4))),
            entry="train.py",
        )
        # Drawn apart, so that a seed means what it always meant.
        if theme is PARTS or random.Random(f"parts {seed}").random() < _IN_PARTS:
            layout = Layout(most=1, part=1 + seed % 2, first=1, keepers=2)
            self.policy = replace(self.policy, layout=layout)
        chance.random()  # whether a store was loose, once: a seed means what it always meant
        self.world = World(
            clock,
            policy=self.policy,
            work=chance.choice((0.3, 2.0, 10.0)),
            reports_steps=chance.random() < 0.7,
        )
        # Drawn apart, so that a seed means what it always meant.
        self.world.in_place = random.Random(f"in place {seed}").random() < _IN_PLACE
        drawn = chance.choice(THEMES)
        if self.policy.layout.most == 1 and random.Random(f"gone {seed}").random() < _PARTS_GO:
            drawn = PARTS
        self.theme = theme or drawn
        self.world.stubborn = self.theme.stubborn
        self.held = chance.random() < self.theme.held
        if self.held:
            self.world.not_before = float("inf")
        self.faults: list[str] = []
        self.fired: set[float] = set()
        self.calm_until = 0.0
        self.undisturbed: tuple[Key, float] | None = None
        self.healed = False
        self.store_gone = False
        self.cut_off: set[Node] = set()
        self.launched = count
        for _ in range(count):
            clock.after(clock.within(0.0, chance.choice((0.01, 0.5, 3.0))), self._add)
        self.left = chance.choice(self.theme.counts)
        clock.after(clock.within(0.0, chance.choice((0.5, 3.0, 6.0))), self._plan_next)

    def run(self) -> None:
        """Lets it happen; raises ``Violation``."""
        limit = 3600.0
        self.clock.run(limit, lambda: self.healed)
        if not self.healed:
            raise Violation("the faults did not come to their end")
        # From here on nothing goes wrong any more.
        world, clock = self.world, self.clock
        calm = clock.now
        if self.store_gone:
            self._check_all_end()
        elif self.held:
            clock.run(calm + TOGETHER, lambda: not world.living())
            self._check_together()
            self._check_parts()
            self._check_undisturbed()
            world.release(clock.now)
        clock.run(clock.now + OVER + TOGETHER, lambda: not world.living())
        if self.theme is PARTED:
            self._check_blameless()
        waiting = [node.name for node in world.living()]
        if waiting:
            raise Violation(f"{', '.join(waiting)}: still there long after all faults were over")

    def _check_all_end(self) -> None:
        """Without the store nobody waits for ever, and whoever ends does so with a code."""
        policy, clock, world = self.policy, self.clock, self.world
        world.release(clock.now)
        # The fence, the stop of stubborn workers, and the wait; and some reserve.
        limit = policy.timeouts.fence_timeout + 5.0 + policy.timeouts.join_timeout + 5.0
        clock.run(clock.now + limit, lambda: not world.living())
        waiting = [node.name for node in world.living()]
        if waiting:
            raise Violation(f"{', '.join(waiting)}: still there {limit} s after the store has gone")
        if not all(world.exits.values()):
            raise Violation(f"an agent has ended without a code: {world.exits}")

    def _remember_group(self) -> None:
        world = self.world
        settled = records.SWITCH not in world.store.data and len(world.living()) == len(
            [node for node in world.nodes if node.state.own.stored is not None]
        )
        if settled and len(world.whole_since) == 1:
            ((key, since),) = world.whole_since.items()
            grown = len(key[2]) + self.policy.node_unit > min(
                self.policy.max_nodes, len(world.living())
            )
            self.undisturbed = (key, since) if grown else None

    def _check_undisturbed(self) -> None:
        """A lost store does not stop a whole group."""
        if self.undisturbed is None or self.world.fenced:
            return
        key, since = self.undisturbed
        if self.world.whole_since.get(key) != since:
            raise Violation(f"round {key[0]} was disturbed, though only the store had failed")

    def _check_blameless(self) -> None:
        """That nodes do not reach each other is nobody's failure."""
        for outcome in self.world.outcomes.values():
            if not outcome.succeeded and outcome.exit_code != EXIT_NOT_ENOUGH_NODES:
                raise Violation(f"a cut network has ended the job: {outcome.reason}")

    def _check_parts(self) -> None:
        """Whoever comes now can read the round, and nothing is left of any other."""
        world = self.world
        there = {key for key in world.store.data if key.startswith(records.GROUP)}
        entry = world.store.data.get(records.ROUND)
        if entry is None or records.OUTCOME in world.store.data or not world.living():
            return
        last = RoundRecord.decode(entry.key, entry.value)
        if not all_members(last, world.store.data.values()).whole:
            raise Violation(f"long after all faults were over, round {last.number} is in pieces")
        if there != set(keys(last)):
            raise Violation(f"long after all faults were over there are {sorted(there)}")

    def _check_together(self) -> None:
        world = self.world
        living = [node for node in world.living() if node.agent.phase != "over"]
        if not living:
            return
        rounds = {key_of(n.agent.round) for n in living if n.agent.round and n.agent.phase}
        size = min(len(living), self.policy.max_nodes)
        size -= size % self.policy.node_unit
        if len(rounds) != 1:
            raise Violation(f"long after all faults were over there are {len(rounds)} rounds")
        ((_, _, members),) = rounds
        running = world.workers[next(iter(rounds))]
        if len(running) != len(members) or len(members) < size:
            raise Violation(
                f"long after all faults were over, {len(running)} of {len(members)} members run, "
                f"of {len(living)} nodes"
            )

    # ------------------------------------------------------------ faults

    def _plan_next(self) -> None:
        """The next fault comes after a while, or just after something was written."""
        clock = self.clock
        delay = clock.within(*clock.random.choice(self.theme.gaps))
        if clock.chance(0.4) and self.theme is not OUTAGE:
            armed = clock.now + 10.0
            self.world.store.on_next_write(lambda: clock.after(delay / 10, self._next, armed))
            clock.after(10.0, self._next, armed)
        else:
            clock.after(delay, self._next, 0.0)

    def _next(self, armed: float) -> None:
        if armed and armed in self.fired:
            return
        if self.clock.now < self.calm_until:
            self.clock.after(self.calm_until - self.clock.now + 0.001, self._next, armed)
            return
        self.fired.add(armed)
        theme = self.theme
        if theme is OUTAGE and self.undisturbed is None and not self.faults:
            self._remember_group()
        (name,) = self.clock.random.choices(tuple(theme.faults), tuple(theme.faults.values()))
        if _FAULTS[name](self):
            self.faults.append(name)
            self.clock.log("", f"== {name} ==")
        self.left -= 1
        if self.left > 0:
            self._plan_next()
        else:
            self.clock.after(self.clock.random.choice((0.2, 2.0, 6.0, 25.0)), self._heal)

    def _heal(self) -> None:
        """The last of all faults ends."""
        world = self.world
        self.clock.log("", "== all faults are over ==")
        if not world.store.up and not self.store_gone:
            world.store.start(forget=False)
        world.partitions.clear()
        for node in world.nodes:
            if node.alive and node.hung_at is not None:
                node.go_on()
            if node.alive and node.client.cut and node not in self.cut_off:
                self._mend(node)
            if node.alive and node.paused_at is not None:
                node.resume()
        if not world.living():
            world.add()
        self.healed = True

    def lose_store(self) -> bool:
        """The store is gone, and never comes back."""
        if not self.world.store.up:
            return False
        self.store_gone = True
        self.world.store.stop()
        return True

    def cut_for_good(self) -> bool:
        """A node never reaches the store again; the others do."""
        node = self._pick()
        if node is None or node.client.cut:
            return False
        self.clock.log(node.name, "== is cut off from the store for good")
        self.cut_off.add(node)
        node.client.cut = True
        node.client.contact_changed()
        return True

    def hang(self) -> bool:
        """The main loop of an agent stands still for a while."""
        node = self._pick()
        if node is None or node.hung_at is not None:
            return False
        duration = self._duration()
        self.clock.log(node.name, f"== hangs for {duration:.3f}")
        node.hang()
        self.clock.after(duration, self._go_on, node)
        return True

    def _go_on(self, node: Node) -> None:
        if node.alive and node.hung_at is not None:
            self.clock.log(node.name, "== turns again")
            node.go_on()

    def forget_unseen(self) -> bool:
        """The store forgets everything while no member reaches it, and a newcomer finds it empty.

        It was told that the job has run before. Who was started before there was a round could
        not be told, and must have seen the store first: none of them is still on its way.
        """
        world = self.world
        untold = [node for node in world.living() if not node.state.policy.resuming]
        if len(world.nodes) < self.launched or not all(node.client.served for node in untold):
            return False
        if not world.store.up or not world.rounds or not self._cut(1.0):
            return False
        self.clock.log("", "== the store forgets everything, and nobody sees it")
        world.store.stop()
        world.store.start(forget=True)
        told = replace(self.policy, resuming=True)
        self.clock.after(self.clock.within(0.0, 1.0), world.add, told)
        return True

    def _pick(self) -> Node | None:
        nodes = [node for node in self.world.living() if node.running]
        return self.clock.random.choice(nodes) if nodes else None

    def _duration(self) -> float:
        return self.clock.within(0.0, self.clock.random.choice(self.theme.durations))

    def crash(self) -> bool:
        """A node's processes are killed."""
        node = self._pick()
        if node is None:
            return False
        self.clock.log(node.name, "== is killed")
        node.crash()
        return True

    def crash_all(self) -> bool:
        """Everything is killed, and started again."""
        for node in self.world.living():
            node.crash()
        for _ in range(self.clock.random.choice((1, 2, 3))):
            self.clock.after(self.clock.within(0.0, 2.0), self._add)
        return True

    def _add(self) -> None:
        # Nodes that first see a store just after it forgot cannot know that it did.
        if self.clock.now < self.calm_until:
            self.clock.after(self.calm_until - self.clock.now + 0.001, self._add)
        else:
            self.world.add()

    def lose_host(self) -> bool:
        """A machine is gone: nothing answers any more."""
        node = self._pick()
        if node is None:
            return False
        self.clock.log(node.name, "== its host is gone")
        self.world.dark.add(node.port)
        node.crash()
        return True

    def pause(self) -> bool:
        """A node stands still for a while."""
        picked = self._pick()
        return self._pause([picked] if picked else [])

    def pause_all(self) -> bool:
        """All nodes stand still for a while, as when machines are moved."""
        return self._pause(self.world.living())

    def _pause(self, nodes: list[Node]) -> bool:
        duration = self._duration()
        for node in nodes:
            if node.paused_at is None:
                self.clock.log(node.name, f"== is paused for {duration:.3f}")
                node.pause()
                self.clock.after(duration, self._resume, node)
        return bool(nodes)

    def _resume(self, node: Node) -> None:
        if node.alive and node.paused_at is not None:
            self.clock.log(node.name, "== goes on")
            node.resume()

    def cut(self) -> bool:
        """Some nodes cannot reach the store for a while."""
        return self._cut(self.clock.random.choice((0.3, 0.6)))

    def cut_all(self) -> bool:
        """No node can reach the store for a while; newcomers can."""
        return self._cut(1.0)

    def _cut(self, share: float) -> bool:
        nodes = [n for n in self.world.living() if not n.client.cut and self.clock.chance(share)]
        duration = self._duration()
        for node in nodes:
            self.clock.log(node.name, f"== is cut off from the store for {duration:.3f}")
            node.client.cut = True
            node.client.contact_changed()
            self.clock.after(duration, self._mend, node)
        return bool(nodes)

    def _mend(self, node: Node) -> None:
        if node.client.cut:
            node.client.cut = False
            node.client.contact_changed()

    def part(self) -> bool:
        """Two nodes cannot reach each other."""
        nodes = self.world.living()
        if len(nodes) < 2:
            return False
        one, two = self.clock.random.sample(nodes, 2)
        self._part([one], [two])
        return True

    def part_one(self) -> bool:
        """One node reaches no other one; newcomers are on the side of the others."""
        nodes = self.world.living()
        if len(nodes) < 2:
            return False
        self._part([self.clock.random.choice(nodes)], nodes)
        return True

    def part_in_two(self) -> bool:
        """One half does not reach the other."""
        nodes = self.world.living()
        if len(nodes) < 2:
            return False
        half = self.clock.random.sample(nodes, len(nodes) // 2)
        self._part(half, [node for node in nodes if node not in half])
        return True

    def _part(self, some: list[Node], others: list[Node]) -> None:
        names = [" ".join(node.name for node in side) for side in (some, others)]
        self.clock.log("", f"== {names[0]} | {names[1]} ==")
        self.world.cut_between(some, others, self._duration() * 2)

    def participant_dies(self) -> bool:
        """An agent meets a defect: it ends its workers, gives its lease back and ends."""
        node = self._pick()
        if node is None or node.agent.phase == "over":
            return False
        node.exit("crashed")
        return True

    def blow(self) -> bool:
        """A node is killed, and a worker of another one, at the same instant."""
        running = [n for n in self.world.living() if n.running and n.agent.phase == "running"]
        if len(running) < 2:
            return False
        node, other = self.clock.random.sample(running, 2)
        node.crash()
        other.agent.worker_fails(records.KILLED, echo=False, signature="SIGKILL")
        return True

    def restart_store(self) -> bool:
        """The store is down for a while."""
        if not self.world.store.up:
            return False
        self.world.store.stop()
        self.clock.after(self._duration(), self._store_up)
        return True

    def _store_up(self) -> None:
        if not self.world.store.up:
            self.world.store.start(forget=False)

    def amnesia(self) -> bool:
        """The store forgets everything.

        The design holds if the group can say so in time: no other fault near it.
        """
        world = self.world
        if not world.store.up or any(
            not node.client.connected or not node.client.served or not node.running
            for node in world.living()
        ):
            return False
        self.clock.log("", "== the store forgets everything")
        world.store.stop()
        world.store.start(forget=True)
        self.calm_until = self.clock.now + RECONNECT + 2.5 * self.policy.timeouts.last_call
        return True

    def worker_fails(self) -> bool:
        """User code fails, or a worker is killed."""
        nodes = [n for n in self.world.living() if n.running and n.agent.phase == "running"]
        if not nodes:
            return False
        node = self.clock.random.choice(nodes)
        kind = self.clock.random.choice((records.FAILED, records.FAILED, records.KILLED))
        signature = self.clock.random.choice(("ValueError", "KeyError"))
        node.agent.worker_fails(kind, echo=False, signature=signature)
        return True

    def drain(self) -> bool:
        """A node is asked to leave."""
        node = self._pick()
        if node is None or node.agent.phase == "over":
            return False
        self.clock.log(node.name, "== is asked to leave")
        node.agent.sigterm()
        return True

    def join(self) -> bool:
        """Nodes join."""
        for _ in range(self.clock.random.choice((1, 1, 2))):
            self.clock.after(self.clock.within(0.0, 0.3), self._add)
        return True

    def intrude(self) -> bool:
        """A node with other settings comes under the same run id."""
        other = replace(self.policy, entry="other.py", min_nodes=1, max_nodes=2, node_unit=1)
        self.world.add(other, "theirs")
        return True

    def garble(self) -> bool:
        """Somebody writes something else under a key of ours."""
        store = self.world.store
        there = sorted(store.data)
        if not store.up or not there:
            return False
        key = self.clock.random.choice((*there, "nodes/stranger"))
        self.clock.log("", f"== {key} is overwritten")
        store.commit((Put(key, GARBAGE),), [], None)
        return True

    def _parts(self) -> list[str]:
        """The parts of the present round."""
        there = set(keys(self.world.stored_round))
        return sorted(key for key in self.world.store.data if key in there)

    def lose_parts(self) -> bool:
        """Some parts of rounds, or all, are deleted behind everybody's back."""
        store = self.world.store
        parts = self._parts()
        if not store.up or not parts:
            return False
        gone = parts if self.clock.chance(0.6) else [self.clock.random.choice(parts)]
        self.clock.log("", f"== {' '.join(gone)} vanish ==")
        store.commit((), gone, None)
        return True

    def swap_parts(self) -> bool:
        """What a part says is found under another one's key."""
        store = self.world.store
        parts = self._parts()
        if not store.up or len(parts) < 2:
            return False
        one, two = self.clock.random.sample(parts, 2)
        self.clock.log("", f"== {one} says what {two} did ==")
        store.commit((Put(one, store.data[two].value),), [], None)
        return True

    def finish_soon(self) -> bool:
        """The script is through soon."""
        self.world.work = 0.05
        self.world.release(self.clock.now + 0.01)
        return True


_FAULTS: dict[str, Callable[[Schedule], bool]] = {
    "lose store": Schedule.lose_store,
    "cut for good": Schedule.cut_for_good,
    "hang": Schedule.hang,
    "forget unseen": Schedule.forget_unseen,
    "crash": Schedule.crash,
    "crash all": Schedule.crash_all,
    "lose host": Schedule.lose_host,
    "pause": Schedule.pause,
    "pause all": Schedule.pause_all,
    "cut": Schedule.cut,
    "cut all": Schedule.cut_all,
    "part": Schedule.part,
    "part one": Schedule.part_one,
    "part in two": Schedule.part_in_two,
    "blow": Schedule.blow,
    "participant dies": Schedule.participant_dies,
    "restart store": Schedule.restart_store,
    "amnesia": Schedule.amnesia,
    "worker fails": Schedule.worker_fails,
    "drain": Schedule.drain,
    "join": Schedule.join,
    "intrude": Schedule.intrude,
    "finish soon": Schedule.finish_soon,
    "garble": Schedule.garble,
    "lose parts": Schedule.lose_parts,
    "swap parts": Schedule.swap_parts,
}
