"""What the controller counts, as Prometheus reads it."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from elastic_runtime.controller.controller_metrics import ControllerMetrics


def test_metrics_have_the_values_of_the_moment_they_are_asked_for() -> None:
    queued, jobs, states = [3], {"Running": 2}, {"Running": 2, "Failed": 0}
    metrics = ControllerMetrics(lambda: queued[0], lambda: jobs, lambda: states)
    metrics.requested("GET", 200)
    metrics.requested("GET", 200)
    metrics.requested("POST", 0)
    metrics.leads.set(1)

    def found() -> dict[tuple[str, ...], float]:
        families = text_string_to_metric_families(metrics.text().decode())
        samples = (sample for family in families for sample in family.samples)
        return {(it.name, *sorted(it.labels.values())): it.value for it in samples}

    first = found()
    assert first["elastic_controller_api_requests_total", "200", "GET"] == 2
    assert first["elastic_controller_api_requests_total", "0", "POST"] == 1
    assert first["elastic_controller_leads",] == 1
    assert first["elastic_controller_jobs", "Running"] == 2
    assert first["elastic_controller_jobs_by_state", "Running"] == 2
    assert first["elastic_controller_jobs_by_state", "Failed"] == 0
    queued[0], jobs["Failed"], states["Failed"] = 4, 1, 1
    second = found()
    assert second["elastic_controller_queue_length",] == 4
    assert second["elastic_controller_jobs", "Failed"] == 1
    assert second["elastic_controller_jobs_by_state", "Failed"] == 1
