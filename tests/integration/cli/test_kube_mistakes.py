"""What ``elasticctl`` says when a job, a cluster or a kubeconfig is not as it should be."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli.conftest import PATIENCE, Ctl, add_job, assert_refused
from tests.kube.cluster import kubeconfig
from tests.kube.kinds import JOB

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kube.cluster import FakeCluster

SUBMIT = ("submit", "train.py", "--image", "x:1")


def test_a_job_that_is_not_there_has_neighbours(cluster: FakeCluster, quick: Ctl) -> None:
    add_job(cluster, "digits-one")
    for arguments in (("status", "digits-on"), ("scale", "digits-on", "2"), ("logs", "digits-on")):
        assert_refused(quick, "did you mean 'digits-one'?", *arguments)
    assert_refused(quick, "elasticctl jobs lists those that there are", "delete", "zebra")


@pytest.mark.parametrize("name", ["", "..", "a/b", "UPPER"])
def test_what_cannot_be_a_name_is_not_sent(cluster: FakeCluster, quick: Ctl, name: str) -> None:
    add_job(cluster)
    assert_refused(quick, "is no name of a job", "delete", name)
    assert not cluster.counts()


def test_a_cluster_without_the_resource_says_how_to_install_it(
    cluster: FakeCluster, quick: Ctl
) -> None:
    kinds = cluster.server.catalogue.kinds
    kinds[:] = [kind for kind in kinds if kind != JOB]
    for arguments in (("jobs",), ("status", "one"), SUBMIT):
        assert_refused(quick, "knows no ElasticJobs: install them with", *arguments)


MAY_NOT, WRONG = "exceeded quota: jobs, requested: count/elasticjobs=1", "spec.x: must not be"


@pytest.mark.parametrize(
    ("command", "status", "reason", "message", "code", "words"),
    [
        (("jobs",), 403, "Forbidden", "User cannot list", 4, "you may not list elasticjobs in the"),
        (("jobs",), 500, "InternalError", "etcd has no leader", 4, "failed with 500: etcd has no"),
        (("jobs",), 429, "TooManyRequests", "slow down", 4, "failed with 429: slow down"),
        (("jobs",), 422, "Invalid", "spec.x: no", 2, "refuses to list elasticjobs"),
        (SUBMIT, 422, "Invalid", WRONG, 2, WRONG),
        (SUBMIT, 403, "Forbidden", MAY_NOT, 2, MAY_NOT),
    ],
)
def test_refusals_of_the_server_are_told(
    cluster: FakeCluster,
    quick: Ctl,
    command: tuple[str, ...],
    status: int,
    reason: str,
    message: str,
    code: int,
    words: str,
) -> None:
    with cluster.trouble(lambda asked: asked.kind == JOB, status, reason, message):
        ended, _, err = quick(*command)
    assert (ended, words in err, message in err) == (code, True, True), err


def test_a_token_that_is_not_accepted(cluster: FakeCluster, quick: Ctl) -> None:
    cluster.server.token = "the right one"
    err = assert_refused(quick, "does not accept these credentials", "jobs", code=4)
    assert "the right one" not in err


def test_a_server_that_is_gone(ctl: Ctl, tmp_path: Path) -> None:
    with socket.socket() as taken:  # nobody else may listen there, and we do not
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        path = tmp_path / "gone"
        path.write_text(json.dumps(kubeconfig(url, "default")))
        code, out, err = ctl("jobs", env={"KUBECONFIG": str(path)})
    assert (code, out) == (4, "")
    assert err.startswith(f"elasticctl: error: the API server {url} does not answer")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "words"), [(None, "There is no kubeconfig at"), ("hello", "is no kubeconfig")]
)
def test_a_kubeconfig_that_is_none(
    quick: Ctl, tmp_path: Path, text: str | None, words: str
) -> None:
    path = tmp_path / "other"
    if text is not None:
        path.write_text(text)
    code, _, err = quick("jobs", env={"KUBECONFIG": str(path)})
    assert (code, words in err, str(path) in err, err.count("\n")) == (2, True, True, 1)


def test_a_kubeconfig_whose_namespace_cannot_be(quick: Ctl, tmp_path: Path) -> None:
    path = tmp_path / "other"
    written = kubeconfig("http://127.0.0.1:1", "default")
    written["contexts"][0]["context"]["namespace"] = 3
    path.write_text(json.dumps(written))
    code, _, err = quick("jobs", env={"KUBECONFIG": str(path)})
    expected = "the API server http://127.0.0.1:1 does not answer"
    assert (code, expected in err, err.count("\n")) == (4, True, 1)


def test_a_context_or_a_namespace_that_cannot_be(quick: Ctl) -> None:
    assert_refused(quick, "has no context 'prod': it has 'fake'", "jobs", "--context", "prod")
    assert_refused(quick, "is no name of a namespace", "jobs", "-n", "../kube-system")


@pytest.mark.parametrize("package", ["kubernetes", "aiohttp"])
def test_without_the_package_it_says_what_to_install(environ: dict[str, str], package: str) -> None:
    program = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from elastic_runtime.cli.ctl.elasticctl import main\n"
        "sys.exit(main(['jobs']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 2
    assert "pip install 'elastic-runtime[kubernetes]'" in done.stderr
