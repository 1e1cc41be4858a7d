"""Steps and tokens of a job, whatever the number of ranks that count them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from elastic_runtime.torchtitan.train_progress import TrainProgress


class Trainer:
    """What is looked at of an ``ElasticTrainer``."""

    def __init__(self, ranks: int, batch: int = 10) -> None:
        mesh = SimpleNamespace(size=lambda: ranks) if ranks > 1 else None
        self.parallel_dims = SimpleNamespace(get_optional_mesh=lambda name: mesh)
        self.config = SimpleNamespace(training=SimpleNamespace(seq_len=16))
        self.global_batch = batch
        self.step = self.ntokens_seen = 0
        self.told: list[int] = []

    def go_on(self, saved: int) -> None:
        self.told.append(saved)


def test_tokens_are_those_of_the_job() -> None:
    trainer = Trainer(ranks=4)
    progress = TrainProgress(trainer)
    for step in (1, 2):
        trainer.step = step
        trainer.ntokens_seen += 99  # with what was filled up
        progress.commit()
    assert progress.state_dict() == {"step": 2, "tokens": 320, "global_batch": 10}
    assert trainer.ntokens_seen == 80


def test_another_world_goes_on_with_its_part() -> None:
    trainer = Trainer(ranks=1)
    progress = TrainProgress(trainer)
    progress.load_state_dict({"step": 2, "tokens": 320, "global_batch": 12})
    assert (trainer.step, trainer.ntokens_seen, trainer.told) == (2, 320, [12])


def test_what_is_saved_is_of_the_last_commit() -> None:
    # torchtitan counts a step before it makes it, also the one that the data do not suffice for.
    trainer: Any = Trainer(ranks=2)
    progress = TrainProgress(trainer)
    trainer.step = 1
    progress.commit()
    trainer.step = 2
    assert progress.state_dict()["step"] == 1


def test_a_run_that_torchtitan_began() -> None:
    progress = TrainProgress(Trainer(ranks=4))
    progress.begin_at(100, 1000)
    assert progress.state_dict()["tokens"] == 4000
