"""What is owed when, and what a State makes of it: in both forms, with real ranks."""

from __future__ import annotations

import json
import math
import sys
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

import elastic_runtime as elastic
from elastic_runtime.errors import CheckpointUsageError, UsageError
from elastic_runtime.training import run_loop
from elastic_runtime.training.duties import Duties, parse_when
from tests.ranks import run_ranks, values
from tests.unit.parts.small_job import begun

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("when", "steps", "seconds", "epoch", "end"),
    [
        ("50 steps", 50, 0, False, False),
        ("10m", 0, 600, False, False),
        ("epoch", 0, 0, True, False),
        ("end", 0, 0, False, True),
        ("50 steps, end", 50, 0, False, True),
        ("epoch,5 steps, 30s , end", 5, 30, True, True),
    ],
)
def test_when_is_read(when: str, steps: int, seconds: float, epoch: bool, end: bool) -> None:
    found = parse_when(when)
    assert (found.every.steps, found.every.seconds) == (steps, seconds)
    assert (found.epoch, found.end) == (epoch, end)


@pytest.mark.parametrize("when", ["", "often", "3 apples", "end, 0 steps", "5 steps, 6 steps", 5])
def test_anything_else_is_told(when: object) -> None:
    with pytest.raises(UsageError, match="is not understood; give steps"):
        parse_when(when)


def nothing() -> None:
    pass


def test_each_is_owed_at_its_time() -> None:
    duties = Duties()
    duties.add("4 steps", nothing, "fours", 0.0)
    duties.add("epoch, end", nothing, "epochs", 0.0)
    duties.add("10s", nothing, None, 100.0)
    assert duties.owed_after(3, epoch_over=False) == []
    assert duties.owed_after(4, epoch_over=False) == ["fours"]
    assert duties.owed_after(8, epoch_over=True) == ["fours", "epochs"]
    assert duties.owed_at_end() == ["epochs"]
    assert (duties.overdue(109.9), duties.due_in(104.0)) == ([], 6.0)
    assert duties.overdue(110.0) == ["nothing"]
    duties.done("nothing", 112.0)
    assert (duties.overdue(121.0), duties.due_in(121.0)) == ([], 1.0)
    assert Duties().due_in(0.0) == math.inf


def test_a_name_is_taken_once() -> None:
    state = elastic.State()
    state.at("end", lambda: None)
    with pytest.raises(UsageError, match=r"two duties of this State are called '<lambda>'"):
        state.at("epoch", lambda: None)
    state.at("epoch", lambda: None, name="other")


# What a State remembers


