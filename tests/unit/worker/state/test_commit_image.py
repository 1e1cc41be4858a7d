"""What a State gives to another one, and what that makes of it."""

from __future__ import annotations

import random

import pytest
import torch

from elastic_runtime.worker.recovery.recovery_source import MemoryCondition
from tests.unit.worker.state.small_job import Job, copy_of, has_status


def test_gives_everything_to_a_new_rank() -> None:
    old, new = Job().start(), Job(seed=1, lr=0.5)
    for _ in range(3):
        old.step()
    weight = new.model[0].weight
    assert new.state.digest() != old.state.digest()
    new.state.load(*copy_of(old.state.commit_image()))
    assert has_status(new.state, 3, MemoryCondition.CLEAN)
    assert new.state.commit_image().meta == old.state.commit_image().meta
    for here, there in zip(
        new.state.commit_image().tensors, old.state.commit_image().tensors, strict=True
    ):
        assert torch.equal(here, there) and here.dtype == there.dtype
    assert new.model[0].weight is weight
    assert (new.state.seen, new.state.losses) == (12, old.state.losses)
    assert new.sampler.cursor == 12
    assert new.state.digest() == old.state.digest()


def test_what_was_loaded_trains_on_and_rolls_back() -> None:
    old, new = Job().start(), Job(seed=1).start()
    old.step()
    new.forward()  # its gradients are of a step that never was
    new.state.load(*copy_of(old.state.commit_image()))
    assert all(p.grad is None for p in new.model.parameters())
    for job in (old, new):
        torch.manual_seed(5)
        random.seed(5)
        job.step()
    assert new.content() == old.content()
    before = new.content()
    new.forward()
    new.state.roll_back()
    assert new.content() == before


def test_a_load_that_fails_half_way_leaves_nothing_to_go_on_from() -> None:
    old, new = Job().start(), Job(seed=1)
    old.step()

    def fail(state: object) -> None:
        raise ValueError("not this one")

    new.sampler.load_state_dict = fail  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="not this one"):
        new.state.load(*copy_of(old.state.commit_image()))
    assert has_status(new.state, 1, MemoryCondition.DIRTY)


def test_a_loaded_rank_knows_when_a_step_is_finished() -> None:
    old, new = Job().start(), Job()
    old.step()
    new.state.load(*copy_of(old.state.commit_image()))
    new.forward()
    new.optim.step()
    assert has_status(new.state, 1, MemoryCondition.FINISHED)


def test_receives_into_its_own_memory() -> None:
    old, new = Job().start(), Job(seed=1)
    old.step()
    meta, tensors = copy_of(old.state.commit_image())
    received = []
    for target, tensor in zip(new.state.destinations(meta), tensors, strict=True):
        received.append(tensor if target is None else target.copy_(tensor))
    assert any(t.data_ptr() == new.model[0].weight.data_ptr() for t in received)
    new.state.load(meta, received)
    assert new.state.digest() == old.state.digest()


def test_what_ranks_share_is_parameters_and_optimizer_state() -> None:
    job = Job().start()
    job.step()
    meta, tensors = job.state.commit_image()
    shared = {t.data_ptr() for t in job.state.common(meta) if t is not None}
    buffers = {b.data_ptr() for b in job.model.buffers()}
    assert shared | buffers == {t.data_ptr() for t in tensors}
    assert not shared & buffers
