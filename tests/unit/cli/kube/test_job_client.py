"""The way to an API server: credentials, pages, and answers that are none."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.cli.kube.job_client import JobClient, NotAllowed
from elastic_runtime.cli.kube.pod_logs import LogFilter, LogFollower
from elastic_runtime.errors import ClusterUnreachable
from elastic_runtime.kubernetes.cluster_access import ClusterRef
from tests.kube.cluster import kubeconfig
from tests.processes import PROGRAM_TIMEOUT

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE = 60.0

Answer = Callable[[BaseHTTPRequestHandler], tuple[int, bytes]]


class Server:
    """A server that answers as it is told, and remembers what it was asked."""

    def __init__(self) -> None:
        self.answer: Answer = lambda asked: (200, b"{}")
        self.content = "application/json"
        self.asked: list[BaseHTTPRequestHandler] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked.append(self)
                code, body = server.answer(self)
                self.send_response(code)
                self.send_header("Content-Type", server.content)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def config(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(kubeconfig(server.url, "team", "the token")))
    monkeypatch.setenv("KUBECONFIG", str(path))
    return path


@pytest.fixture
def client(config: Path) -> Iterator[JobClient]:
    assert config.exists()
    with JobClient(ClusterRef()) as client:
        yield client


def _named(*names: str) -> list[dict[str, object]]:
    return [{"metadata": {"name": name, "namespace": "team"}} for name in names]


def test_a_long_list_is_read_page_by_page(server: Server, client: JobClient) -> None:
    pages = {
        "": {"items": _named("c", "a"), "metadata": {"continue": "two&2"}},
        "two%262": {"items": _named("b"), "metadata": {"continue": ""}},
    }

    def answer(asked: BaseHTTPRequestHandler) -> tuple[int, bytes]:
        page = asked.path.partition("continue=")[2]
        return 200, json.dumps(pages[page]).encode()

    server.answer = answer
    assert [job["metadata"]["name"] for job in client.jobs()] == ["a", "b", "c"]
    assert "/namespaces/team/elasticjobs?" in server.asked[0].path
    assert {asked.headers["authorization"] for asked in server.asked} == {"Bearer the token"}


@pytest.mark.parametrize(
    ("code", "body"),
    [(200, b"<html>log in</html>"), (200, b""), (302, b""), (502, b"bad gateway")],
)
def test_what_is_no_answer_of_an_api_server_is_told_as_such(
    server: Server, client: JobClient, code: int, body: bytes
) -> None:
    server.answer = lambda asked: (code, body)
    with pytest.raises(ClusterUnreachable, match=server.url) as error:
        client.jobs()
    assert not isinstance(error.value, NotAllowed)


def test_a_web_server_is_told_from_an_api_server(server: Server, client: JobClient) -> None:
    said = f"what answers at {server.url} is no API server of Kubernetes"
    server.answer = lambda asked: (200, b"hello")
    with pytest.raises(ClusterUnreachable, match=f"{said}: its answer is no JSON"):
        client.jobs()
    server.content, server.answer = "text/html;charset=utf-8", lambda asked: (404, b"<html>")
    with pytest.raises(
        ClusterUnreachable, match=f"{said}: it answers with a web page and HTTP 404"
    ):
        client.jobs()


def test_a_followed_log_that_ends_while_its_container_runs_is_opened_again(
    server: Server, client: JobClient
) -> None:
    def answer(asked: BaseHTTPRequestHandler) -> tuple[int, bytes]:
        logs = sum("/log?" in one.path for one in server.asked)
        looks = sum(one.path.endswith("/one") for one in server.asked)
        if "/log?" in asked.path:  # the server was told to end, and did so in good order
            lines = [f"2026-01-01T00:00:0{at}.000000000Z {at}\n" for at in (1, 2)]
            return 200, "".join(lines[:logs]).encode()
        if "/pods?" in asked.path:
            pod = {
                "metadata": {"name": "one-worker-0", "uid": "p", "labels": {"replica-index": "0"}},
                "spec": {"containers": [{"name": "c"}]},
                "status": {
                    "containerStatuses": [
                        {"name": "c", "state": {"terminated" if logs > 1 else "running": {"x": 1}}}
                    ]
                },
            }
            return 200, json.dumps({"items": [pod]}).encode()
        over = {"type": "Succeeded", "status": str(looks > 3)}
        job = {"metadata": {"name": "one", "uid": "j"}, "status": {"conditions": [over]}}
        return 200, json.dumps(job).encode()

    server.answer = answer
    lines = LogFollower(client, "one", LogFilter()).lines()
    assert [line.text for line in lines] == [b"1", b"2"]
    again = [one.path for one in server.asked if "sinceTime=2026-01-01T00:00:0" in one.path]
    assert again


def test_a_namespace_of_the_command_line_wins(server: Server, config: Path) -> None:
    assert config.exists()
    with JobClient(ClusterRef(namespace="other")) as client:
        client.pods("one")
    assert server.asked[0].path.startswith("/api/v1/namespaces/other/pods?labelSelector=")


def test_who_waits_for_a_cluster_that_is_closed_is_told(server: Server, config: Path) -> None:
    assert config.exists()
    asked, answer, told = threading.Event(), threading.Event(), list[BaseException]()

    def answered(_: BaseHTTPRequestHandler) -> tuple[int, bytes]:
        asked.set()
        answer.wait(PATIENCE)
        return 200, b"{}"

    def ask() -> None:
        try:
            client.job("one")
        except ClusterUnreachable as error:
            told.append(error)

    server.answer = answered
    with JobClient(ClusterRef()) as client:
        thread = threading.Thread(target=ask)
        thread.start()
        assert asked.wait(PATIENCE)
    thread.join(PATIENCE)
    answer.set()
    assert [str(one) for one in told] == ["the connection was closed"]
    with pytest.raises(ClusterUnreachable, match="the connection was closed"):
        client.job("one")


def test_commands_of_a_store_do_without_the_package() -> None:
    program = (
        "import sys; sys.modules['kubernetes'] = sys.modules['yaml'] = None\n"
        "from elastic_runtime.cli.ctl.elasticctl import main\n"
        "sys.exit(main(['status', '--help']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=PROGRAM_TIMEOUT,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
