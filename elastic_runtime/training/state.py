"""``State``: what a training job must not lose, as one rank remembers it.

Memory is *clean* while it is exactly the state of the last commit, or can be rolled back to it:
parameters and optimizer state change only inside an optimizer's step, which hooks of the optimizer
report, and everything that changes elsewhere (buffers, counters, generators, schedulers) is copied
at each commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Never

import torch

from elastic_runtime.errors import UsageError
from elastic_runtime.worker.recovery.optimizer_prealloc import PreallocatedTensors
from elastic_runtime.worker.recovery.recovery_source import MemoryCondition, RankStatus, StateLost
from elastic_runtime.worker.recovery.replica_check import refuse_sharded
from elastic_runtime.worker.state import json_tensors
from elastic_runtime.worker.state.commit_image import (
    CommitImage,
    digest_of,
    forms_of,
    own_tensors,
    present,
)
from elastic_runtime.worker.state.optimizer_gate import OptimizerGate
from elastic_runtime.worker.state.optimizer_steps import OptimizerSteps
from elastic_runtime.worker.state.outside_changes import OutsideChanges
from elastic_runtime.worker.state.rng_state import RandomGenerators
from elastic_runtime.worker.state.state_parts import (
    CountersEntry,
    OptimizerPart,
    StatefulPart,
    TensorForm,
    parts_of,
    same_keys,
)
from elastic_runtime.worker.state.tensor_copies import receives, write

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from elastic_runtime.worker.recovery.replica_check import ReplicaCheck
    from elastic_runtime.worker.state.state_parts import StatePart
    from elastic_runtime.worker.world import TrainsAlone


class State:
    """What must survive a fault: models, optimizers, and whatever else changes with the steps.

    Example::

        state = elastic.State(model=model, optim=optim, sampler=sampler)
        state.epoch = 0              # a plain counter

        def train(world):
            ...
            optim.step()
            state.commit()           # right after the optimizer

        elastic.run(train, state)

    Each object is an attribute under its name. Any other attribute that is set is a counter: a
    plain value that is kept with each commit and sent to new ranks. A subclass with annotations
    only tells a type checker their types::

        class Work(elastic.State):
            model: Net
            epoch: int
    """

    # Attributes that are declared here are the State's own; all others are counters.
    _named: dict[str, Any]
    _parts: list[StatePart]
    _counters: dict[str, Any]
    _kept_counters: dict[str, Any]
    _shadow: bool
    _generators: RandomGenerators | None
    _step: int
    _round: int  # see RankStatus; set by elastic.run
    _commits: int  # made since the job began or was started again, the same on all ranks
    _condition: MemoryCondition
    _optimizer_steps: OptimizerSteps
    _changes: OutsideChanges | None  # None with a shadow, which undoes all
    _spare: PreallocatedTensors  # for what may be received
    _on_commit: Callable[[], None] | None  # set by elastic.run; called last in each commit
    _gate: OptimizerGate  # set by elastic.run; what optimizers and commits must pass
    _replica_check: ReplicaCheck | None  # set by elastic.run; compares the ranks of a round
    _alone: TrainsAlone | None  # what trains this rank's own model between two commits

    def __init__(
        self, *unnamed: Never, shadow: bool = False, generators: bool = True, **named: Any
    ) -> None:
        """Takes the objects; they are not changed before training begins.

        Args:
            *unnamed: not allowed; each object needs a name.
            shadow: also keep a copy of all parameters and optimizer state, so that a step with a
                collective between two optimizers (a GAN) can be undone. It costs as much memory as
                these have, and the time to copy them at each commit.
            generators: also keep the states of the random generators of PyTorch, Python and NumPy.
            **named: modules, optimizers, and anything with ``state_dict`` and ``load_state_dict``.
                All modules whose parameters the optimizers change must be among them.

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
        self._named = dict(named)
        self._counters = {}
        self._kept_counters = {}
        self._shadow = shadow
        self._generators = RandomGenerators() if generators else None
        self._step = 0
        self._commits = 0
        self._round = 0
        self._condition = MemoryCondition.NEW
        self._optimizer_steps = OptimizerSteps()
        self._spare = PreallocatedTensors(())
        self._on_commit = None
        self._gate = OptimizerGate(lambda: None)
        self._replica_check = None
        self._alone = None
        for name in named:
            self._check_name(name)
        self._parts = list(parts_of(named, shadow=shadow))
        self._changes = None if shadow else OutsideChanges(self._parts, self._counters)
        refuse_sharded(self._parts)
        for part in self._parts:
            if isinstance(part, OptimizerPart):
                self._watch(part)

    # What users call

    @property
    def step(self) -> int:
        """How many steps are committed."""
        return self._step

    def commit(self) -> None:
        """Marks a step as complete: it is kept as long as one rank that committed it survives.

        To be called on all ranks, right after the last optimizer of the step. It may end ``train``,
        as the world changes at commits.

        Raises:
            UsageError: it was called outside of ``elastic.run``; or ranks have different models.
        """
        if self._on_commit is None:
            raise UsageError(
                "commit() outside of elastic.run: only inside the function that elastic.run calls "
                "are the ranks connected; call it there, after optimizer.step()"
            )
        if self._alone is not None and not self._alone.commits:
            raise UsageError(
                f"this State is committed by its {type(self._alone).__name__}, when the ranks come "
                "together; leave out commit(), and call the step() of that after each inner step"
            )
        self._gate.before_commit()
        if self._replica_check is not None:
            self._replica_check.before_commit(self._commits + 1)
        self._advance()
        self._on_commit()

    def __repr__(self) -> str:
        """The names and kinds of the objects, the counters, and the step."""
        objects = [f"{name}: {type(part).__name__}" for name, part in self._named.items()]
        counters = [f"{name}={value!r:.40}" for name, value in self._counters.items()]
        return f"{type(self).__name__}({', '.join((*objects, *counters))}; step {self._step})"

    # What the runtime calls

    def entrust(
        self, alone: TrainsAlone, optimizers: Mapping[str, torch.optim.Optimizer] | None = None
    ) -> None:
        """Leaves it to another object when to commit, and when samplers and the like move on.

        ``optimizers`` are what it commits with, by names of their own; no checkpoint needs them.
        """
        self._alone = alone
        modules = {n: m for n, m in self._named.items() if isinstance(m, torch.nn.Module)}
        for name, optimizer in (optimizers or {}).items():
            part = OptimizerPart(name, optimizer, modules, shadow=self._shadow)
            self._parts.append(part)
            self._watch(part)
        if self._changes is not None:
            self._changes = OutsideChanges(self._parts, self._counters)

    @property
    def parts(self) -> dict[str, Any]:
        """The objects that were given, by name."""
        return dict(self._named)

    @property
    def has_counters(self) -> bool:
        """Whether the script keeps plain values here."""
        return bool(self._counters)

    def counters_entry(self) -> CountersEntry:
        """The counters, for a checkpoint."""
        return CountersEntry(self._counters)

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
        self._kept_counters = {k: json_tensors.copied(v) for k, v in self._counters.items()}
        if self._generators is not None:
            self._generators.snapshot()
        if self._changes is not None:
            self._changes.record()
        self._step = step
        self._optimizer_steps.clear()
        self._condition = MemoryCondition.CLEAN

    def give_up(self, step: int) -> None:
        """Marks the memory as about to be overwritten, and as unusable until a load is done.

        Args:
            step: a commit that other ranks have; at least as many steps are known to be made.
        """
        self._step = step
        self._condition = MemoryCondition.DIRTY

    def leave(self) -> str:
        """Finds out, after ``train`` ended or was interrupted, whether the memory is still usable.

        To be called before the groups are ended.

        Returns:
            Why this rank can neither go back to its last commit nor commit the step that was
            interrupted, although no optimizer is in the middle of it; "" if it can.
        """
        why = ""
        self._replica_check = None
        if self._changes is not None and self._condition is MemoryCondition.CLEAN:
            why = self._changes.undoable()
        elif self._changes is not None and self._condition is MemoryCondition.FINISHED:
            why = self._changes.unfinished(certain=self._gate.certain)
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
            for part in self._parts:
                part.roll_back()
        self._counters.clear()
        self._counters.update({k: json_tensors.copied(v) for k, v in self._kept_counters.items()})
        if self._generators is not None:
            self._generators.restore()
        if self._changes is not None:
            self._changes.record()
        self._drop_leftovers()
        self._optimizer_steps.clear()
        self._condition = MemoryCondition.CLEAN

    def adopt(self) -> None:
        """Commits a step whose optimizers have finished; sets gradients to None, resets scalers.

        Raises:
            StateLost: no step is finished.
        """
        if self.rank_status().condition is not MemoryCondition.FINISHED:
            raise StateLost(f"step {self._step + 1} is not finished and cannot be adopted")
        self._drop_leftovers()
        self._advance()

    def commit_image(self) -> CommitImage:
        """The whole state as plain values and tensors, to be given to other ranks.

        Raises:
            UsageError: an object's state dict holds something that cannot be given away.
        """
        tensors: list[torch.Tensor] = []
        structure = {p.name: json_tensors.encode(p.tree(), p.name, tensors) for p in self._parts}
        meta = {
            "step": self._step,
            "commits": self._commits,
            "parts": structure,
            "counters": json_tensors.encode(self._counters, "state", tensors),
            "usual": self._optimizer_steps.usual,
            "tail": sorted(self._changes.tail) if self._changes is not None else [],
        }
        alike = {slot for slot, _, same in own_tensors(self._parts, meta, len(tensors)) if same}
        meta["tensors"] = [
            [form.dtype, form.shape, form.device, number in alike]
            for number, form in enumerate(map(TensorForm.of, tensors))
        ]
        return CommitImage(meta, tensors)

    def check(self, meta: dict[str, Any]) -> None:
        """Finds out whether the state of another rank fits the objects of this one.

        Raises:
            UsageError: it does not; the message names what differs.
        """
        same_keys("the objects of the State", {p.name: p for p in self._parts}, meta["parts"])
        forms = forms_of(meta)
        for part in self._parts:
            part.check(json_tensors.decode(meta["parts"][part.name], forms))

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

    def destinations(self, meta: dict[str, Any]) -> list[torch.Tensor | None]:
        """Where the tensors of another rank's state may be received without a copy.

        Args:
            meta: of its image; it has passed ``check``.

        Returns:
            For each tensor this rank's own memory for it; None: it must be received elsewhere.
        """
        return [
            tensor if tensor is not None and receives(tensor) else None
            for tensor in present(self._parts, meta)
        ]

    def common(self, meta: dict[str, Any]) -> list[torch.Tensor | None]:
        """This rank's parameters and optimizer state, for a commit that it holds as well.

        Args:
            meta: of the image of another rank with the same commit.

        Returns:
            For each tensor of the image this rank's own, or None where ranks may differ.
        """
        held = present(self._parts, meta)
        flags = [description[3] for description in meta["tensors"]]
        return [tensor if same else None for tensor, same in zip(held, flags, strict=True)]

    def load(
        self, meta: dict[str, Any], tensors: list[torch.Tensor], *, alike: int | None = None
    ) -> None:
        """Replaces this rank's state by that of another rank, and remembers it as a commit.

        Sets gradients to None and resets gradient scalers.

        Args:
            meta: of its image.
            tensors: of its image, on any device; they belong to this State from now on. Those
                that are ``destinations`` or ``common`` of this State are in place already.
            alike: the last round in which the other rank had the same state as all others; from
                now on this memory belongs to that history. None: it did before, too.

        Raises:
            UsageError: it does not fit; nothing has been changed then.
        """
        self.check(meta)
        held = present(self._parts, meta)
        self.give_up(meta["step"])  # until all is done it is neither the old state nor the new one
        with torch.no_grad():
            for number, (target, form) in enumerate(zip(held, forms_of(meta), strict=True)):
                source = tensors[number]
                if target is None:
                    tensors[number] = source.to(form.device) if source.is_cpu else source
                else:
                    if target.data_ptr() != source.data_ptr():
                        write(target, source)
                    tensors[number] = target
            for part in self._parts:
                part.load(json_tensors.decode(meta["parts"][part.name], tensors))
        self._counters.clear()
        self._counters.update(json_tensors.decode(meta["counters"], tensors))
        self._optimizer_steps.usual = dict(meta["usual"])
        self._commits = meta["commits"]
        if self._changes is not None:
            self._changes.tail = set(meta["tail"])
        self._drop_leftovers()
        self._round = self._round if alike is None else alike
        self.remember_commit(meta["step"])

    def digest(self) -> int:
        """A number that is the same on ranks that hold the same, but for random generators."""
        return digest_of(self.commit_image())

    # Counters

    def __getattr__(self, name: str) -> Any:
        # Only asked for what is no attribute of the class and none of __init__.
        if not name.startswith("_"):
            for held in (self._counters, self._named):
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
                "change the object itself, or give the counter another name"
            )
        json_tensors.check(value, f"state.{name}")
        self._counters[name] = value

    def __delattr__(self, name: str) -> None:
        if self._counters.pop(name, self) is self:
            raise AttributeError(f"this State has no counter {name!r}")

    # Inside

    def _check_name(self, name: str) -> None:
        if name.startswith("_") or hasattr(type(self), name):
            raise UsageError(f"{name!r} is a name of State's own; take another one")

    def _watch(self, part: OptimizerPart) -> None:
        part.optimizer.register_step_pre_hook(self._inspect)
        if self._shadow:  # a step can be undone wherever it is: it leaves the memory clean
            return
        steps = self._optimizer_steps

        def before(*_: object) -> None:
            self._gate.before_optimizer(part.optimizer)
            if steps.begin() and self._changes is not None:
                self._changes.before_optimizers()
            if self._condition is not MemoryCondition.NEW:
                self._condition = MemoryCondition.DIRTY

        def after(*_: object) -> None:
            steps.end(part.name)
            finished = steps.are_as_usual
            if self._condition is MemoryCondition.DIRTY and finished:
                self._condition = MemoryCondition.FINISHED
            if self._changes is not None and (finished or steps.may_be_all):
                self._changes.after_optimizers()

        part.optimizer.register_step_pre_hook(before)
        part.optimizer.register_step_post_hook(after)

    def _inspect(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        if self._replica_check is not None:
            self._replica_check.before_optimizer(optimizer, self._commits + 1)

    def _advance(self) -> None:
        self._condition = MemoryCondition.DIRTY
        optimized = self._optimizer_steps.commit()
        if self._changes is not None:
            self._changes.commit(optimized=optimized)
        for part in self._parts:
            if isinstance(part, StatefulPart) and self._alone is None:
                part.commit()
        self._commits = self._commits + 1
        self.remember_commit(self._step + 1)

    def _drop_leftovers(self) -> None:
        for part in self._parts:
            part.drop_leftovers()


_OWN = frozenset(State.__annotations__)
