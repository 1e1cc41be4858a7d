"""What the chart adds to the plain installation: monitors, alerts, budgets, policies, a test."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from typing import Any

import pytest

from elastic_runtime.controller import controller_metrics
from elastic_runtime.controller.cluster_state import STATES
from elastic_runtime.controller.controller_metrics import ControllerMetrics
from elastic_runtime.controller.decide.manifests import METRICS_PORT, labels
from tests.processes import PROGRAM_TIMEOUT
from tests.unit.deploy.files import CHART, Object
from tests.unit.deploy.rendering import charted
from tests.unit.deploy.test_install import VALUES, leaves
from tests.unit.deploy.test_install import the as found_in

OPTIONAL = {"ServiceMonitor", "PodMonitor", "PrometheusRule", "PodDisruptionBudget"}


def the(kind: str, name: str = "elastic-controller", **values: Any) -> Object:
    """What the chart makes of that kind and name."""
    return found_in(kind, charted(**values), name)


def pod_labels(**values: Any) -> Object:
    """Of the controller's pods."""
    found: Object = the("Deployment", **values)["spec"]["template"]["metadata"]["labels"]
    return found


def test_nothing_is_installed_that_nobody_has_asked_for() -> None:
    assert {each["kind"] for each in charted()}.isdisjoint(OPTIONAL)


# ---------------------------------------------------------------- the Prometheus Operator


def test_the_controller_is_found_through_its_service() -> None:
    monitor = the(
        "ServiceMonitor",
        metrics={"serviceMonitor": {"enabled": True, "namespace": "seen", "labels": {"a": "b"}}},
    )
    service = the("Service")
    assert monitor["metadata"]["namespace"] == "seen"
    assert monitor["metadata"]["labels"]["a"] == "b"
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["elastic-job"]}
    chosen = monitor["spec"]["selector"]["matchLabels"]
    assert chosen.items() <= service["metadata"]["labels"].items()
    [endpoint], [port] = monitor["spec"]["endpoints"], service["spec"]["ports"]
    assert (endpoint["port"], endpoint["interval"]) == (port["name"], "30s")
    assert service["spec"]["selector"].items() <= pod_labels().items()


def relabeled(rules: list[Object], target: dict[str, str]) -> dict[str, str]:
    """A target as Prometheus makes it: what a rule finds is the whole of its source."""
    target = dict(target)
    for rule in rules:
        pattern = re.compile(rule.get("regex", "(.*)"))
        if rule.get("action") == "labeldrop":
            target = {name: value for name, value in target.items() if not pattern.fullmatch(name)}
        elif found := pattern.fullmatch(
            ";".join(target.get(name, "") for name in rule["sourceLabels"])
        ):
            target[rule["targetLabel"]] = found.expand(rule["replacement"].replace("${1}", r"\1"))
    return {name: value for name, value in target.items() if not name.startswith("__meta")}


@pytest.mark.parametrize(
    ("ip", "address"), [("10.1.2.3", "10.1.2.3:9404"), ("fd00::7", "[fd00::7]:9404")]
)
def test_a_worker_is_one_target_whatever_its_containers_declare(ip: str, address: str) -> None:
    monitor = the("PodMonitor", "elastic-workers", metrics={"podMonitor": {"enabled": True}})
    assert METRICS_PORT == 9404
    spec = monitor["spec"]
    chosen = spec["selector"]["matchLabels"].items()
    assert chosen <= labels("digits", "worker").items()
    assert not chosen <= labels("digits", "etcd").items()
    [endpoint] = spec["podMetricsEndpoints"]
    # These would keep targets only that declare a port.
    assert endpoint.keys().isdisjoint({"port", "portNumber", "targetPort"})
    found = [
        relabeled(
            endpoint["relabelings"],
            {"__address__": ip + port, "__meta_kubernetes_pod_ip": ip, "container": name},
        )
        for name, port in (("elasticjob-worker", ""), ("sidecar", ":80"), ("sidecar", ":81"))
    ]
    assert found == [{"__address__": address}] * 3


@pytest.mark.parametrize(
    ("values", "selector"),
    [
        ({}, {"any": True}),
        ({"namespaced": True}, {"matchNames": ["elastic-job"]}),
        ({"jobs": ["a", "b"]}, {"matchNames": ["a", "b"]}),
    ],
)
def test_workers_are_sought_where_the_jobs_are(values: Object, selector: Object) -> None:
    monitor = {"enabled": True, "jobNamespaces": values.pop("jobs", [])}
    made = the("PodMonitor", "elastic-workers", metrics={"podMonitor": monitor}, **values)
    assert made["spec"]["namespaceSelector"] == selector


def rules() -> list[Object]:
    """The alerts."""
    made = the("PrometheusRule", metrics={"rules": {"enabled": True, "runbooks": "R"}})
    [group] = made["spec"]["groups"]
    found: list[Object] = group["rules"]
    return found


def test_alerts_ask_for_what_the_controller_tells() -> None:
    metrics = ControllerMetrics(lambda: 0, lambda: {}, lambda: dict.fromkeys(STATES, 0))
    told = metrics.text().decode()
    for rule in rules():
        [name] = re.findall(r"elastic_\w+", rule["expr"])
        assert re.search(rf"^{name}\b", told, re.MULTILINE), name
        for state in re.findall(r'state="(\w+)"', rule["expr"]):
            assert state in STATES
        assert rule["for"] == "15m"


def test_that_a_release_has_no_leader_is_told_although_another_one_has() -> None:
    values = {"metrics": {"rules": {"enabled": True}}, "namespaced": True}
    [made] = [one for one in charted("team-a", **values) if one["kind"] == "PrometheusRule"]
    [alert] = [one for one in made["spec"]["groups"][0]["rules"] if "NoLeader" in one["alert"]]
    assert 'elastic_controller_leads{namespace="team-a"}' in alert["expr"]


