"""The faults that a schedule meets: each is a method that says whether it could happen."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_runtime.protocol import records
from elastic_runtime.rendezvous.core.round_parts import keys
from elastic_runtime.rendezvous.store_contract import Put
from tests.model.store import RECONNECT
from tests.model.world import GARBAGE

if TYPE_CHECKING:
    from elastic_runtime.rendezvous.policy import Policy
    from tests.model.node import Node
    from tests.model.themes import Theme
    from tests.model.world import World


class FaultInjector:
    """What can go wrong in a world, and how it ends; themes name the methods, in words.

    Args:
        world: the simulation.
        policy: of its nodes.
        theme: how long its faults last.
        launched: how many nodes the job began with.

    Attributes:
        calm_until: before this moment no other fault may happen.
        store_gone: the store never comes back.
        cut_off: the nodes that never reach it again.
    """

    def __init__(self, world: World, policy: Policy, theme: Theme, launched: int) -> None:
        self.world = world
        self.clock = world.clock
        self.policy = policy
        self.theme = theme
        self.launched = launched
        self.calm_until = 0.0
        self.store_gone = False
        self.cut_off: set[Node] = set()

    def strike(self, name: str) -> bool:
        """Lets the fault of this name happen; whether it could."""
        happened: bool = getattr(self, name.replace(" ", "_"))()
        return happened

    def heal(self) -> None:
        """Ends every fault that can end."""
        world = self.world
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
            self.clock.after(self.clock.within(0.0, 2.0), self.add)
        return True

    def add(self) -> None:
        """A node joins, not before the store is calm: it cannot know that the store forgot."""
        if self.clock.now < self.calm_until:
            self.clock.after(self.calm_until - self.clock.now + 0.001, self.add)
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

    def leave(self) -> bool:
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
            self.clock.after(self.clock.within(0.0, 0.3), self.add)
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
