"""The benchmark of the controller: it runs, and measures what it says."""

from __future__ import annotations

from scripts.bench import reconcile


def test_every_figure_is_measured() -> None:
    task = reconcile.Task(jobs=3, pods=2, endpoint="", deletions=2, idle_seconds=1.0)
    figures = reconcile.run(task)

    assert figures.settled > 0
    # Each job has an etcd of its own, and its template is checked by a dry run.
    assert figures.requests["create pods"] == 3 * (2 + 1 + 1)
    assert len(figures.answers) == 2
    assert all(seconds > 0 for seconds in figures.answers)
    assert figures.idle.keys() <= {"update leases"}
    for now, most in (figures.megabytes, figures.restarted):
        assert 0 < now <= most
    assert "3 jobs, 2 pods each" in reconcile.table(task, figures)
