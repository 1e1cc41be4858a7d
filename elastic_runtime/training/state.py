"""``State``: what a training job must not lose, and how far it is.

It does not know its form when it is made. In the restart form it counts steps and saves. In place
(``keep_in_memory``) it also remembers each commit: memory is *clean* while it is exactly the state
of the last commit, or can be rolled back to it. Parameters and optimizer state change only inside
an optimizer's step, which hooks of the optimizer report, and everything that changes elsewhere
(buffers, values, generators, schedulers) is copied at each commit.
"""

from __future__ import annotations

import json
import time
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Never

import torch

from elastic_runtime.errors import UsageError
from elastic_runtime.events.state_events import StateCopied
from elastic_runtime.parts import json_tensors
from elastic_runtime.parts.commit_image import (
    CommitImage,
    check_image,
    sampled_digest,
    take_image,
)
from elastic_runtime.parts.optimizer_part import OptimizerPart, ParameterNames
from elastic_runtime.parts.other_parts import (
    GeneratorsPart,
    RankPart,
    ValuesPart,
    moves,
    scalers_of,
)
from elastic_runtime.parts.outside_changes import OutsideChanges
from elastic_runtime.parts.per_rank import RankPosition
from elastic_runtime.parts.plain_values import plain_value
from elastic_runtime.parts.saved_parts import SavedParts, part_of
from elastic_runtime.parts.tensor_memory import local_tensor
from elastic_runtime.parts.wrappers import unwrapped_optimizer
from elastic_runtime.system import torch_private
from elastic_runtime.training.checkpoints import CheckpointSettings
from elastic_runtime.training.duties import Duties
from elastic_runtime.worker.context import context
from elastic_runtime.worker.loop_hints import (
    BUFFERS_IN_DUTY,
    COMMIT_TWICE,
    GRADIENTS_LEFT,
    OPTIMIZER_LATE,
    SCHEDULE_LATE,
    SCHEDULE_LEFT_OUT,
    tell_once,
)
from elastic_runtime.worker.recovery.optimizer_gate import OptimizerGate
from elastic_runtime.worker.recovery.optimizer_prealloc import PreallocatedTensors
from elastic_runtime.worker.recovery.recovery_source import MemoryCondition, RankStatus, StateLost
from elastic_runtime.worker.recovery.replica_check import refuse_sharded
from elastic_runtime.worker.step_source import StepSource

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from datetime import timedelta

    from elastic_runtime.checkpoint.checkpointer import Checkpointer
    from elastic_runtime.checkpoint.save_interval import Interval
    from elastic_runtime.parts.part import StatePart
    from elastic_runtime.parts.tensor_form import TensorForm
    from elastic_runtime.worker.recovery.replica_check import ReplicaCheck
    from elastic_runtime.worker.world import TrainsAlone, World


class TrainingStopped(BaseException):
    """Ends ``train``, as ``stop()`` was called: there is no further step. Not to be caught."""


