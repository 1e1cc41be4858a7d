"""Which settings of a job the rendezvous uses."""

from __future__ import annotations

from elastic_runtime import defaults
from elastic_runtime.config import SCRIPT, Endpoint, Entry, JobConfig, Timeouts
from elastic_runtime.rendezvous.policy import Policy

CONFIG = JobConfig(Entry(SCRIPT, "train.py"), Endpoint("c10d", ("h:1",)), "r")


def test_the_rendezvous_is_told_the_time_outs_of_the_job() -> None:
    times = Timeouts(lease_ttl=9.0, join_timeout=7.0)
    policy = Policy.of(CONFIG.with_(timeouts=times, max_nodes=4, max_restarts=5))
    assert policy.timeouts is times
    assert policy.settle == 9.0
    assert (policy.max_nodes, policy.max_restarts, policy.entry) == (4, 5, "train.py")
    assert "h:1" in policy.remedy


def test_an_etcd_needs_no_remedy() -> None:
    assert Policy.of(CONFIG.with_(endpoint=Endpoint("etcd", ("h:1",)))).remedy == ""


def test_an_absent_key_proves_nothing_for_a_while_however_short_leases_are() -> None:
    assert Policy.of(CONFIG.with_(timeouts=Timeouts(lease_ttl=1.0))).settle == defaults.SETTLE


def test_the_secret_is_not_shown() -> None:
    assert "hidden" not in repr(Policy(secret="hidden"))
