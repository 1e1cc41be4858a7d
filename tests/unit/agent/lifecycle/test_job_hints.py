"""What a person is told of a job that is plainly wrong for what it wants."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_runtime.agent.lifecycle.job_hints import Facts, hints
from elastic_runtime.events.checkpoint_events import (
    CheckpointCommitted,
    CheckpointSaved,
    CheckpointSaveFailed,
)
from elastic_runtime.events.state_events import DataShuffles, StateLacks, TrainerUnadapted

WELL = Facts(1, 4, 3, machines=2, seconds=7200.0, counts=True).heard(
    CheckpointSaved("/shared/runs", step=1, bytes=1, seconds=0.1)
)


@pytest.mark.parametrize(
    ("facts", "about"),
    [
        (WELL, set()),
        (replace(WELL, max_restarts=0), {"max-restarts"}),
        (replace(WELL, max_restarts=0, min_nodes=4), set()),
        (replace(WELL, place="/tmp/x/../runs"), {"checkpoint-place"}),
        (replace(WELL, place="/tmp/runs", machines=1), set()),
        (replace(WELL, place="/tmpfs/runs"), set()),
        (replace(WELL, place="s3://tmp/runs"), set()),
        (replace(WELL, saves=False), {"no-checkpoint"}),
        (replace(WELL, saves=False, seconds=3000.0), set()),
        # It may save in its own way; this package knows nothing of its steps.
        (replace(WELL, saves=False, counts=False), set()),
        (WELL.heard(DataShuffles("RandomSampler")), {"sampler"}),
        (WELL.heard(StateLacks("AdamW is not in the State")), {"state"}),
        (replace(WELL, shuffles="RandomSampler", min_nodes=4), {"sampler"}),
        # A plain script's world may never change.
        (replace(WELL, shuffles="RandomSampler", counts=False), set()),
        (replace(WELL, shuffles="RandomSampler", counts=False, resized=True), {"sampler"}),
        (WELL.heard(TrainerUnadapted("Lightning", alone=False)), {"trainer"}),
        (replace(WELL, trainer="Lightning", min_nodes=4), {"trainer"}),  # in any world
        (WELL.heard(TrainerUnadapted("transformers", alone=False)), {"trainer"}),
        (replace(WELL, trainer="transformers", min_nodes=4), set()),
        (replace(WELL, trainer="torchtitan", min_nodes=4), set()),
        (WELL.heard(TrainerUnadapted("Accelerate", alone=True)), {"trainer", "alone"}),
        (WELL.heard(TrainerUnadapted("", alone=True)), {"alone"}),
        (WELL.heard(TrainerUnadapted("one that is not known", alone=False)), set()),
    ],
)
def test_what_is_plainly_wrong_is_said(facts: Facts, about: set[str]) -> None:
    found = hints(facts)
    assert found.keys() == about
    assert all("\n" not in text for text in found.values())


def test_a_checkpoint_that_is_known_of_is_one() -> None:
    bare = replace(WELL, saves=False, place="")
    assert bare.heard(CheckpointCommitted(3)).saves
    failed = bare.heard(CheckpointSaveFailed("/tmp/x", step=3, problem="full"))
    assert (failed.saves, failed.place) == (False, "/tmp/x")
