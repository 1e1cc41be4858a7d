"""A job in place that is hurt, and everything that must be true of it."""

from __future__ import annotations

import json
import signal
import time
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from elastic_runtime.cli.ctl.elasticctl import main as elasticctl
from elastic_runtime.errors import EXIT_DONE, EXIT_LEFT
from tests import processes
from tests.chaos.faulty_disk import Disk
from tests.chaos.fleet import Fleet, Node
from tests.chaos.in_place_plan import LOSSES, Kind, Pace, Target
from tests.chaos.in_place_plays import PLAYS
from tests.chaos.in_place_sight import Checkpoints, Histories, Size
from tests.chaos.in_place_truth import (
    broken_rules,
    check_logs,
    check_saved,
    check_weights,
    forsaken,
    stalls,
)
from tests.chaos.leftovers import Leftovers
from tests.chaos.stopped_thread import StoppedThread
from tests.model.history import Strike

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal

    from tests.chaos.in_place_plan import Fault
    from tests.etcd_server import EtcdServer
    from tests.model.history import Process

_SCRIPT = Path(__file__).with_name("in_place_job.py")
# Seconds without a step that are a hang.
HANG = 4.0
_OPTIONS = (
    *("--lease-ttl", "2", "--last-call", "1", "--max-restarts", "0"),
    *("--hang-timeout", str(HANG)),
)
# A node that is out of reach comes back after so many seconds.
_AWAY = 5.0
_NOT_YET = 1 << 62
# Longer than a lease.
_PAUSED = 3.5
# Steps of a round after which all agents know how long one takes: the first one of a process may
# take for ever, as it may compile.
_SEEN = 3
# A round counts once it has made so many steps.
_STEPS = 3
# All ranks have seen the goal long before they get there.
_AHEAD = 40
# What a worker may leave where its error should be, when it is killed.
_BROKEN = {
    Target.LEADER: "",
    Target.FIRST: '{"message": {"mess',
    Target.MIDDLE: "[1]",
    Target.LAST: '{"message": null}',
}


