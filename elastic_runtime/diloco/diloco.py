"""``DiLoCo`` and ``LocalSGD``: ranks that come together every so many steps, over slow networks.

Each rank trains a model of its own, the *replica*, and says nothing to the others meanwhile. At a
*sync* the mean of what all ranks have changed becomes the gradient of the *common* model, for an
outer optimizer. The common model is what a ``State`` holds: an outer step is a commit, and all that
is true of commits is true of it. The replicas are no part of the State, so that a change of the
world between two syncs leaves them as they are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from elastic_runtime.data.data_loader import DataLoader
from elastic_runtime.diloco.early_sync import Vote
from elastic_runtime.diloco.hand_over import hand_on, tell_all, transfer_group
from elastic_runtime.diloco.own_values import OwnValues, stateful
from elastic_runtime.diloco.pairing import pair_up, refuse_ddp
from elastic_runtime.diloco.replica import Replica
from elastic_runtime.diloco.rhythm import Rhythm, Schedule
from elastic_runtime.diloco.standings import Meeting, Standing, meet
from elastic_runtime.errors import UsageError
from elastic_runtime.events.state_events import ReplicaDropped, ReplicasKept, ReplicasLeftOut
from elastic_runtime.parts.other_parts import moves
from elastic_runtime.worker.context import context
from elastic_runtime.worker.peers import Peers
from elastic_runtime.worker.recovery.error_classification import WorldChanged
from elastic_runtime.worker.world import TrainsAlone

if TYPE_CHECKING:
    from elastic_runtime.diloco.hand_over import Image
    from elastic_runtime.training.state import State
    from elastic_runtime.worker.peers import GlooGroups
    from elastic_runtime.worker.world import World

_MANY = 20  # inner steps in a row that a scaler of gradients does not leave out
_NONE = -1  # what a rank follows that has trained nothing


class DiLoCo(TrainsAlone):
    """Syncs by an outer optimizer, every so many steps of the inner one.

    Example::

        model = Net()                       # what all ranks have in common: committed, and saved
        replica = copy.deepcopy(model)      # what this rank trains
        inner = torch.optim.AdamW(replica.parameters(), lr=4e-4)
        outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        state = elastic.State(model=model, outer=outer, loader=loader)
        diloco = elastic.DiLoCo(state, replica, inner=inner, outer=outer, sync_every=500)

        def train(world):
            for step in loader.steps(epochs=10):
                for inputs, targets in step:
                    step.backward(criterion(replica(inputs), targets))
                inner.step()
                diloco.step()       # every 500th time all ranks come together, and commit

    A rank that is lost between two syncs costs what it has trained itself since; the others keep
    theirs. See docs/slow-networks.md.
    """

    def __init__(
        self,
        state: State,
        replica: torch.nn.Module,
        *,
        inner: torch.optim.Optimizer,
        outer: torch.optim.Optimizer,
        sync_every: int,
        fragments: int = 1,
        delay: int = 0,
        mix: float = 0.0,
    ) -> None:
        """Makes the replica a copy of the common model when training begins.

        Args:
            state: holds the common model, the outer optimizer, loaders, counters, and schedulers
                of the inner optimizer. It is committed at syncs, and by this object only.
            replica: the model that this rank trains, on any device; not wrapped by DDP.
            inner: trains the replica.
            outer: an optimizer of the common model; it gets the mean change as its gradient.
            sync_every: inner steps from one sync of a parameter to the next.
            fragments: the parameters are cut into so many parts of about the same size, which take
                turns: a sync is of one of them, ``sync_every / fragments`` inner steps after that
                of another.
            delay: so many inner steps before a sync its exchange begins, and runs beside them. They
                count for nothing in that fragment, unless ``mix`` keeps a share of them.
            mix: the share of its own value that a parameter of the replica keeps at a sync; 0 to 1.

        Raises:
            UsageError: the models and optimizers do not belong together, or a number is out of
                range.
        """
        rhythm = _rhythm("DiLoCo", sync_every, fragments, delay, mix)
        self._prepare("DiLoCo", state, replica, inner, outer, rhythm, mix)
        state.entrust(self)

    def _prepare(
        self,
        kind: str,
        state: State,
        replica: torch.nn.Module,
        inner: torch.optim.Optimizer,
        outer: torch.optim.Optimizer | None,
        rhythm: Rhythm,
        mix: float,
    ) -> None:
        pairing = pair_up(kind, state, replica, inner, outer)
        if rhythm.fragments > len(pairing.parameters):
            raise UsageError(
                f"fragments={rhythm.fragments}, and the replica has {len(pairing.parameters)} "
                "parameters that are trained; take fewer fragments"
            )
        # A step of size 1 along the mean change leads to the mean.
        by_mean = torch.optim.SGD([pair.common for pair in pairing.parameters], lr=1.0)
        self._inner, self._outer = inner, outer or by_mean
        self._groups = len(inner.param_groups)
        self.saves = {"inner": inner}
        self._replica = Replica(pairing, inner, self._outer, rhythm.fragments, mix)
        self._state, self._rhythm = state, rhythm
        self._standing = Standing(_NONE, Schedule.first(rhythm))
        self._calls = 0  # of step()
        self._unsaid = self._optimized = 0  # steps of the inner optimizer: since step(); ever
        self._looked = False  # for a wrapper of the replica
        inner.register_step_pre_hook(self._before_inner)
        inner.register_step_post_hook(self._stepped)
        self._early: int | None = None  # the inner step of a sync before it is due
        self._whole = False  # the next sync is of all fragments
        self._left: OwnValues | None = None  # as they were when the last world ended
        self._live = False  # the values of the State are this rank's own
        self._place: tuple[int, int] | None = None
        self._round = 0
        self._trained_as: tuple[int, int] | None = None
        self._gloo: GlooGroups | None = None
        self._peers: Peers | None = None
        self._vote: Vote | None = None

    def __repr__(self) -> str:
        """How far it is on its way to the next sync."""
        return (
            f"{type(self).__name__}(inner step {self.inner_steps} of {self._rhythm.every}, after "
            f"{self._state.step} syncs)"
        )

    # What users call

    @property
    def inner_steps(self) -> int:
        """Inner steps since the last sync."""
        return self._standing.schedule.position

    def step(self) -> bool:
        """Ends an inner step, and comes together with all other ranks if it is time.

        To be called on all ranks, right after the inner optimizer; counters of the State are to be
        changed before. It may end ``train``, as the world changes.

        Returns:
            Whether the common model is a new one. If the world changes at a sync, the first inner
            step after it says so.

        Raises:
            UsageError: it was called outside of ``elastic.run``.
            NothingToAverage: the training has diverged on all ranks.
        """
        gloo = self._gloo
        if gloo is None or self._standing.after == _NONE:
            raise UsageError(
                f"{type(self).__name__}.step() outside of elastic.run: only inside the function "
                "that elastic.run calls are the ranks connected"
            )
        self._standing = replace(self._standing, schedule=self._standing.schedule.stepped())
        self._replica.stepped()
        self._unsaid, self._calls = 0, self._calls + 1
        if not self._looked:
            self._looked = True
            refuse_ddp(type(self).__name__, self._replica.module)
        for loader in self._state._loaders():
            loader.before_commit(optimized=True)
        for part in stateful(self._state):
            if moves(part.owner):
                part.owner.commit()
        context().report_inner(self._state.step, self.inner_steps)
        if gloo.interrupted():
            raise WorldChanged("the round is broken")
        self._act()
        told, self._standing = self._standing.told, replace(self._standing, told=True)
        return not told

    def sync(self) -> None:
        """Comes together now: at the end of training, so that the last inner steps count, too.

        To be called on all ranks after the same inner step. Nothing is done if there was none since
        the last sync.
        """
        if self._standing.schedule.trained:
            self._whole = True
            self._sync()
            self._standing = replace(self._standing, told=True)

    # What the runtime calls

    def enter(self, world: World) -> None:
        """Another world begins: notes what this rank has of its own."""
        if self._live:
            self._left, self._live = OwnValues(self._state), False
        self._place, self._round = (world.rank, world.size), world.round
        self._gloo = self._peers = self._vote = self._early = None
        self._replica.forget_step()

    def use_groups(self, gloo: GlooGroups) -> None:
        """Uses these groups in the world that was entered."""
        self._gloo = gloo

    def returned(self) -> None:
        """Brings in the last inner steps, and says so, if ``train`` has left them out."""
        if self._standing.schedule.trained:
            if context().rank == 0:
                context().note(ReplicasLeftOut(max(self._standing.schedule.ages)))
            self.sync()

    def resume(self) -> None:
        """Goes on from where this rank is, or begins where the others are."""
        gloo = self._gloo
        assert gloo is not None
        self._take_over_commit()
        self._whole = False
        several = gloo.group.size() > 1
        # Exchanges, votes and commits may come in another order on another rank.
        peers, voters = (Peers(gloo.another() if several else None) for _ in range(2))
        standings = [Standing.of_plain(each) for each in peers.gather(self._standing.plain)]
        meeting = meet(standings, self._state.step)
        # A fault may come until all is there; nothing of this rank's own is changed before.
        values = self._hand_over(peers, meeting)
        if values is not None:
            peers.gather(True)  # all have what they need, or nobody trains in this round
        if peers.rank in meeting.kept:
            self._go_on(meeting, values)
        else:
            self._begin(meeting, values)
        self._peers, self._vote = peers, Vote(voters)
        self._left, self._live = None, True
        self._trained_as = self._place
        self._standing = replace(self._standing, round=self._round)
        self._tell(meeting)
        if self._standing.schedule.position:
            # A sync that was broken off is made again as soon as the others are there.
            self._act()

    # Inside

    def _before_inner(self, *_: object) -> None:
        for loader in self._state._loaders():
            loader.before_optimizer()

    def _stepped(self, *_: object) -> None:
        if len(self._inner.param_groups) != self._groups:
            raise UsageError(
                "the inner optimizer got another group of parameters after "
                f"{type(self).__name__} was made, and no sync would average it: give it all "
                "parameters from the beginning; requires_grad_(False) leaves some out for a while"
            )
        self._unsaid, self._optimized = self._unsaid + 1, self._optimized + 1
        if self._unsaid > 2 * self._rhythm.every * self._rhythm.fragments:
            raise UsageError(
                f"the inner optimizer has made {self._unsaid} steps, and the step() of "
                f"{type(self).__name__} was not called: nothing is ever committed so; call it "
                "after each inner step"
            )

    def _act(self) -> None:
        """Does what is due after an inner step."""
        schedule, gloo, vote = self._standing.schedule, self._gloo, self._vote
        assert gloo is not None
        assert vote is not None
        if self._early is None and gloo.leaves():
            self._early = self._voted(vote)
            # Who waits at a sync that is due, and votes there, waits for its fragment only.
            self._whole = self._early < self._rhythm.every
        if self._rhythm.begins(schedule):
            self._send(schedule.fragment)
        if self._rhythm.is_due(schedule, self._early):
            self._sync()

    def _voted(self, vote: Vote) -> int:
        schedule, every = self._standing.schedule, self._rhythm.every
        if self._rhythm.begins(schedule):
            # The exchange is under way, perhaps: who has it already waits for nobody's vote.
            vote.cast(every)
            return every
        vote.cast(schedule.position)
        return vote.result()

    def _send(self, turn: int) -> None:
        group = self._peers.group if self._peers is not None else None
        self._replica.send(turn, self._standing.schedule.ages[turn], group)

    def _vote_while_waiting(self) -> None:
        gloo, vote = self._gloo, self._vote
        if gloo is not None and vote is not None and gloo.leaves():
            vote.cast(self.inner_steps if self._whole else self._rhythm.every)

    @property
    def _turns(self) -> tuple[int, ...]:
        """The fragments of the next sync, first the one whose turn it is: it may be under way."""
        schedule = self._standing.schedule
        others = (n for n in schedule.trained if n != schedule.fragment)
        return (schedule.fragment, *(others if self._whole else ()))

    def _sync(self) -> None:
        if self._calls > _MANY and not self._optimized:
            raise UsageError(
                f"there were {self._calls} inner steps, and the inner optimizer has made none: "
                "call inner.step() before each step()"
            )
        turns = self._turns
        for turn in turns:
            self._send(turn)
        # However long others take to come: those that train show it themselves.
        with context().busy("waiting for a sync"):
            counts = self._replica.land(turns, self._vote_while_waiting)
        if not counts:
            context().note(ReplicaDropped(self._state.step))
        self.commits = True
        try:
            self._state.commit()
        except WorldChanged:
            if self._vote is not None:
                self._vote.close()
            raise
        finally:
            self.commits = False
        self._take_over_commit()

    def _take_over_commit(self) -> None:
        """Brings the replica up to the commit that follows the one it was trained from.

        The world may change in the middle of a commit: then it is done when the next one begins.
        """
        after, schedule = self._standing.after, self._standing.schedule
        if after == _NONE or self._state.step != after + 1:
            return
        self._replica.adopt(self._turns)
        synced = schedule.synced(self._turns)
        self._standing = replace(self._standing, after=after + 1, schedule=synced, told=False)
        self._early, self._whole = None, False
        self._left = None  # its values are those of the commit
        self._share_alike()

    def _hand_over(self, peers: Peers, meeting: Meeting) -> Image | None:
        """Gives new ranks the inner optimizer's state, and all ranks the values of the furthest.

        Returns:
            These values; None if no rank needs them.
        """
        furthest = meeting.furthest
        if furthest is None or peers.group is None or not (meeting.behind or meeting.new):
            return None
        group = transfer_group(peers)
        mine = None
        if peers.rank == furthest:
            mine = (self._left or OwnValues(self._state)).image()
        values = tell_all(group, mine, furthest)
        if meeting.new:
            hand_on(group, self._replica.inner, furthest, meeting.new)
        return values

    def _begin(self, meeting: Meeting, values: Image | None) -> None:
        """Begins with the common parameters, where the furthest rank is."""
        self._replica.begin()
        if values is not None:
            OwnValues.load_image(self._state, *values)
        self._standing = Standing(self._state.step, meeting.schedule, meeting.told)
        self._share_alike()

    def _go_on(self, meeting: Meeting, values: Image | None) -> None:
        """Goes on with what this rank has trained alone."""
        if self._left is not None:
            self._left.put_back(self._state)
        schedule = self._standing.schedule
        if values is None or schedule.position == meeting.schedule.position:
            self._share_alike()
            return
        moving = [part for part in stateful(self._state) if moves(part.owner)]
        if all(isinstance(part.owner, DataLoader) for part in moving):
            self._catch_up(values)
            return
        # Other data come in one order for all ranks: what is behind the furthest is left out, and
        # so are the counts of it.
        OwnValues.load_image(self._state, *values)
        self._standing = replace(self._standing, schedule=meeting.schedule)
        self._share_alike()

    def _catch_up(self, values: Image) -> None:
        """Trains up to where the furthest rank is with the shares of the world that is over."""
        assert self._trained_as is not None
        parts = OwnValues.decoded(*values)
        for part in stateful(self._state):
            if isinstance(part.owner, DataLoader):
                there = parts[part.name]
                part.owner.keep_shares(there["epoch"], there["cursor"], self._trained_as)

    def _share_alike(self) -> None:
        for part in stateful(self._state):
            if isinstance(part.owner, DataLoader):
                part.owner.share_alike()

    def _tell(self, meeting: Meeting) -> None:
        """Says once what was kept, if there was anything to lose."""
        if meeting.schedule.position and context().rank == 0:
            context().note(
                ReplicasKept(
                    step=self._state.step,
                    inner=meeting.schedule.position,
                    every=self._rhythm.every,
                    keep=len(meeting.kept),
                    new=len(meeting.new),
                )
            )


class LocalSGD(DiLoCo):
    """Averages the parameters of all ranks, every so many steps; otherwise like ``DiLoCo``.

    Example::

        state = elastic.State(model=model, loader=loader)
        local_sgd = elastic.LocalSGD(state, replica, inner=inner, sync_every=8)
    """

    def __init__(
        self,
        state: State,
        replica: torch.nn.Module,
        *,
        inner: torch.optim.Optimizer,
        sync_every: int,
        fragments: int = 1,
        delay: int = 0,
        mix: float = 0.0,
    ) -> None:
        """Makes the replica a copy of the common model when training begins.

        Args:
            state, replica, inner, sync_every, fragments, delay, mix: as for ``DiLoCo``. The common
                model needs no optimizer: it becomes the mean of the replicas.

        Raises:
            UsageError: as for ``DiLoCo``.
        """
        rhythm = _rhythm("LocalSGD", sync_every, fragments, delay, mix)
        self._prepare("LocalSGD", state, replica, inner, None, rhythm, mix)
        state.entrust(self, {"local_sgd.outer": self._outer})


def _rhythm(kind: str, sync_every: int, fragments: int, delay: int, mix: float) -> Rhythm:
    """Checks the numbers of a script.

    Raises:
        UsageError: one is out of range.
    """
    for word, value, least in (
        ("sync_every", sync_every, 1),
        ("fragments", fragments, 1),
        ("delay", delay, 0),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise UsageError(f"{kind}({word}={value!r}): give a whole number, {least} or more")
    every, rest = divmod(sync_every, fragments)
    if rest or not every:
        raise UsageError(
            f"sync_every={sync_every} cannot be divided into turns of {fragments} fragments; take "
            "a multiple of their number"
        )
    if delay >= every:
        raise UsageError(
            f"delay={delay}: the exchange of a fragment would begin before the sync of the one "
            f"before it, which is {every} inner steps earlier; take less than {every}"
        )
    if isinstance(mix, bool) or not isinstance(mix, int | float) or not 0 <= mix < 1:
        raise UsageError(
            f"mix={mix!r}: a share from 0 to below 1; at 1 no rank would learn of others"
        )
    return Rhythm(every, fragments, delay)
