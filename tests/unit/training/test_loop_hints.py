"""What a loop very likely does not mean is told once, and what is right is not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import elastic_runtime as elastic
from elastic_runtime.errors import UsageError
from elastic_runtime.training import run_loop
from elastic_runtime.worker import loop_hints
from elastic_runtime.worker.context import context
from tests.ranks import run_ranks, values

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Script:
    """A loop with all that it may have."""

    def __init__(self, folder: Path) -> None:
        self.model = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2))
        self.optim = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optim, 2)
        self.loader = elastic.DataLoader(torch.ones(8, 1), global_batch_size=4, at_once=2)
        self.state = elastic.State(
            model=self.model, optim=self.optim, schedule=self.schedule, loader=self.loader
        )
        self.state.checkpoints(folder)

    def run(self, step: Callable[[Any], None] | None = None, *, epochs: int = 2) -> None:
        def train(world: elastic.World) -> None:
            for one in self.loader.steps(epochs=epochs):
                (step or self.step)(one)

        elastic.run(train, self.state, in_place=False)

    def compute(self, step: Any) -> None:
        for piece in step:
            step.backward(self.model(piece).sum())

    def update(self) -> None:
        self.optim.step()
        self.optim.zero_grad()

    def step(self, step: Any) -> None:
        self.compute(step)
        self.update()
        self.schedule.step()
        self.state.commit()


@pytest.fixture
def hints(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    told: list[str] = []

    def note(event: Any) -> None:
        if event.name == "loop.hint":
            told.append(event.text)

    monkeypatch.setattr(run_loop, "_ran", False)
    monkeypatch.setattr(loop_hints, "_told", set())
    monkeypatch.setattr(context(), "note", note)
    return told


def late_schedule(script: Script) -> None:
    def step(one: Any) -> None:
        script.compute(one)
        script.update()
        script.state.commit()
        script.schedule.step()

    script.run(step)


def late_optimizer(script: Script) -> None:
    def step(one: Any) -> None:
        script.compute(one)
        script.state.commit()
        script.update()

    with pytest.raises(UsageError, match="not committed"):
        script.run(step)


def two_commits(script: Script) -> None:
    def step(one: Any) -> None:
        script.step(one)
        script.state.commit()

    script.run(step)


def left_pieces(script: Script) -> None:
    def step(one: Any) -> None:
        for piece in one:
            one.backward(script.model(piece).sum())
            break
        script.state.commit()

    script.run(step)


def own_accumulation(script: Script) -> None:
    def step(one: Any) -> None:
        script.compute(one)
        if one.number % 2 == 0:
            script.update()
        script.state.commit()

    script.run(step)


def steps_together(script: Script) -> None:
    def step(one: Any) -> None:
        script.compute(one)
        if one.epoch:
            script.update()
            script.state.commit()

    script.run(step)


def no_eval(script: Script) -> None:
    script.state.at("epoch", lambda: script.model(torch.ones(4, 1)), name="evaluate")
    script.run()


def loose(script: Script) -> None:
    other = elastic.DataLoader(torch.ones(8, 1), global_batch_size=4)

    def step(one: Any) -> None:
        list(next(other.steps()))
        script.step(one)

    script.run(step)


def left_out_schedule(script: Script) -> None:
    script.state = elastic.State(model=script.model, optim=script.optim, loader=script.loader)
    script.state.checkpoints("memory://left-out")
    script.run()


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (left_out_schedule, "the learning rates of 'optim' and is not in the State"),
        (late_schedule, "step it before state.commit()"),
        (late_optimizer, "call state.commit() after optimizer.step()"),
        (two_commits, "each commit counts a step"),
        (left_pieces, "left after 1 of 2"),
        (own_accumulation, "its gradients are still there"),
        (steps_together, "3 steps of a loader were committed together"),
        (no_eval, "buffers of a model changed in 'evaluate'"),
        (loose, "write State(…, loader=loader)"),
    ],
)
def test_it_is_told_once(
    hints: list[str], tmp_path: Path, mistake: Callable[[Script], None], words: str
) -> None:
    mistake(Script(tmp_path))
    assert len(hints) == 1
    assert words in hints[0]


def test_another_batch_is_told_when_it_is_loaded(
    hints: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Script(tmp_path).run(epochs=1)
    monkeypatch.setattr(run_loop, "_ran", False)
    script = Script(tmp_path)
    script.loader.global_batch_size = 2
    script.run(epochs=2)
    assert hints == [loop_hints.OTHER_BATCH.format(before=4, now=2)]


def test_training_that_was_over_before_it_began_is_told(
    hints: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for epochs, told in ((1, 0), (2, 0), (2, 1)):
        monkeypatch.setattr(run_loop, "_ran", False)
        Script(tmp_path).run(epochs=epochs)
        assert hints == [loop_hints.NOTHING_LEFT.format(step=4)] * told


def test_a_loop_that_is_right_is_told_nothing(hints: list[str], tmp_path: Path) -> None:
    script = Script(tmp_path)
    validation = elastic.DataLoader(torch.ones(8, 1), global_batch_size=4)

    def evaluate() -> None:
        script.model.eval()
        for batch in validation:
            script.model(batch)
        list(map(list, validation.steps(steps=1)))
        script.schedule.step()  # as ReduceLROnPlateau, by what was evaluated

    script.state.at("1 steps, epoch, end", evaluate)

    def step(one: Any) -> None:
        if one.number == 2:  # left out
            script.compute(one)
            script.optim.zero_grad()
            script.state.commit()
        else:
            script.step(one)

    script.run(step)
    assert hints == []


def test_a_step_with_sparse_gradients_may_be_left_out(hints: list[str], tmp_path: Path) -> None:
    model = nn.Embedding(4, 2, sparse=True)
    optim = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = elastic.DataLoader(torch.arange(4), 1)
    state = elastic.State(model=model, optim=optim, loader=loader)
    state.checkpoints(tmp_path)

    def train(world: elastic.World) -> None:
        for step in loader.steps(epochs=1):
            optim.zero_grad()
            for piece in step:
                step.backward(model(piece).sum())
            if step.number != 2:
                optim.step()
            state.commit()

    elastic.run(train, state, in_place=False)
    assert (state.step, hints) == (4, [])


def test_a_loop_that_commits_nothing_is_an_error(hints: list[str], tmp_path: Path) -> None:
    script = Script(tmp_path)

    def step(one: Any) -> None:
        script.compute(one)
        script.update()

    with pytest.raises(UsageError, match=r"ends with step 0, .* call state\.commit\(\)"):
        script.run(step)


def test_a_step_that_the_loop_leaves_uncommitted_is_an_error_and_not_saved(
    hints: list[str], tmp_path: Path
) -> None:
    script = Script(tmp_path)
    committed: list[torch.Tensor] = []

    def train(world: elastic.World) -> None:
        for step in script.loader.steps(epochs=2):
            script.compute(step)
            script.update()
            if step.number == 3:
                break
            committed[:] = [one.detach().clone() for one in script.model.parameters()]
            script.state.commit()
            script.state.save(sync=True)

    with pytest.raises(UsageError, match=r"what counts ends with step 2, and nothing was saved"):
        elastic.run(train, script.state, in_place=False)
    again = Script(tmp_path)
    assert elastic.load(tmp_path, again.state, strict=False) == 2
    assert all(map(torch.equal, again.model.parameters(), committed))


def test_what_is_due_after_epochs_needs_a_loader(hints: list[str]) -> None:
    state = elastic.State(model=nn.Linear(1, 1))
    state.at("epoch, end", print)
    with pytest.raises(UsageError, match=r"'print' is to be done after each epoch, and no loader"):
        elastic.run(lambda world: None, state)


def test_a_state_that_was_loaded_does_not_begin_at_step_0(
    hints: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Script(tmp_path / "old").run(epochs=1)
    monkeypatch.setattr(run_loop, "_ran", False)
    script = Script(tmp_path / "new")
    elastic.load(tmp_path / "old", script.state, strict=False)
    with pytest.raises(UsageError, match="brought this State to step 2, and training begins at"):
        script.run()
    monkeypatch.setattr(run_loop, "_ran", False)
    script = Script(tmp_path / "new")
    elastic.load(tmp_path / "old", elastic.State(model=script.model), strict=False)
    script.run(epochs=1)
    assert script.state.step == 2


def apart(mistake: str, folder: str) -> list[str]:
    """What is told where ranks do not do the same; the error, if it is one."""
    run_loop._ran, told = False, []
    context().note = lambda event: told.append(event.fields().get("text", ""))  # type: ignore[method-assign]
    torch.manual_seed(1)
    model = nn.Linear(1, 1)
    optim = torch.optim.SGD(model.parameters(), lr=0.1)
    state = elastic.State(model=model, optim=optim, seen=0.0)
    state.checkpoints(folder)

    def train(world: elastic.World) -> None:
        ddp = model if mistake == "without ddp" else elastic.ddp(model)
        while state.step < 3:
            ddp(torch.full((1, 1), 1.0 + world.rank)).square().sum().backward()
            optim.step()
            optim.zero_grad()
            state.seen += world.rank if mistake == "values" else 1
            state.commit()

    elastic.run(train, state, in_place=False)
    return [text for text in told if text]


def test_ranks_that_do_not_do_the_same_are_told_in_the_restart_form(tmp_path: Path) -> None:
    told = values(run_ranks(2, apart, "values", str(tmp_path / "v")))
    assert told == [[loop_hints.VALUES_DIFFER], []]
    assert values(run_ranks(2, apart, "nothing", str(tmp_path / "n"))) == [[], []]
    ended = run_ranks(2, apart, "without ddp", str(tmp_path / "d"))
    assert [one.error for one in ended] == ["UsageError"] * 2
    assert "weight has other gradients on rank 1" in ended[0].text
    assert "in place" not in ended[0].text


def test_pieces_that_are_left_before_the_optimizer_are_an_error(
    hints: list[str], tmp_path: Path
) -> None:
    script = Script(tmp_path)

    def step(one: Any) -> None:
        for piece in one:
            one.backward(script.model(piece).sum())
            break
        script.update()

    with pytest.raises(UsageError, match="after piece 1 of 2 of step 1"):
        script.run(step)