class State:
    """What must survive a fault: models, optimizers, and whatever else changes with the steps.

    Example::

        state = elastic.State(model=model, optim=optim, loader=loader, best=0.0)
        state.checkpoints("runs/digits", every="30s", keep=3)
        state.at("50 steps, end", evaluate)

        def train(world):
            ddp = elastic.ddp(model)
            for step in loader.steps(epochs=10):
                for inputs, targets in step:
                    step.backward(cross_entropy(ddp(inputs), targets))
                optim.step()
                optim.zero_grad()
                state.commit()

        elastic.run(train, state)

    Each object is an attribute under its name. Any other attribute that is set before training is a
    plain value, which is kept with each commit, saved, and sent to new ranks. A subclass with
    annotations only tells a type checker their types::

        class Work(elastic.State):
            model: Net
            best: float
    """

    # Attributes that are declared here are the State's own; all others are values.
    _named: dict[str, Any]
    _names: ParameterNames
    _held: list[StatePart]  # of the named objects
    _plain: ValuesPart
    _values: dict[str, Any]  # those of ``_plain``, as is what the job remembers of itself
    _progress: dict[str, Any]
    _duties: Duties
    _duty: str  # the name of that which is done now
    _settings: CheckpointSettings | None
    _world: World | None
    _calls: int  # of ``train`` in this process
    _stops: bool  # stop() was called here, and the ranks have yet to agree
    _shadow: bool
    _with_generators: bool
    _step: int
    _commits: int  # made since the job began or was started again, the same on all ranks
    _optimized: bool  # an optimizer has made a step since the last commit
    _ever_optimized: bool
    _is_ahead: bool  # a duty has changed values since
    _watched: bool  # whether optimizers are
    _schedules: list[Any]
    _schedules_at: list[int]  # as of the last commit
    _on_commit: Callable[[], None] | None  # set by elastic.run; called last in each commit
    _saver: Checkpointer | None  # the same; where there are checkpoints
    _alone: TrainsAlone | None  # what trains this rank's own model between two commits
    _alone_optimizers: Mapping[str, torch.optim.Optimizer]
    _beside: dict[str, Any]  # saved as well, by name; in memory no part of it
    # In place:
    _in_memory: bool
    _parts: list[StatePart]  # which all ranks have alike
    _own: list[RankPart]
    _round: int  # see RankStatus; set by elastic.run
    _condition: MemoryCondition
    _newcomer: bool  # nothing was ever committed in this process
    _changes: OutsideChanges | None  # None with a shadow, which undoes all
    _collectives: int | None  # of the script, when the first optimizer of the step began
    _spare: PreallocatedTensors  # for what may be received
    _gate: OptimizerGate  # set by elastic.run; what optimizers and commits must pass
    _replica_check: ReplicaCheck | None  # set by elastic.run; compares the ranks of a round

    def __init__(
        self, *unnamed: Never, shadow: bool = False, generators: bool = True, **named: Any
    ) -> None:
        """Takes the objects and values; they are not changed before training begins.

        Args:
            *unnamed: not allowed; each object needs a name.
            shadow: in place, also keep a copy of all parameters and optimizer state, so that a step
                with a collective between two optimizers (a GAN) can be undone. It costs as much
                memory as these have, and the time to copy them at each commit.
            generators: also keep the random generators of PyTorch, Python and NumPy.
            **named: modules, optimizers, loaders, generators, ``PerRank``, anything with
                ``state_dict`` and ``load_state_dict``, and plain values: numbers, strings, tensors,
                lists, dicts. All modules whose parameters the optimizers change must be among them.

        Raises:
            UsageError: an object is of a kind that cannot be kept, or a name is taken.
        """
        if unnamed:
            raise UsageError(
                "the objects of a State go by name, on all ranks and in checkpoints; name the "
                "objects: State(model=model, optim=optim)"
            )
        if not isinstance(shadow, bool) or not isinstance(generators, bool):
            raise UsageError(
                "shadow and generators are switches of a State; give the object another name"
            )
        for name in named:
            self._check_name(name)
        modules = {n: one for n, one in named.items() if isinstance(one, torch.nn.Module)}
        self._names = ParameterNames(modules)
        parts = {name: part_of(name, one, self._names) for name, one in named.items()}
        self._held = [part for part in parts.values() if part is not None]
        self._named = {name: one for name, one in named.items() if parts[name] is not None}
        plain = {n: plain_value(one, f"State({n}=...)") for n, one in named.items() if not parts[n]}
        self._plain = ValuesPart(plain)
        self._values, self._progress = self._plain.values, self._plain.progress
        self._duties = Duties()
        self._duty = ""
        self._settings = None
        self._world = None
        self._calls = 0
        self._stops = False
        self._shadow = shadow
        self._with_generators = generators
        self._step = 0
        self._commits = 0
        self._optimized = self._ever_optimized = self._is_ahead = False
        self._watched = False
        self._schedules = [
            one
            for one in self._named.values()
            if isinstance(one, torch.optim.lr_scheduler.LRScheduler)
        ]
        self._schedules_at = []
        self._on_commit = None
        self._saver = None
        self._alone = None
        self._alone_optimizers = {}
        self._beside = {}
        self._in_memory = False
        self._parts = []
        self._own = []
        self._round = 0
        self._condition = MemoryCondition.NEW
        self._newcomer = True
        self._changes = None
        self._collectives = None
        self._spare = PreallocatedTensors(())
        self._gate = OptimizerGate(lambda: None)
        self._replica_check = None
        for one in self._named.values():
            if isinstance(one, StepSource):
                one.belong_to(_ForLoaders(self))

    # What users call

    @property
    def step(self) -> int:
        """How many steps are committed."""
        return self._step

    @property
    def world(self) -> World:
        """The ranks that train together; after ``elastic.run`` those that were there at its end.

        Raises:
            UsageError: no ranks were connected yet.
        """
        if self._world is None:
            raise UsageError("state.world is not known before elastic.run or state.resumed()")
        return self._world

    @property
    def stopped(self) -> bool:
        """Whether ``stop`` has ended training, in this start of the job or in an earlier one."""
        return bool(self._progress["stopped"])

    def checkpoints(
        self,
        place: str | os.PathLike[str],
        *,
        every: Interval | Sequence[Interval] | None = None,
        keep: int | None = None,
        keep_every: int | str | timedelta | None = None,
        sync: bool = False,
        snapshots: Interval | Sequence[Interval] | None = None,
        on_error: Literal["continue", "raise"] = "continue",
        max_age: Interval | Sequence[Interval] | None = None,
    ) -> None:
        """Says where all of this is saved, and how often; training begins with what is there.

        Args:
            place: where all checkpoints of the job are: a path, or a URL that fsspec knows
                (``s3://bucket/run``). All nodes must see the same one.
            every: how often to save: steps (``10``, ``"10 steps"``), a time (``"30s"``), or both
                (``"100 steps, 5m"``, ``(100, "5m")``), whichever comes first. None: only when
                ``save`` is called, the job is asked to leave, or training is over. The first save
                of a new job follows soon after its first step.
            keep: how many of the newest checkpoints to keep, at least 1; None: all of them.
            keep_every: which older ones are never deleted: one for every so many steps
                (``1000``), for every such time (``"6h"``), or both (``"1000 steps, 6h"``).
            sync: do no save in the background: each one stops training until it is durable, and
                needs no memory for a copy.
            snapshots: how often to take a snapshot in the memory of the agents, written as
                ``every``.
            on_error: what to do when a save fails for a reason that may pass, such as a full disk.
                ``"continue"``: report an event and try again sooner; ``"raise"``: raise
                ``CheckpointFailed`` at a later commit.
            max_age: with ``"continue"``, how long saves may fail before a commit raises an error,
                so that the job is restarted: a time or steps, written as ``every``. None: ten
                intervals, but at least a minute; if ``every`` is None, an hour after the first
                failure.

        Raises:
            CheckpointUsageError: a setting cannot be used.
            UsageError: it was called before, or training has begun.
        """
        if self._settings is not None:
            raise UsageError("checkpoints() was called before; a State is saved to one place")
        self._refuse_when_begun("checkpoints()")
        self._settings = CheckpointSettings(
            place, every, keep, keep_every, sync, snapshots, on_error, max_age
        )

    def at(self, when: str, do: Callable[[], object], name: str | None = None) -> None:
        """Has something done after certain steps: an evaluation, a log line, a copy of the model.

        It is owed from the commit of such a step on, and done at once: all ranks call ``do()``.
        After it the plain values of this State are rank 0's on all ranks, and modules are in the
        mode (``train()``, ``eval()``) in which they were. What it changes is kept with the next
        commit; a fault before that undoes it and has it done again. Several that are due after one
        step are done in the order in which they were given here.

        Args:
            when: ``"50 steps"``, ``"10m"``, ``"epoch"`` (after its last step), ``"end"`` (when
                training is over), or several: ``"50 steps, end"``.
            do: called without arguments, on all ranks.
            name: under which it is owed, also in checkpoints; None: that of the function.

        Raises:
            UsageError: ``when`` is not understood, the name is taken, or training has begun.
        """
        self._refuse_when_begun("at()")
        self._duties.add(when, do, name, time.monotonic())

    def commit(self) -> None:
        """Marks a step as complete: it is kept as long as one rank that committed it survives.

        To be called on all ranks, after the last optimizer of the step and all else that changes
        with it. A save that is due is made in it, and what ``at`` has asked for. It may end
        ``train``, as the world changes at commits.

        Raises:
            UsageError: it was called outside of ``elastic.run`` and ``resumed``, or inside of what
                ``at`` calls; the gradients of the step were not weighed; or ranks have different
                models.
        """
        if self._on_commit is None:
            raise UsageError(
                "commit() outside of elastic.run: only inside the function that elastic.run calls, "
                "or with state.resumed(), are the ranks connected; call it there, after "
                "optimizer.step()"
            )
        if self._duty:
            raise UsageError(
                f"commit() was called in {self._duty!r}, which is done between two steps; change "
                "values there, and they are kept with the next commit"
            )
        if self._alone is not None and not self._alone.commits:
            raise UsageError(
                f"this State is committed by its {type(self._alone).__name__}, when the ranks come "
                "together; leave out commit(), and call the step() of that after each inner step"
            )
        if self.stopped:
            raise TrainingStopped
        loaders = self._loaders()
        for loader in loaders:
            loader.before_commit(optimized=self._optimized)
        if self._watches and not self._optimized and not any(one.has_begun for one in loaders):
            tell_once(COMMIT_TWICE)
        if self._watches and not self._optimized and self._has_gradients():
            tell_once(GRADIENTS_LEFT)
        if self._in_memory:
            self._gate.before_commit()
            self._look_between_optimizer_and_commit()
        if self._replica_check is not None:
            self._replica_check.before_commit(self._commits + 1)
        self._advance()
        self._on_commit()

    def resumed(self, *, strict: bool = True) -> AbstractContextManager[World]:
        """The restart form for a loop that is no function: the ranks are connected within it.

        Example::

            with state.resumed() as world:
                for step in loader.steps(epochs=10):
                    ...
                    state.commit()

        It begins with the newest state that is saved, uses a process group of the script's own if
        there is one, and at its end does what ``at`` has asked for, and saves the last state; an
        exception makes no last save.

        Args:
            strict: see ``elastic.run``.

        Raises:
            CheckpointUsageError: nothing says where the state is saved, or what is there does not
                fit.
            UsageError: the State is trained already.
        """
        from elastic_runtime.training.run import resumed  # which is made for a State

        return resumed(self, strict=strict)

    def save(self, *, sync: bool = False) -> None:
        """Saves the last commit now, unless it is saved already; on all ranks at the same point.

        Args:
            sync: return only when it is durable; else it is copied, and written in the background.

        Raises:
            CheckpointFailed: with ``sync``, it could not be saved in several tries.
            UsageError: there are no ``checkpoints``, the ranks are not connected, or a step is half
                done, or what ``at`` calls is not over.
        """
        if self._saver is None:
            raise UsageError(
                "save() needs state.checkpoints(...) before training, and connected ranks: call it "
                "in train, after commit()"
            )
        if self._duty:
            raise UsageError(
                f"save() was called in {self._duty!r}, which is not over: what it has changed so "
                "far would be saved, and done again after a fault; what it changes is saved with "
                "the next commit, or call save() in train, after commit()"
            )
        if self._optimized:
            raise UsageError(
                "save() was called between an optimizer and commit(), when a step is half done; "
                "call it after commit()"
            )
        self._saver.count(self._step)
        self._saver.save(sync=sync)

    def stop(self) -> None:
        """Ends training, on all ranks at the same commit, also if the job is started again.

        In what ``at`` calls it takes effect at once. Elsewhere it does so at the next commit at
        which the ranks agree, a quarter of a second later at most, as one rank may call it alone.
        ``steps()`` of a loader then ends; where no loader of this State gives the steps, the commit
        leaves ``train``.
        """
        self._stops = True

    def __repr__(self) -> str:
        """The names and kinds of the objects, the values, and the step."""
        objects = [f"{name}: {type(part).__name__}" for name, part in self._named.items()]
        values = [f"{name}={value!r:.40}" for name, value in self._values.items()]
        return f"{type(self).__name__}({', '.join((*objects, *values))}; step {self._step})"

    # What the runtime calls

    def entrust(
        self, alone: TrainsAlone, optimizers: Mapping[str, torch.optim.Optimizer] | None = None
    ) -> None:
        """Leaves it to another object when to commit, and when samplers and the like move on.

        ``optimizers`` are what it commits with, by names of their own; no checkpoint needs them.
        """
        self._alone = alone
        self._alone_optimizers = dict(optimizers or {})

    def lend_to_trainer(self, notes: Any) -> None:
        """A trainer's loop commits, and does by itself again what follows a commit, after a fault.

        Args:
            notes: what each rank has noted of it, with ``state_dict`` and ``load_state_dict``:
                those of rank 0 are saved.
        """
        self._beside["_notes"] = notes
        self._schedules = []  # one that follows a commit is stepped again, too

    def keep_in_memory(self) -> State:
        """Remembers each commit from now on, as in place; gives this State.

        Raises:
            UsageError: an object cannot be remembered, or this rank holds only a part of it.
        """
        if self._in_memory:
            return self
        self._own = [part for part in self._held if isinstance(part, RankPart)]
        alone = self._alone_optimizers.items()
        self._parts = [part for part in self._held if not isinstance(part, RankPart)]
        self._parts += [OptimizerPart(name, one, self._names) for name, one in alone]
        self._parts.append(self._plain)
        if self._with_generators:
            self._own.append(GeneratorsPart())
        for part in self._parts:
            part.keep(shadow=self._shadow)
        self._changes = None if self._shadow else OutsideChanges(self._parts)
        refuse_sharded(self._parts)
        self._in_memory = True
        self.watch_optimizers()
        return self

    def watch_optimizers(self) -> None:
        """Notices each step of an optimizer from now on."""
        if self._watched:
            return
        self._watched = True
        held = [one for one in self._named.values() if isinstance(one, torch.optim.Optimizer)]
        for optimizer in map(unwrapped_optimizer, (*held, *self._alone_optimizers.values())):
            optimizer.register_step_pre_hook(self._before_optimizer)

    def _enter(self, world: World) -> None:
        """Takes note of the ranks that train together from now on."""
        self._world = world

    def begin_call(self) -> None:
        """``train`` is about to be called."""
        self._calls += 1

    @property
    def is_entrusted(self) -> bool:
        """Whether another object says when to commit, such as a ``DiLoCo``."""
        return self._alone is not None

    @property
    def has_loaders(self) -> bool:
        """Whether it holds a loader that gives steps."""
        return bool(self._loaders())

    @property
    def _loops(self) -> bool:
        """Whether the script is in a loop that ends by itself when training is over."""
        return any(loader.iterates for loader in self._loaders())

    @property
    def _owed(self) -> str | None:
        """The next duty that is owed; None: there is none."""
        return next(iter(self._progress["owed"]), None)

    def _pay(self, name: str, *, changed: bool) -> None:
        """A duty is done; with the next commit it is owed no more.

        Args:
            name: of it.
            changed: it has changed values, which that commit keeps.
        """
        self._progress["owed"].remove(name)
        self._progress["done"][name] = self._step
        self._is_ahead |= changed
        if self._schedules_at:
            self._schedules_at = self._where_schedules_are()  # one may be stepped by a duty

    @property
    def is_ahead(self) -> bool:
        """Whether duties have changed values since the last commit."""
        return self._is_ahead

    def refuse_idle_duties(self) -> None:
        """Refuses what would never be done.

        Raises:
            UsageError: something is asked for after each epoch, and no loader says when that is.
        """
        if not self.has_loaders and (name := self._duties.of_epochs()):
            raise UsageError(
                f"{name!r} is to be done after each epoch, and no loader of this State says when "
                "that is: write State(..., loader=loader), or give steps or a time"
            )

    def owe_at_end(self) -> None:
        """Training is over: what is to be done then is owed, but what was done after this step."""
        done = self._progress["done"]
        self._owe([name for name in self._duties.owed_at_end() if done.get(name) != self._step])

    def stop_now(self) -> None:
        """Training is over, as a duty has found; what was saved at its step does not know that."""
        self._progress["stopped"], self._stops, self._is_ahead = True, False, True

    def values_digest(self) -> int:
        """A number that is the same for the same values."""
        packed = json_tensors.pack(self._values, "state")
        return zlib.crc32(json.dumps([json_tensors.canonical(packed[0]), packed[1]]).encode())

    def models_digest(self) -> int:
        """A number that changes when something has written to parameters or buffers."""
        held = [one for module in self._modules.values() for one in module.parameters()]
        held += [one for module in self._modules.values() for one in module.buffers()]
        # A version misses what goes through ``.data``, and a sample what changes a few numbers.
        versions = [0 if one.is_inference() else one._version for one in held]
        return sampled_digest(
            [local_tensor(one) for one in held], zlib.crc32(repr(versions).encode())
        )

    def packed_values(self) -> Any:
        """All values, as JSON."""
        return json_tensors.pack(self._values, "state")

    def take_values(self, packed: Any) -> None:
        """Replaces all values by those that another rank has packed."""
        self._values.clear()
        self._values.update(json_tensors.unpack(packed))

    def leave_world(self) -> None:
        """From now on it cannot be committed or saved."""
        self._on_commit = self._saver = None

    @property
    def _modules(self) -> dict[str, torch.nn.Module]:
        """The modules among its objects."""
        return {n: one for n, one in self._named.items() if isinstance(one, torch.nn.Module)}

    def look_for_schedules(self) -> None:
        """Tells people of an optimizer whose schedule is not here."""
        kinds = torch.optim.lr_scheduler.LRScheduler
        held = [*self._named.values()]
        inner = [value for one in held for value in getattr(one, "__dict__", {}).values()]
        known = {id(one.optimizer) for one in (*held, *inner) if isinstance(one, kinds)}
        for name, one in self._named.items():
            if not isinstance(one, torch.optim.Optimizer):
                continue
            optimizer = unwrapped_optimizer(one)
            scheduled = any("initial_lr" in group for group in optimizer.param_groups)
            if scheduled and not {id(one), id(optimizer)} & known:
                tell_once(SCHEDULE_LEFT_OUT, name=name)

    @property
    def with_generators(self) -> bool:
        """Whether the global random generators are kept."""
        return self._with_generators

    def saved_parts(self, *, generators: bool) -> SavedParts:
        """What a checkpoint has.

        Args:
            generators: the global random generators of each rank as well, if they are kept.
        """
        more = {**(self._alone.saves if self._alone is not None else {}), **self._beside}
        found = [part_of(name, one, self._names) for name, one in more.items()]
        parts = [*self._held, *(part for part in found if part is not None), self._plain]
        if generators and self._with_generators:
            parts.append(GeneratorsPart())
        return SavedParts(parts)

    def resumed_at(self, step: int) -> None:
        """Its objects have the content of this step, which was saved."""
        self._step = step
        self._forget_step()  # some loads have optimizers make an empty one

    @contextmanager
    def _doing(self, name: str) -> Iterator[None]:
        """While the block runs, a duty is done: commits are refused, modules keep their mode."""
        modules = [m for m in self._named.values() if isinstance(m, torch.nn.Module)]
        modes = [(one, one.training) for module in modules for one in module.modules()]
        buffers = [one for module in modules for one in module.buffers()]
        versions = [one._version for one in buffers if not one.is_inference()]
        self._duty = name
        try:
            yield
        finally:
            self._duty = ""
            for module, mode in modes:
                module.training = mode
            if versions != [one._version for one in buffers if not one.is_inference()]:
                tell_once(BUFFERS_IN_DUTY, what=name)

    def _owe(self, names: Sequence[str]) -> None:
        """These duties are owed, as of the last commit."""
        self._plain.owe(names)

    def note_stopped(self) -> None:
        """Training is over with the last commit, as all ranks have agreed."""
        self._stops = False
        self._plain.stop()

    @property
    def has_values(self) -> bool:
        """Whether the script keeps plain values here."""
        return bool(self._values)

    def rank_status(self) -> RankStatus:
        """How far this rank is and what its memory is worth; may be called from any thread."""
        return RankStatus(self._step, self._condition, self._round)

    def remember_commit(self, step: int) -> None:
        """Remembers the present content of the objects as a commit: at a start, after a load.

        Args:
            step: how many steps are committed.
        """
        self._condition = MemoryCondition.DIRTY  # until everything is copied
        if self._changes is not None:
            self._changes.choose()
        for part in self._parts:
            part.snapshot()
        for own in self._own:
            own.snapshot()
        if self._changes is not None:
            self._changes.record()
        self._step = step
        self._newcomer = False
        self._condition = MemoryCondition.CLEAN

    def give_up(self, step: int) -> None:
        """Marks the memory as about to be overwritten, and as unusable until a load is done.

        Args:
            step: a commit that other ranks have; at least as many steps are known to be made.
        """
        self._step = step
        self._condition = MemoryCondition.DIRTY

    def _leave(self) -> str:
        """Finds out, after ``train`` ended or was interrupted, whether the memory is still usable.

        To be called before the groups are ended.

        Returns:
            Why this rank cannot go back to its last commit, although no optimizer has begun since;
            "" if it can.
        """
        why = ""
        self._replica_check = None
        if self._changes is not None and self._condition is MemoryCondition.CLEAN:
            why = self._changes.undoable()
            if why:
                self._condition = MemoryCondition.DIRTY
        return why

    def roll_back(self) -> None:
        """Restores the last commit exactly; sets gradients to None and resets gradient scalers.

        Raises:
            StateLost: a step is half done and there is no shadow copy, or there is no commit yet.
        """
        status = self.rank_status()
        if status.condition is not MemoryCondition.CLEAN:
            raise StateLost(
                f"this rank cannot go back to step {status.step}: its memory is "
                f"{status.condition.name.lower()}; State(shadow=True) keeps a copy"
            )
        with torch.no_grad():
            for part in (*self._parts, *self._own):
                part.roll_back()
        self._forget_step()
        if self._changes is not None:
            self._changes.record()
        self._drop_leftovers()
        self._condition = MemoryCondition.CLEAN

    def commit_image(self, *, for_others: bool = False) -> CommitImage:
        """The whole state as plain values and tensors, to be given to other ranks.

        Args:
            for_others: with what a new rank has for itself then, in which ranks differ.

        Raises:
            UsageError: an object's state dict holds something that cannot be given away.
        """
        more: dict[str, Any] = {
            "step": self._step,
            "commits": self._commits,
            "shadow": self._shadow,
        }
        if for_others:
            own = {part.name: part.owner.own_state() for part in self._own}
            more["own"] = {name: json_tensors.pack(state, name) for name, state in own.items()}
        return CommitImage.of(self._parts, **more)

    def _check(self, meta: dict[str, Any]) -> None:
        """Finds out whether the state of another rank fits the objects of this one.

        Raises:
            UsageError: it does not; the message names what differs.
        """
        check_image(self._parts, meta)

    def preallocate(self) -> None:
        """Allocates memory for optimizer state that this rank may receive, while no rank waits.

        The first access to fresh memory takes several times as long as later ones: all other ranks
        would wait for a new rank. See ``PreallocatedTensors``.
        """
        optimizers = [part for part in self._parts if isinstance(part, OptimizerPart)]
        self._spare = PreallocatedTensors(p for one in optimizers for p in one.stateless())

    def drop_preallocated(self) -> None:
        """Frees what ``preallocate`` has allocated and was not needed."""
        self._spare = PreallocatedTensors(())

    def tensor_for(self, form: TensorForm) -> torch.Tensor:
        """A tensor of this form, to be received into."""
        return self._spare.take(form)

    def _load(
        self, meta: dict[str, Any], tensors: list[torch.Tensor], *, alike: int | None = None
    ) -> None:
        """Replaces this rank's state by that of another rank, and remembers it as a commit.

        Sets gradients to None and resets gradient scalers.

        Args:
            meta: of its image.
            tensors: of its image, on any device; they belong to this State from now on. Those
                that are this State's own, with new values, are in place already.
            alike: the last round in which the other rank had the same state as all others; from
                now on this memory belongs to that history. None: it did before, too.

        Raises:
            UsageError: it does not fit; nothing has been changed then.
        """
        self._check(meta)
        self.give_up(meta["step"])  # until all is done it is neither the old state nor the new one
        take_image(self._parts, meta, tensors)
        self._forget_step()
        self._schedules_at = []
        if alike is not None:
            self._begin_own(meta)
        self._commits = meta["commits"]
        if meta["shadow"]:
            self._copy_all()
        self._drop_leftovers()
        self._round = self._round if alike is None else alike
        self.remember_commit(meta["step"])

    def _digest(self) -> int:
        """A number that is the same on ranks that hold the same, but for random generators."""
        return self.commit_image().digest

    def _begin_own(self, meta: dict[str, Any]) -> None:
        """Sets what this rank has for itself, after it has received the state of another."""
        if not self._newcomer:  # it has something of its own, from its last commit
            for part in self._own:
                part.roll_back()
        elif meta["step"] and self._world is not None:
            place = RankPosition(self._world.rank, self._world.size)
            for part in self._own:
                if part.name in meta["own"]:
                    part.owner.take_foreign([json_tensors.unpack(meta["own"][part.name])], place)

    # Values

    def __getattr__(self, name: str) -> Any:
        # Only asked for what is no attribute of the class and none of __init__.
        if not name.startswith("_"):
            for held in (self._values, self._named):
                if name in held:
                    return held[name]
        raise AttributeError(f"this State has no {name!r}; set it first: state.{name} = 0")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            super().__setattr__(name, value)
            return
        self._check_name(name)
        if name in self._named:
            raise UsageError(
                f"state.{name} was given to the State when it was made; "
                "change the object itself, or give the value another name"
            )
        if name not in self._values and (self._on_commit is not None or self._duty):
            raise UsageError(
                f"this State has no {name!r}, and training has begun: give it its values before, "
                f"State({name}=...), so that a slip of the pen makes no new one"
            )
        self._values[name] = plain_value(value, f"state.{name}")

    def __delattr__(self, name: str) -> None:
        if self._values.pop(name, self) is self:
            raise AttributeError(f"this State has no value {name!r}")

    # Inside

    def _check_name(self, name: str) -> None:
        if "." in name or ":" in name:
            raise UsageError(f"{name!r} cannot be the name of something in a State: take a word")
        if name.startswith("_") or hasattr(type(self), name):
            raise UsageError(f"{name!r} is a name of State's own; take another one")

    def _refuse_when_begun(self, what: str) -> None:
        if self._calls or self._on_commit is not None:
            raise UsageError(f"{what} was called when training had begun; call it before")

    def _loaders(self) -> list[StepSource]:
        return [one for one in self._named.values() if isinstance(one, StepSource)]

    def _scalers(self) -> list[torch.amp.GradScaler]:
        found = [one for held in self._named.values() for one in scalers_of(held)]
        return [one for one in found if one.is_enabled()]

    def _has_gradients(self) -> bool:
        """Whether gradients wait for an optimizer that would have used them by now."""
        held = self._named.values()
        if self._scalers():
            return False  # it may have left the step out
        optimizers = [one for one in held if isinstance(one, torch.optim.Optimizer)]
        groups = [group for one in optimizers for group in one.param_groups]
        gradients = (parameter.grad for group in groups for parameter in group["params"])
        # Sharded ones would need all ranks, and sparse ones cannot be asked.
        plain = (one for one in gradients if type(one) is torch.Tensor and not one.is_sparse)
        return any(bool(one.any()) for one in plain)

    def _before_optimizer(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        if self.stopped and self._on_commit is not None and not self._duty:
            raise TrainingStopped  # before anything changes that no commit would keep
        for loader in self._loaders():
            loader.before_optimizer()
        first, self._optimized = not self._optimized, True
        if first and self._commits and self._alone is None and self.has_loaders:
            if not any(loader.has_begun for loader in self._loaders()):
                tell_once(OPTIMIZER_LATE)
        if first and self._schedules_at and self._schedules_at != self._where_schedules_are():
            tell_once(SCHEDULE_LATE)
        if self._replica_check is not None:
            self._replica_check.before_optimizer(optimizer, self._commits + 1)
        if self._in_memory and not self._shadow:  # with a shadow a step can be undone anywhere
            self._gate.before_optimizer(optimizer)
            if first and self._changes is not None:
                self._changes.before_optimizers()
            if first:
                self._collectives = torch_private.collectives_of_script()
            if self._condition is not MemoryCondition.NEW:
                self._condition = MemoryCondition.DIRTY

    def _advance(self) -> None:
        if self._in_memory:
            self._condition = MemoryCondition.DIRTY
            if self._changes is not None:
                self._changes.commit(optimized=self._optimized)
        epochs = [loader.epoch for loader in self._loaders()]
        if self._alone is None:
            for one in self._named.values():
                if moves(one):
                    one.commit()
        epoch_over = any(
            loader.epoch > before for loader, before in zip(self._loaders(), epochs, strict=True)
        )
        step = self._step + 1
        self._commits += 1
        self._ever_optimized |= self._optimized
        self._optimized = self._is_ahead = False
        self._schedules_at = self._where_schedules_are()
        self._owe(self._duties.owed_after(step, epoch_over=epoch_over))
        if self._in_memory:
            self.remember_commit(step)
        self._step = step

    def _where_schedules_are(self) -> list[int]:
        return [one.last_epoch for one in self._schedules]

    @property
    def _watches(self) -> bool:
        """Whether an optimizer of its own has ever made a step."""
        return self._commits > 0 and self._ever_optimized

    def _look_between_optimizer_and_commit(self) -> None:
        """Has all be copied from now on, if a collective stood between an optimizer and its commit.

        A rank can be interrupted there, with a step that is half done: another optimizer, a
        schedule, an average had yet to follow. With copies it is undone.
        """
        if self._collectives is None or self._shadow:
            return
        called = torch_private.collectives_of_script() != self._collectives
        self._collectives = None
        if called:
            self._copy_all()
            if context().rank == 0:
                context().note(StateCopied())

    def _copy_all(self) -> None:
        self._shadow, self._changes = True, None
        for part in self._parts:
            part.keep(shadow=True)

    def _forget_step(self) -> None:
        """The step that was broken off is not under way any more."""
        self._optimized = self._is_ahead = False
        self._collectives = None

    def _drop_leftovers(self) -> None:
        for part in self._parts:
            part.drop_leftovers()


class _ForLoaders:
    """A State, as its loaders see it."""

    def __init__(self, state: State) -> None:
        self._state = state

    @property
    def step(self) -> int:
        return self._state.step

    @property
    def stopped(self) -> bool:
        return self._state.stopped

    @property
    def call(self) -> int:
        return self._state._calls

    @property
    def is_entrusted(self) -> bool:
        return self._state.is_entrusted

    @property
    def needs_two(self) -> bool:
        modules = (one for held in self._state._modules.values() for one in held.modules())
        return any(isinstance(one, torch.nn.BatchNorm1d) for one in modules)

    @property
    def scalers(self) -> list[torch.amp.GradScaler]:
        return self._state._scalers()

    def end_training(self) -> Never:
        raise TrainingStopped


_OWN = frozenset(State.__annotations__)
