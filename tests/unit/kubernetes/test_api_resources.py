"""The paths of objects."""

from __future__ import annotations

from elastic_runtime.kubernetes.api_resources import LEASES, PODS


def test_the_path_of_one_of_some_and_of_all() -> None:
    assert PODS.path() == "/api/v1/pods"
    assert PODS.path("team") == "/api/v1/namespaces/team/pods"
    assert PODS.path("team", "one", "log") == "/api/v1/namespaces/team/pods/one/log"
    leases = "/apis/coordination.k8s.io/v1/namespaces/team/leases/one"
    assert LEASES.path("team", "one") == leases


def test_no_name_leads_to_another_object() -> None:
    assert PODS.path("a/b", "../c?d") == "/api/v1/namespaces/a%2Fb/pods/..%2Fc%3Fd"
