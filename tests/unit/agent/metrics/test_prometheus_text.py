"""What Prometheus is told of an agent."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from elastic_runtime.agent.metrics.prometheus_text import render
from tests.unit.agent.metrics.measured import (
    KILLED,
    sealed,
    told,
    turned,
)


def test_prometheus_reads_what_is_rendered() -> None:
    state = told(*KILLED, turned(131, 6, 1), turned(140, 15, 10))
    text = render(state, 'a "run"', "n\\1", 140.0).decode()
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["elastic_agent_info", ("node", "n\\1"), ("run_id", 'a "run"')] == 1
    assert samples["elastic_world_size",] == 4
    assert samples["elastic_nodes",] == 2
    assert samples["elastic_restarts_total", ("class", "killed")] == 1
    assert samples["elastic_restarts_total", ("class", "lost")] == 0
    restore = ("class", "killed"), ("phase", "restore")
    assert samples["elastic_recovery_seconds_sum", *restore] == 2
    bucket = "elastic_recovery_seconds_bucket"
    assert samples[bucket, restore[0], ("le", "1.0"), restore[1]] == 0
    assert samples[bucket, restore[0], ("le", "3.0"), restore[1]] == 1
    assert samples[bucket, restore[0], ("le", "+Inf"), restore[1]] == 1
    assert samples["elastic_step",] == 15
    assert samples["elastic_lost_steps_total",] == 6
    assert samples["elastic_goodput_ratio",] == pytest.approx(state.goodput(140.0))
    assert samples["elastic_checkpoint_step",] == 5
    assert ("elastic_snapshot_size_bytes",) not in samples
    assert ("elastic_snapshot_step",) not in samples


def test_a_script_that_reports_no_steps_has_no_step() -> None:
    text = render(told(sealed(105, 1)), "r", "n", 110.0).decode()
    assert "\nelastic_step " not in text
    assert "\nelastic_goodput_ratio " not in text
    assert "\nelastic_round 1.0\n" in text