class InPlaceCluster(Fleet):
    """The nodes of one job in place, of one worker each.

    The first node is never killed nor asked to leave, only stopped: it shows what a long life
    costs.

    Args:
        directory: for logs, histories, checkpoints and weights.
        etcd: where the nodes meet.
        seconds: length of a step.
        bounds: fewest and most nodes.
        options: further options of ``elastic-run``.
        save_every: how often the job saves; nothing: it does not save.
        shadow: whether the job can undo an optimizer's step, and has a counter that follows it.

    Attributes:
        strikes: what was done to its processes from here.
        sizes: of the first node's agent and worker, at each moment of calm.
        struck: each fault that is over, with when it began (seconds on the monotonic clock).
        histories: what its processes have noted.
        disk: where its checkpoints are.
        checkpoints: which ones there were when.
        gone: of the nodes that are to have ended: by name, the exit code they must have.
        elders: the nodes that are there, the oldest first: it leads.
        limit, most: how many of them may train now, and at the start.
    """

    def __init__(
        self,
        directory: Path,
        etcd: EtcdServer,
        seconds: float = 0.02,
        bounds: tuple[int, int] = (1, 4),
        options: tuple[str, ...] = _OPTIONS,
        save_every: str = "",
        *,
        shadow: bool = False,
    ) -> None:
        self.strikes: list[Strike] = []
        self.sizes: list[tuple[Size, Size]] = []
        self.struck: list[tuple[Fault, float]] = []
        for name in ("histories", "orders", "weights"):
            (directory / name).mkdir()
        self.disk = Disk(directory / "checkpoints", directory / "trouble", small=bool(save_every))
        self.checkpoints = Checkpoints(self.disk.path)
        self._etcd = etcd
        self._goal = directory / "goal"
        self._saves, self._tells = bool(save_every), shadow
        self.histories = Histories(directory / "histories")
        self._last: tuple[Kind | None, int, int] = (None, 0, 0)  # the last fault: round, step
        self._nodes_of: dict[str, Node] = {}
        self.gone: dict[str, int] = {}
        self.elders: list[Node] = []
        self.limit = self.most = bounds[1]
        self._away: tuple[Node, float, StoppedThread | None] | None = None
        script = [str(_SCRIPT), "--folder", str(directory), "--seconds", str(seconds)]
        script += ["--save-every", save_every] if save_every else []
        script += ["--shadow"] if shadow else []
        super().__init__(directory, f"etcd://{etcd.endpoint}", script, bounds, options)
        self._leftovers = Leftovers()
        self.environ["TMPDIR"] = str(self._leftovers.temporary)

    def __exit__(self, failed: type[BaseException] | None, *rest: object) -> None:
        super().__exit__(failed, *rest)
        self._leftovers.close()
        self.disk.close()

    def start(self, count: int = 1) -> list[Node]:
        """Starts nodes, and returns at once."""
        made = super().start(count)
        self._leftovers.started()
        self.elders += made
        self._nodes_of |= {node.mark: node for node in made}
        return made

    # Faults

    def strike(self, fault: Fault) -> str:
        """Waits until it is time for a fault, and brings it about; returns what was done."""
        self._await(fault.pace)
        self._last = fault.kind, self.round, self.step
        self.struck.append((fault, time.monotonic()))
        match fault.kind:
            case Kind.JOIN:
                return self.start()[0].name
            case Kind.ETCD:
                self._etcd.restart()
                return "etcd"
            case Kind.ETCD_PAUSE:
                self._etcd.pause()
                since = time.monotonic()
                self.wait(lambda: time.monotonic() > since + _PAUSED, "the end of the pause")
                self._etcd.unpause()
                return f"etcd for {_PAUSED} s"
            case Kind.DISK_FULL:
                return self.disk.fill()
            case Kind.DISK_ERRORS:
                return self.disk.break_it()
            case Kind.DISK_WELL:
                self.disk.mend()
                return "the disk"
            case Kind.SCALE_DOWN:
                return self.scale(len(self.elders) - 1)
            case Kind.SCALE_UP:
                return self.scale(self.most)
            case Kind.RESUME:
                return self.resume()
        if fault.kind in PLAYS:
            return PLAYS[fault.kind](self)
        return self.act(fault)

    def act(self, fault: Fault) -> str:
        """Does something to a node; returns to which."""
        victim = self.victim(fault)
        worker = self.histories.seats()[victim.mark]
        done = victim.name
        self._last = fault.kind, self.round, self.step
        match fault.kind:
            case Kind.KILL_WORKER:
                self._note([worker], "killed")
                processes.send([worker.pid], signal.SIGKILL)
            case Kind.HANG:
                self._order(worker, "before", "hang")
            case Kind.BETWEEN:
                self._order(worker, "between", "die")
            case Kind.ERROR_FILE:
                text = _BROKEN[fault.target]
                self._order(worker, "before", "error", text)
                done += f": {text!r}"
            case Kind.SERVER | Kind.SERVER_AGAIN:
                self._kill_server(victim, again=fault.kind is Kind.SERVER_AGAIN)
            case Kind.KILL_NODE:
                self.take_out([victim], fault.kind)
            case Kind.STOP_NODE | Kind.STOP_LOOP:
                self.silence(victim, whole=fault.kind is Kind.STOP_NODE)
            case Kind.ASK | Kind.ASK_TWICE | Kind.ASK_TREE:
                self.take_out([victim], fault.kind)
            case _:
                raise AssertionError(f"{fault.kind} is done elsewhere")
        return done

    def take_out(self, nodes: list[Node], kind: Kind) -> None:
        """Kills nodes, or asks them to leave."""
        killed = kind is Kind.KILL_NODE
        for node in nodes:
            self.elders.remove(node)
            self.gone[node.name] = -signal.SIGKILL if killed else EXIT_LEFT
        self._note(self._living(nodes), "killed" if killed else "asked")
        for node in nodes:
            self._leftovers.note(node.agent.pid, killed=killed)
            if killed:
                self.kill_node(node)
            elif kind is Kind.ASK_TREE:
                processes.send(node.processes(), signal.SIGTERM)
            else:
                self.ask_to_leave(node)
        if kind is Kind.ASK_TWICE:
            time.sleep(0.1)  # what is tried here
            for node in nodes:
                self.ask_to_leave(node)

    def silence(self, node: Node, *, whole: bool) -> None:
        """A node is out of reach from now on: all of it, or its agent's main thread."""
        self.elders.remove(node)
        self._note(self._living([node]), "stopped", until=_NOT_YET)
        thread = None
        if whole:
            self.stop_node(node)
        else:
            thread = StoppedThread(node.agent.pid)
        self._away = node, time.monotonic(), thread

    def resume(self) -> str:
        """The node that was silent goes on."""
        assert self._away is not None
        node, since, thread = self._away
        self.wait(lambda: time.monotonic() > since + _AWAY, f"{_AWAY} seconds")
        self._away = None
        self.elders.append(node)  # its key is gone, and it registers anew
        if thread is not None:
            thread.resume()
        else:
            processes.send(node.processes(), signal.SIGCONT)
        now = time.monotonic_ns()
        self.strikes = [
            replace(s, until=now) if (s.kind, s.until) == ("stopped", _NOT_YET) else s
            for s in self.strikes
        ]
        return node.name

    def scale(self, most: int, least: int = 1) -> str:
        """``elasticctl scale``; returns what was asked for."""
        words = ["scale", "--min", str(least), "--max", str(most), *self.job]
        assert elasticctl(words) == 0
        self.limit = most
        return f"{least} to {most} nodes"

    def be_slow(self, seconds: float) -> None:
        """The next process of the job that begins does so later."""
        draft = self._directory / "orders" / "draft"
        draft.write_text(str(seconds))
        draft.rename(draft.with_name("slow"))

    def _order(self, worker: Process, place: str, what: str, text: str = "") -> None:
        """Has a worker do something to itself, and waits until it does."""
        orders = self._directory / "orders"
        draft = orders / "draft"
        draft.write_text(json.dumps([place, what, text]))
        draft.rename(orders / str(worker.pid))

        def obeyed() -> bool:
            self.read()
            return any(one.process == worker.name for one in self.histories.strikes)

        processes.wait_for(obeyed, 60.0, f"{what} of {worker}", self.story, pause=0.005)

    def _kill_server(self, node: Node, *, again: bool) -> None:
        def server() -> int:
            return processes.fork_server(node.agent.pid, node.processes())

        self._note(self._living([node]), "killed")
        first = server()
        assert first, f"no fork server of {node.name}"
        processes.send([first], signal.SIGKILL)
        if again:

            def next_one() -> int:
                found = server()
                return found if found != first else 0

            second = processes.wait_for(next_one, 30.0, "another fork server", self.story)
            processes.send([second], signal.SIGKILL)

    def _living(self, nodes: Iterable[Node]) -> list[Process]:
        mine = self.histories.of(node.mark for node in nodes)
        return [one for one in mine if processes.state(one.pid)]

    def _note(
        self,
        whom: Iterable[Process],
        kind: Literal["killed", "stopped", "asked"],
        until: int = 0,
    ) -> None:
        now = time.monotonic_ns()
        # The processes of a node die one after the other, and the last may enter a round before.
        until = _NOT_YET if kind == "killed" else until
        self.strikes += [Strike(now, one.name, kind, until) for one in whom]

    def victim(self, fault: Fault) -> Node:
        """The node that a fault is meant for, or the one after it if that one is to be spared."""
        first, *_ = self.nodes

        def able_now() -> list[Node]:
            self.read()
            seats = self.histories.seats()
            strikes = self._all_strikes()
            killed = {strike.process for strike in strikes if strike.kind == "killed"}
            train = [
                node
                for node in map(self._nodes_of.__getitem__, seats)
                if node in self.elders
                and processes.state(seats[node.mark].pid) not in ("", "Z")
                and seats[node.mark].name not in killed
            ]
            if fault.kind is Kind.HANG and self.steps_here < _SEEN:
                return []
            if fault.kind in (Kind.STOP_NODE, Kind.STOP_LOOP):
                # An only member that is silent may train on: others wait for it, up to the fence.
                return train if len(train) > 1 else []
            return [node for node in train if node is not first]

        # Who was struck last, or has just come, is to train first where nobody else is left.
        able = processes.wait_for(able_now, 60.0, "a node that can be struck", self.story)
        match fault.target:
            case Target.LEADER:
                return min(able, key=self.elders.index)
            case Target.FIRST:
                return able[0]
            case Target.MIDDLE:
                return able[len(able) // 2]
            case Target.LAST:
                return able[-1]

    # What is seen

    def read(self) -> None:
        """Takes in what the histories say by now; a node that has ended by itself is a failure."""
        ended = [n.name for n in self.nodes if not n.alive and n.name not in self.gone]
        assert self._goal.exists() or not ended, f"{ended} ended by themselves\n{self.story()}"
        self.histories.read()
        self.checkpoints.look()

    @property
    def round(self) -> int:
        """The newest round in which anybody has begun to train."""
        return self.histories.round

    @property
    def step(self) -> int:
        """The furthest step that anybody has committed in the newest round."""
        return self.histories.step

    @property
    def worlds(self) -> list[int]:
        """The size of the world as each rank of the newest round knows it."""
        return self.histories.worlds

    @property
    def steps_here(self) -> int:
        """How many steps were committed in the newest round."""
        return self.histories.steps_here

    def trains(self, nodes: list[Node], count: int) -> bool:
        """Whether so many of these nodes make the newest round, and no other node."""
        marks = set(self.histories.seats())
        return self.worlds == [count] * count and marks <= {node.mark for node in nodes}

    def is_spare(self, node: Node) -> bool:
        """Whether a node that was silent has come back, and waits for a place."""
        with redirect_stdout(StringIO()) as printed:
            assert elasticctl(["status", "--format", "json", *self.job]) == 0
        nodes = json.loads(printed.getvalue())["nodes"]
        return [one["role"] for one in nodes if one["name"] == node.name] == ["spare"]

    def until_saved(self) -> None:
        """Waits for a further checkpoint."""
        before = self.checkpoints.newest

        def further() -> bool:
            self.read()
            return self.checkpoints.newest != before

        self.wait(further, "a further checkpoint")

    def _all_strikes(self) -> list[Strike]:
        return self.strikes + self.histories.strikes

    def _await(self, pace: Pace) -> None:
        if pace is Pace.CALM:
            self.until_calm()
        elif pace is Pace.EARLY:
            self.wait(self._goes_on, "steps since the last fault")
        elif pace is Pace.SAVING:
            self.wait(self._goes_on, "steps since the last fault")
            saving = self.checkpoints.unfinished
            processes.wait_for(saving, 60.0, "a save", self.story, pause=0.001)
        elif pace is Pace.SEALING:
            processes.wait_for(self._is_left, 60.0, "a rank that leaves", self.story, pause=0.001)
        self.read()

    def _goes_on(self) -> bool:
        """Whether the job has made steps since the last fault, in another round if that broke."""
        self.read()
        kind, number, step = self._last
        if kind in LOSSES:
            return self.round > number and self.steps_here >= _STEPS
        return self.step >= step + _STEPS

    def _is_full(self) -> bool:
        return self.trains(self.elders, min(len(self.elders), self.limit))

    def _is_left(self) -> bool:
        self.read()
        _, number, _ = self._last
        return self.histories.left(number) or self.round > number

    def until_calm(self) -> None:
        """Waits until all nodes train together, and takes the first one's size."""
        count = min(len(self.elders), self.limit)
        self.wait(lambda: self._goes_on() and self._is_full(), f"steps with {count} ranks")
        first, *_ = self.nodes
        self._leftovers.note(first.agent.pid)
        worker = self.histories.seats().get(first.mark)
        if worker:
            self.sizes.append((Size.of(first.agent.pid), Size.of(worker.pid)))

    # The end

    def finish(self) -> None:
        """Lets the job come to its last step, and checks all that must be true of it."""
        self.until_calm()
        goal = self.step + _AHEAD
        ranks = min(len(self.elders), self.limit)
        for node in self.elders:
            self._leftovers.note(node.agent.pid)
        draft = self._goal.with_suffix(".draft")
        draft.write_text(str(goal))
        draft.rename(self._goal)
        self.wait_for_end(120.0)
        codes = {node.name: node.agent.returncode for node in self.nodes}
        assert codes == dict.fromkeys(codes, EXIT_DONE) | self.gone, self.story()
        self.check(goal)
        check_weights(self._directory / "weights", ranks, goal)
        if self.struck:
            check_logs(self.nodes, [fault for fault, _ in self.struck])
        self._leftovers.check()
        if self._saves:
            check_saved(self.disk.path, self.checkpoints, self.histories)

    def check(self, steps: int) -> None:
        """The history so far keeps the guarantee; so many steps were made at least."""
        self.read()
        assert self.step >= steps, self.story()
        ended = forsaken(self.nodes, self.histories)
        print(f"left waiting for who had gone: {len(ended)}")
        assert len(ended) <= self.may_be_forsaken, (ended, self.story())
        strikes = [*self.strikes, *ended]
        found = broken_rules(self.histories, strikes, self.checkpoints, tells=self._tells)
        assert not found, "\n".join([*found[:10], self.story()])

    @property
    def may_be_forsaken(self) -> int:
        """One fault in a hundred, more on a busy machine: sixty faults meet two now and then."""
        return 2 + len(self.struck) // 30

    def stalls(self) -> dict[str, list[float]]:
        """By kind: for how long no step was committed, at each fault, in seconds."""
        return stalls(self.histories, self.struck)
