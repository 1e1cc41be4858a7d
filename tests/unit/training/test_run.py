"""The forms in which a script hands its function to ``elastic.run``, its loop, and its types."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_type

import pytest
import torch
from torch import nn

import elastic_runtime as elastic
from elastic_runtime import State
from elastic_runtime.data import sample_seeds
from elastic_runtime.errors import UsageError
from elastic_runtime.training import run as forms
from elastic_runtime.training import run_loop
from elastic_runtime.training.train_signature import check_signature
from elastic_runtime.worker.world import World
from tests.mistakes.scripts import PRELUDE, SCRIPTS
from tests.trained import trained

if TYPE_CHECKING:
    from collections.abc import Callable


WORLD = World(0, 1, 0, 1, 0, 1, round=1)


class Calls:
    """Stands in for the loop: notes what it was given, and calls the function once."""

    def __init__(self) -> None:
        self.made: list[dict[str, Any]] = []

    def __call__(self, train: Callable[[World], Any], state: Any, saver: Any, **more: Any) -> Any:
        self.made.append({"state": state, "saver": saver, **more})
        return train(WORLD)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    made = Calls()
    monkeypatch.setattr(forms, "train_to_end", made)
    return made


@pytest.fixture
def state() -> State:
    return State(model=nn.Linear(1, 1))


def size(world: World) -> int:
    return world.size


def nothing(world: World) -> None:
    return None


def test_the_function_runs_where_it_is_called(calls: Calls, state: State, tmp_path: Path) -> None:
    assert elastic.run(size, state) == 1
    assert elastic.run(train=size, state=state, start_over=True) == 1
    options = {"in_place": True, "start_over": False, "strict": True}
    assert calls.made == [
        {"state": state, "saver": None, **options},
        {"state": state, "saver": None, **options, "start_over": True},
    ]
    state.checkpoints(tmp_path)
    assert elastic.run(size, state, in_place=False, strict=False) == 1
    last = calls.made[-1]
    assert last.pop("saver") is not None
    assert last == {"state": state, "in_place": False, "start_over": False, "strict": False}


@pytest.mark.parametrize(
    ("misuse", "told"),
    [
        (lambda state: elastic.run(nothing, None), "none was given"),
        (lambda state: elastic.run(nothing, torch.ones(1)), "this is a Tensor"),
        (lambda state: elastic.run({"model": 1}, state), "needs the function that trains"),
        (lambda state: elastic.run(state, nothing), "needs the function that trains"),
    ],
)
def test_a_mistake_is_told_on_the_spot(
    calls: Calls, state: State, misuse: Callable[[Any], Any], told: str
) -> None:
    with pytest.raises(UsageError, match=r"elastic\.run") as refused:
        misuse(state)
    assert told in str(refused.value)
    assert calls.made == []


def test_what_fits_is_loaded_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, model = nn.Linear(1, 1), nn.Linear(1, 1)
    former = State(model=kept, old=nn.Linear(1, 1))
    former.checkpoints(tmp_path)
    with trained(former):
        former.commit()

    def run(**options: Any) -> tuple[int, float]:
        monkeypatch.setattr(run_loop, "_ran", False)
        state = State(model=model, more=nn.Linear(1, 1))
        state.checkpoints(tmp_path)
        return elastic.run(lambda world: (state.step, model.weight.item()), state, **options)

    with pytest.raises(UsageError, match=r"elastic\.run\(\.\.\., strict=False\)"):
        run()
    assert run(strict=False) == (1, kept.weight.item())


# What a script may get wrong by itself; ``tests.mistakes`` has the table


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    found: dict[str, Any] = {}
    exec(PRELUDE, found)
    return found


@pytest.mark.parametrize(("expression", "words"), SCRIPTS)
def test_a_script_is_told(
    names: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    expression: str,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_loop, "_ran", False)
    monkeypatch.setattr(sample_seeds, "_present", None)
    (tmp_path / "f").touch()
    with pytest.raises((UsageError, AttributeError)) as told:
        eval(expression, names)
    said, at = str(told.value), 0
    assert "\n" not in said
    for part in words.split(" … "):
        assert part in said[at:], said
        at = said.index(part, at) + len(part)


def two(world: Any, data: Any) -> None:
    pass


@pytest.mark.parametrize(
    "train", [lambda world: None, lambda *worlds: None, partial(two, data=1), print, dict]
)
def test_what_takes_a_world_may_train(train: Any) -> None:
    check_signature(train)


# What a type checker knows of the public names: it is run on a few lines of a user's


ROOT = Path(__file__).parents[3]

USE = """
from typing import assert_type
import elastic_runtime as elastic

class Net:
    pass

class Work(elastic.State):
    net: Net
    epoch: int

work = Work(net=Net(), epoch=0)
assert_type(work.net, Net)
assert_type(work.epoch, int)
work.checkpoints("runs", every="30s")
work.at("50 steps", lambda: print(work.epoch), name="log")

def train(world: elastic.World) -> int:
    return world.size

assert_type(elastic.run(train, work), int)
assert_type(elastic.run(train, work, in_place=False, strict=False), int)
with work.resumed() as world:
    assert_type(world, elastic.World)
assert_type(work.world, elastic.World)
assert_type(elastic.load("runs", work, step=3), int)
"""
WRONG = """
work.epoch = "first"
elastic.run(work, train)
work.at(train, "end")
elastic.run(train)
work.checkpoints()
"""


@pytest.mark.slow("a type checker reads the whole package")
def test_a_type_checker_knows_the_forms_of_run_and_the_objects_of_a_state(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(USE + WRONG)
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")]
    checked = subprocess.run(
        [*command, "--no-error-summary", str(script)], cwd=ROOT, capture_output=True, text=True
    )
    wrong = [int(line.split(":")[1]) for line in checked.stdout.splitlines() if ": error:" in line]
    first = len(USE.splitlines()) + 2
    assert sorted(set(wrong)) == list(range(first, first + 5)), checked.stdout + checked.stderr


class Work(elastic.State):
    """Annotations only."""

    model: nn.Linear
    best: float


def test_annotations_change_nothing_at_run_time() -> None:
    model = nn.Linear(1, 1)
    work = Work(model=model, optim=torch.optim.SGD(model.parameters(), lr=0.1))
    work.best = 0.5
    assert_type(work.best, float)
    assert work.model is model
    assert work.best == 0.5
    assert work._values == {"best": 0.5}
