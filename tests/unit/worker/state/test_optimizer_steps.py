"""Whether all optimizers have made the next step, from how many each made before each commit."""

from __future__ import annotations

from elastic_runtime.worker.state.optimizer_steps import OptimizerSteps


def step(steps: OptimizerSteps, *names: str) -> list[bool]:
    """Runs these optimizers; for each, whether it was the first since the last commit."""
    first = []
    for name in names:
        first.append(steps.begin())
        steps.end(name)
    return first


def commit(steps: OptimizerSteps) -> bool:
    done = steps.commit()
    steps.clear()
    return done


def test_before_the_first_commit_nobody_knows_what_is_usual() -> None:
    steps = OptimizerSteps()
    assert steps.may_be_all
    steps.begin()
    assert not steps.may_be_all, "an optimizer is inside its step"
    steps.end("a")
    assert steps.may_be_all
    assert not steps.are_as_usual


def test_a_step_is_whole_when_each_optimizer_has_made_as_many_as_before() -> None:
    steps = OptimizerSteps()
    assert step(steps, "d", "d", "g") == [True, False, False]
    assert commit(steps)
    assert not steps.may_be_all
    whole = []
    for name in ("d", "g", "d"):
        step(steps, name)
        whole.append(steps.are_as_usual)
    assert whole == [False, False, True]


def test_the_most_that_any_commit_has_waited_for_counts() -> None:
    steps = OptimizerSteps()
    step(steps, "d", "d", "g")
    commit(steps)
    step(steps, "d")
    commit(steps)
    assert steps.usual == {"d": 2, "g": 1}
    step(steps, "d", "g")
    assert not steps.are_as_usual


def test_inside_of_a_step_nothing_is_whole() -> None:
    steps = OptimizerSteps()
    step(steps, "a")
    commit(steps)
    step(steps, "a")
    steps.begin()
    assert not steps.are_as_usual


def test_a_commit_without_a_step_changes_nothing() -> None:
    steps = OptimizerSteps()
    assert not commit(steps)
    assert steps.usual == {}


def test_an_optimizer_that_raised_is_forgotten_when_counting_begins_anew() -> None:
    steps = OptimizerSteps()
    step(steps, "a")
    commit(steps)
    steps.begin()  # and never ends
    steps.clear()
    assert step(steps, "a") == [True]
    assert steps.are_as_usual
