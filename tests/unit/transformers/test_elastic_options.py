"""Options are checked before a job is started for them."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_runtime.errors import UsageError
from elastic_runtime.transformers import ElasticOptions


@pytest.mark.parametrize(
    "options", [{"every": "often"}, {"global_batch": 0}, {"snapshot_every": "x"}]
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        ElasticOptions(**options)


def test_checkpoints_are_in_the_output_directory_or_where_the_user_says() -> None:
    assert ElasticOptions().where("runs/x") == "runs/x/_elastic_checkpoints"
    assert ElasticOptions("s3://bucket/x").where("runs/x") == "s3://bucket/x"


def test_the_batch_is_recorded_beside_them(tmp_path: Any) -> None:
    ElasticOptions(tmp_path).record("elsewhere").write(24)
    assert (tmp_path / "transformers.json").exists()
    assert ElasticOptions(tmp_path).record(None).batch() == 24