# ---------------------------------------------------------------- what a cluster may do to it


@pytest.mark.parametrize(
    ("values", "count"),
    [
        ({}, 0),
        ({"replicas": 2}, 1),
        ({"replicas": 2, "podDisruptionBudget": {"enabled": False}}, 0),
    ],
)
def test_a_drain_leaves_one_of_several_controllers(values: Object, count: int) -> None:
    budgets = [each for each in charted(**values) if each["kind"] == "PodDisruptionBudget"]
    assert len(budgets) == count
    for budget in budgets:
        assert budget["spec"]["minAvailable"] == 1
        assert budget["spec"]["selector"]["matchLabels"].items() <= pod_labels().items()


def ports(rule: Object) -> set[int]:
    """The ports that a rule of a policy speaks of."""
    return {each["port"] for each in rule["ports"]}


def test_the_controller_reaches_what_it_needs_and_strangers_do_not_reach_it() -> None:
    peer = {"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}
    spec = the("NetworkPolicy", networkPolicy={"enabled": True, "metricsFrom": [peer]})["spec"]
    assert spec["podSelector"]["matchLabels"].items() <= pod_labels().items()
    assert set(spec["policyTypes"]) == {"Ingress", "Egress"}
    [let_in] = spec["ingress"]
    assert ports(let_in) == {8080}
    tester = the("Pod", "elastic-controller-test")["metadata"]["labels"]
    assert let_in["from"][0]["podSelector"]["matchLabels"].items() <= tester.items()
    assert let_in["from"][1:] == [peer]
    dns, server, agents = spec["egress"]
    assert (ports(dns), ports(server), ports(agents)) == ({53}, {443, 6443}, {METRICS_PORT})
    [pods] = agents["to"]
    assert pods["namespaceSelector"] == {}
    assert pods["podSelector"]["matchLabels"].items() <= labels("digits", "worker").items()


def test_who_may_read_metrics_may_read_those_of_jobs() -> None:
    peer = {"ipBlock": {"cidr": "10.0.0.0/8"}}
    policy = the(
        "NetworkPolicy",
        "elasticjobs",
        policyNamespaces=["team"],
        networkPolicy={"metricsFrom": [peer]},
    )
    assert peer in policy["spec"]["ingress"][1]["from"]
    assert peer not in policy["spec"]["ingress"][0]["from"]


# ---------------------------------------------------------------- helm test


def asked(host: str, port: int, wanted: int = 1) -> list[str]:
    """The command of `helm test`, as it is in the Pod, with no time to wait."""
    [container] = the("Pod", "elastic-controller-test")["spec"]["containers"]
    python, *command = container["command"]
    assert python == "python"
    given = container["args"]
    assert given == ["elastic-controller.elastic-job.svc", "8080", "1"]
    return [sys.executable, "-I", *command, host, str(port), str(wanted), "0"]


async def answer(why_not: str, wanted: int = 1) -> tuple[int, str]:
    """What the test says of a controller that says this of itself."""
    metrics = ControllerMetrics(lambda: 0, lambda: {}, lambda: {})
    server = await controller_metrics.serve(0, metrics, lambda: why_not)
    try:
        ran = await asyncio.create_subprocess_exec(
            *asked("127.0.0.1", server.port, wanted), stdout=asyncio.subprocess.PIPE
        )
        said, _ = await asyncio.wait_for(ran.communicate(), PROGRAM_TIMEOUT)
    finally:
        await server.close()
    return ran.returncode or 0, said.decode().strip()


@pytest.mark.parametrize(
    ("why_not", "wanted", "code", "said"),
    [
        ("", 1, 0, "all controllers are ready"),
        ("ElasticJobs are not known here", 1, 1, "ElasticJobs are not known here"),
        ("", 2, 1, "1 of 2 controllers"),
    ],
)
def test_helm_test_asks_the_controller(why_not: str, wanted: int, code: int, said: str) -> None:
    ended, told = asyncio.run(answer(why_not, wanted))
    assert ended == code
    assert said in told


def test_helm_test_says_what_does_not_answer() -> None:
    for host, said in (("127.0.0.1", "does not answer"), ("nowhere.invalid", "no address")):
        ran = subprocess.run(
            asked(host, 1), capture_output=True, text=True, timeout=PROGRAM_TIMEOUT
        )
        assert (ran.returncode, ran.stderr) == (1, "")
        assert said in ran.stdout


def test_the_pod_of_helm_test_may_run_where_only_restricted_pods_may() -> None:
    made = the("Pod", "elastic-controller-test")
    controller = the("Deployment")["spec"]["template"]["spec"]
    spec = made["spec"]
    assert made["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert spec["securityContext"] == controller["securityContext"]
    assert spec["automountServiceAccountToken"] is False
    [container], [other] = spec["containers"], controller["containers"]
    assert container["securityContext"] == other["securityContext"]
    assert container["image"] == other["image"]
    # Neither the Deployment nor its Service may take it for one of theirs.
    assert not the("Service")["spec"]["selector"].items() <= made["metadata"]["labels"].items()


# ---------------------------------------------------------------- README.md


def test_the_readme_lists_each_value_with_its_default() -> None:
    text = (CHART / "README.md").read_text()
    rows = re.findall(r"^\| `([^`]+)` \| `([^`]*)` \| (.+) \|$", text, re.MULTILINE)
    told = [(name, json.loads(default)) for name, default, _ in rows]
    assert told == [(".".join(place), default) for place, default in leaves(VALUES)]
