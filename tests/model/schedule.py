"""Schedules: worlds of every kind, and what happens to them, as a seed decides."""

from __future__ import annotations

import random
from dataclasses import replace

from elastic_runtime.config import Timeouts
from elastic_runtime.errors import EXIT_NOT_ENOUGH_NODES
from elastic_runtime.protocol import records
from elastic_runtime.protocol.round_records import RoundRecord
from elastic_runtime.rendezvous.core.round_parts import all_members, keys
from elastic_runtime.rendezvous.policy import Layout, Policy
from tests.model.clockwork import Clockwork, Violation
from tests.model.fault_injector import FaultInjector
from tests.model.store import ANSWER
from tests.model.themes import OUTAGE, PARTED, PARTS, THEMES, Theme
from tests.model.world import Key, World, key_of

POLICY = Policy(
    min_nodes=1,
    max_nodes=4,
    timeouts=Timeouts(
        last_call=1.5,
        join_timeout=12.0,
        rejoin_timeout=3.0,
        fence_timeout=8.0,
        join_batch=0.4,
        connect_timeout=6.0,
    ),
    settle=1.5,
    write_timeout=ANSWER,
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
            timeouts=replace(POLICY.timeouts, join_batch=chance.choice((0.1, 0.4))),
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
        self.undisturbed: tuple[Key, float] | None = None
        self.healed = False
        self.injector = FaultInjector(self.world, self.policy, self.theme, count)
        for _ in range(count):
            clock.after(clock.within(0.0, chance.choice((0.01, 0.5, 3.0))), self.injector.add)
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
        if self.injector.store_gone:
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
        if self.clock.now < self.injector.calm_until:
            self.clock.after(self.injector.calm_until - self.clock.now + 0.001, self._next, armed)
            return
        self.fired.add(armed)
        theme = self.theme
        if theme is OUTAGE and self.undisturbed is None and not self.faults:
            self._remember_group()
        (name,) = self.clock.random.choices(tuple(theme.faults), tuple(theme.faults.values()))
        if self.injector.strike(name):
            self.faults.append(name)
            self.clock.log("", f"== {name} ==")
        self.left -= 1
        if self.left > 0:
            self._plan_next()
        else:
            self.clock.after(self.clock.random.choice((0.2, 2.0, 6.0, 25.0)), self._heal)

    def _heal(self) -> None:
        """The last of all faults ends."""
        self.clock.log("", "== all faults are over ==")
        self.injector.heal()
        self.healed = True