class Job:
    """Counts in a duty, which is not done twice for one step, whatever happens."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model = nn.Linear(2, 2)
        self.optim = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.state = elastic.State(model=self.model, optim=self.optim, done=0)
        self.state.at("2 steps", self.count)

    def count(self) -> None:
        self.state.done += 1

    def step(self) -> None:
        self.model(torch.ones(1, 2)).sum().backward()
        self.optim.step()
        self.state.commit()

    def pay(self) -> None:
        while (name := self.state._owed) is not None:
            self.count()
            self.state._pay(name, changed=True)


def test_what_is_owed_is_part_of_the_commit_and_what_it_does_of_the_next() -> None:
    job = Job()
    begun(job.state)
    job.step()
    assert job.state._owed is None
    job.step()
    assert job.state._owed == "count"
    job.pay()
    assert (job.state.done, job.state._owed, job.state.is_ahead) == (1, None, True)
    job.state.roll_back()  # a fault before the next commit
    assert (job.state.done, job.state._owed, job.state.is_ahead) == (0, "count", False)
    job.pay()
    job.step()
    job.state.roll_back()
    assert (job.state.done, job.state._owed) == (1, None)


def test_another_rank_is_told_what_is_owed() -> None:
    one, two = Job(), Job()
    begun(one.state)
    two.state.keep_in_memory()
    one.step()
    one.step()
    two.state._load(*one.state.commit_image(for_others=True), alike=1)
    assert (two.state._owed, two.state._digest()) == ("count", one.state._digest())


def test_a_step_that_was_broken_off_is_no_part_of_what_comes_from_another_rank() -> None:
    one, two = Job(), Job()
    begun(one.state)
    begun(two.state)
    one.step()
    one.step()
    two.model(torch.ones(1, 2)).sum().backward()
    two.optim.step()  # and no commit
    image = one.state.commit_image(for_others=True)
    two.state._load(*image, alike=1)
    two.state._saver = mock.Mock()
    two.state.save()  # no step is half done
    two.pay()
    assert "count" in json.dumps(image.meta["content"]), "what was sent is a copy"


# With ranks, in the restart form


def trained(folder: str, script: str, steps: int = 4) -> dict[str, Any]:
    """Runs one of the scripts below in this rank, and says what came of it."""
    run_loop._ran = False
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    optim = torch.optim.SGD(model.parameters(), lr=0.1)
    state = elastic.State(model=model, optim=optim, best=0, told=[])
    state.checkpoints(folder, every="100 steps")
    seen: list[Any] = []
    globals()[script](state, seen)

    def train(world: elastic.World) -> str:
        ddp = elastic.ddp(model)
        while state.step < steps:
            ddp(torch.randn(4, 2)).sum().backward()
            optim.step()
            optim.zero_grad()
            state.commit()
        return "returned"

    value = elastic.run(train, state, in_place=False)
    return {
        "value": value,
        "seen": seen,
        "step": state.step,
        "best": state.best,
        "told": state.told,
        "mode": model.training,
        "weight": model[0].weight.sum().item(),
        "world": state.world.size,
    }


def alike(ranks: list[dict[str, Any]], *names: str) -> dict[str, Any]:
    """What all ranks say of these, which is the same."""
    said = [{name: rank[name] for name in names} for rank in ranks]
    assert said == [said[0]] * len(said)
    return said[0]


def evaluates(state: elastic.State, seen: list[Any]) -> None:
    def evaluate() -> None:
        state.model.eval()
        seen.append(state.step)
        with torch.no_grad():
            if state.world.rank == 0:  # alone: what elastic.ddp gives is the model itself
                elastic.ddp(state.model)(torch.randn(2, 2))
        state.best = state.step + 100 * state.world.rank
        state.told = [*state.told, state.step]

    state.at("2 steps, end", evaluate)


def test_all_ranks_do_it_and_the_values_are_those_of_the_first(tmp_path: Path) -> None:
    ranks = values(run_ranks(2, trained, str(tmp_path), "evaluates", 5))
    said = alike(ranks, "seen", "best", "told", "value", "step", "mode", "weight", "world")
    assert said["seen"] == said["told"] == [2, 4, 5]
    assert (said["best"], said["value"], said["mode"], said["world"]) == (5, "returned", True, 2)
    # It was saved before the evaluation at the end, and again after it, in another term.
    assert sorted(p.name for p in tmp_path.glob("step-5.*")) == ["step-5.term-1", "step-5.term-2"]
    # The next start of the job finds all of it, and does nothing more.
    again = values(run_ranks(3, trained, str(tmp_path), "evaluates", 5))
    assert alike(again, "seen", "told", "best") == {"seen": [], "told": [2, 4, 5], "best": 5}
    assert len(list(tmp_path.glob("step-5.*"))) == 2


def swaps_weights(state: elastic.State, seen: list[Any]) -> None:
    def swap() -> None:
        for parameter in state.model.parameters():
            parameter.data.fill_(2.0)

    state.at("end", swap)


def keeps_a_number(state: elastic.State, seen: list[Any]) -> None:
    def change() -> None:
        with torch.no_grad():
            state.model[0].weight[0, 0] = 7.0

    state.at("end", change)


@pytest.mark.parametrize(
    ("script", "number", "terms"),
    [("swaps_weights", 2.0, 2), ("keeps_a_number", 7.0, 2), ("at_the_last_step", None, 1)],
)
def test_what_a_duty_at_the_end_changes_in_a_model_is_saved(
    tmp_path: Path, script: str, number: float | None, terms: int
) -> None:
    values(run_ranks(2, trained, str(tmp_path), script))
    assert len(list(tmp_path.glob("step-4.*"))) == terms
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    elastic.load(tmp_path, elastic.State(model=model), strict=False)
    assert (model[0].weight[0, 0].item() == number) is (number is not None)


def saves(state: elastic.State, seen: list[Any]) -> None:
    def save() -> None:
        with pytest.raises(UsageError, match="which is not over"):
            state.save(sync=True)
        seen.append(state.step)

    state.at("2 steps", save)


def test_what_is_not_over_is_not_saved(tmp_path: Path) -> None:
    ranks = values(run_ranks(2, trained, str(tmp_path), "saves"))
    assert alike(ranks, "seen") == {"seen": [2, 4]}


def exits(state: elastic.State, seen: list[Any]) -> None:
    state.at("2 steps", sys.exit, name="exits")


def exits_at_the_end(state: elastic.State, seen: list[Any]) -> None:
    state.at("end", sys.exit, name="exits")


@pytest.mark.parametrize(("script", "step"), [("exits", 2), ("exits_at_the_end", 4)])
def test_an_exit_is_no_end_of_training(tmp_path: Path, script: str, step: int) -> None:
    for one in run_ranks(2, trained, str(tmp_path), script):
        assert one.error == "UsageError"
        assert f"sys.exit() ended the process in the middle of training, after step {step}" in (
            one.text
        )


def at_the_last_step(state: elastic.State, seen: list[Any]) -> None:
    state.at("4 steps, end", lambda: seen.append(state.step), name="once")


def test_what_was_done_after_the_last_step_is_not_done_again_at_the_end(tmp_path: Path) -> None:
    ranks = values(run_ranks(2, trained, str(tmp_path), "at_the_last_step"))
    assert alike(ranks, "seen", "step") == {"seen": [4], "step": 4}
    assert [p.name for p in tmp_path.glob("step-4.*")] == ["step-4.term-1"]


def differs(state: elastic.State, seen: list[Any]) -> None:
    rank = dist.get_rank()
    state.optim.register_step_post_hook(lambda *_: setattr(state, "best", rank))
    state.at("4 steps", lambda: seen.append(state.best), name="look")


def test_values_that_differed_before_a_last_duty_are_no_more_to_save(tmp_path: Path) -> None:
    ranks = values(run_ranks(2, trained, str(tmp_path), "differs"))
    assert [rank["seen"] for rank in ranks] == [[0], [1]]
    assert alike(ranks, "value", "best", "step") == {"value": "returned", "best": 0, "step": 4}


def stops(state: elastic.State, seen: list[Any]) -> None:
    def look() -> None:
        seen.append(state.step)
        if state.step == 3 and state.world.rank == 1:
            state.stop()

    state.at("1 steps", look)


def test_a_duty_stops_training_for_good(tmp_path: Path) -> None:
    ranks = values(run_ranks(2, trained, str(tmp_path), "stops", 99))
    assert alike(ranks, "seen", "step", "value") == {"seen": [1, 2, 3], "step": 3, "value": None}
    again = values(run_ranks(2, trained, str(tmp_path), "stops", 99))
    assert alike(again, "seen", "step", "value") == {"seen": [], "step": 3, "value": None}


def by_time(state: elastic.State, seen: list[Any]) -> None:
    state.at("50ms", lambda: seen.append(state.step), name="timed")
    state.at("1 steps", lambda: torch.zeros(1).sum(), name="other")


def test_what_is_owed_by_time_is_done_after_the_same_step_on_all_ranks(tmp_path: Path) -> None:
    ranks = values(run_ranks(2, trained, str(tmp_path), "by_time", 400))
    assert alike(ranks, "seen")["seen"]


def commits(state: elastic.State, seen: list[Any]) -> None:
    state.at("1 steps", state.commit)


def fails(state: elastic.State, seen: list[Any]) -> None:
    def fail() -> None:
        raise KeyError("evaluation")

    state.at("1 steps", fail)


def test_a_duty_that_fails_is_an_error_of_the_script(tmp_path: Path) -> None:
    for script, error in (("commits", "UsageError"), ("fails", "KeyError")):
        ended = run_ranks(2, trained, str(tmp_path / script), script)
        assert [one.error for one in ended] == [error] * 2
    assert not list(tmp_path.glob("*/step-*")), "no save at the end of what has failed"


def test_without_a_place_nothing_can_restart() -> None:
    state = elastic.State(model=nn.Linear(1, 1))
    with pytest.raises(CheckpointUsageError, match=r"call state\.checkpoints"):
        elastic.run(lambda world: None, state, in_place=False)
    with pytest.raises(CheckpointUsageError, match=r"call state\.checkpoints"):
        with state.resumed():
            pass


# A loop that is no function, and loading without training


def alone(folder: str, steps: int) -> tuple[Any, ...]:
    run_loop._ran = False
    dist.barrier()
    torch.manual_seed(3)
    generator = torch.Generator().manual_seed(dist.get_rank())
    state = elastic.State(model=nn.Linear(1, 1), own=generator, seen=0)
    state.checkpoints(folder)
    first = float(torch.rand(()))
    with state.resumed() as world:
        begins = state.step, float(torch.rand(())), float(torch.rand((), generator=generator))
        while state.step < steps:
            state.seen += 1
            state.commit()
    assert dist.is_initialized(), "it was the script's"
    return (state.world == world, begins, state.seen, first)


def test_a_loop_that_is_no_function_goes_on(tmp_path: Path) -> None:
    first = values(run_ranks(2, alone, str(tmp_path), 3))
    assert [(same, begins[0], seen) for same, begins, seen, _ in first] == [(True, 0, 3)] * 2
    again = values(run_ranks(2, alone, str(tmp_path), 5))
    assert [(begins[0], seen) for _, begins, seen, _ in again] == [(3, 5)] * 2
    # Generators go on where each rank's were: after two numbers of the global one, one of its own.
    assert [begins[1] for _, begins, _, _ in again] != [begins[1] for _, begins, _, _ in first]
    more = values(run_ranks(3, alone, str(tmp_path), 5))
    drawn = [begins[1:] for _, begins, _, _ in more]
    assert len(set(drawn)) == 3, "no two ranks of a new world draw the same"

    state = elastic.State(model=nn.Linear(1, 1), seen=0)
    with pytest.raises(CheckpointUsageError, match=r"also has own\.rank-0"):
        elastic.load(tmp_path, state)
    before = torch.get_rng_state()
    assert elastic.load(tmp_path, state, strict=False) == 5
    assert (state.step, state.seen) == (5, 5)
    assert elastic.load(tmp_path, state, step=3, strict=False) == state.seen == 3
    assert torch.equal(before, torch.get_rng_state())
    with pytest.raises(CheckpointUsageError, match=r"of step 4 in .*; steps there: 5, 3"):
        elastic.load(tmp_path, state, step=4)


def stopped(folder: str) -> tuple[int, float]:
    run_loop._ran = False
    torch.manual_seed(1)
    model = nn.Linear(1, 1)
    optim = torch.optim.SGD(model.parameters(), lr=0.1)
    state = elastic.State(model=model, optim=optim)
    state.checkpoints(folder)
    state.at("2 steps", state.stop)
    with state.resumed():
        while True:
            model(torch.ones(1, 1)).sum().backward()
            optim.step()
            optim.zero_grad()
            state.commit()
    return state.step, float(model.weight)


def test_a_loop_that_is_no_function_is_stopped_for_good(tmp_path: Path) -> None:
    first = values(run_ranks(2, stopped, str(tmp_path)))
    assert [step for step, _ in first] == [2, 2]
    assert values(run_ranks(2, stopped, str(tmp_path))) == first, "no optimizer goes on"
