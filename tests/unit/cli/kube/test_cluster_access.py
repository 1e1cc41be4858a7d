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

from elastic_runtime.cli.kube.cluster_access import Access, Connection
from elastic_runtime.cli.kube.job_client import Cluster, NotAllowed
from elastic_runtime.cli.kube.pod_logs import Following, Wanted
from elastic_runtime.errors import ClusterUnreachable, UsageError
from tests.kube.cluster import kubeconfig

if TYPE_CHECKING:
    from pathlib import Path

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


def _named(*names: str) -> list[dict[str, object]]:
    return [{"metadata": {"name": name, "namespace": "team"}} for name in names]


@pytest.mark.usefixtures("config")
def test_a_long_list_is_read_page_by_page(server: Server) -> None:
    pages = {
        "": {"items": _named("c", "a"), "metadata": {"continue": "two&2"}},
        "two%262": {"items": _named("b"), "metadata": {"continue": ""}},
    }

    def answer(asked: BaseHTTPRequestHandler) -> tuple[int, bytes]:
        page = asked.path.partition("continue=")[2]
        return 200, json.dumps(pages[page]).encode()

    server.answer = answer
    assert [job["metadata"]["name"] for job in Cluster(Access()).jobs()] == ["a", "b", "c"]
    assert "/namespaces/team/elasticjobs?" in server.asked[0].path
    assert {asked.headers["authorization"] for asked in server.asked} == {"Bearer the token"}


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize(
    ("code", "body"),
    [(200, b"<html>log in</html>"), (200, b""), (302, b""), (502, b"bad gateway")],
)
def test_what_is_no_answer_of_an_api_server_is_told_as_such(
    server: Server, code: int, body: bytes
) -> None:
    server.answer = lambda asked: (code, body)
    with pytest.raises(ClusterUnreachable, match=server.url) as error:
        Cluster(Access()).jobs()
    assert not isinstance(error.value, NotAllowed)


@pytest.mark.usefixtures("config")
def test_a_web_server_is_told_from_an_api_server(server: Server) -> None:
    said = f"what answers at {server.url} is no API server of Kubernetes"
    server.answer = lambda asked: (200, b"hello")
    with pytest.raises(ClusterUnreachable, match=f"{said}: its answer is no JSON"):
        Cluster(Access()).jobs()
    server.content, server.answer = "text/html;charset=utf-8", lambda asked: (404, b"<html>")
    with pytest.raises(
        ClusterUnreachable, match=f"{said}: it answers with a web page and HTTP 404"
    ):
        Cluster(Access()).jobs()


@pytest.mark.usefixtures("config")
def test_a_followed_log_that_ends_while_its_container_runs_is_opened_again(server: Server) -> None:
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
    lines = Following(Cluster(Access()), "one", Wanted()).lines()
    assert [line.text for line in lines] == [b"1", b"2"]
    again = [one.path for one in server.asked if "sinceTime=2026-01-01T00%3A00%3A0" in one.path]
    assert again


@pytest.mark.usefixtures("config")
def test_a_namespace_of_the_command_line_wins(server: Server) -> None:
    Cluster(Access(namespace="other")).pods("one")
    assert server.asked[0].path.startswith("/api/v1/namespaces/other/pods?labelSelector=")


def test_several_kubeconfigs_are_one(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = json.loads(config.read_text())
    second["contexts"][0]["name"] = "second"
    second["contexts"][0]["context"]["namespace"] = "elsewhere"
    (tmp_path / "second").write_text(json.dumps(second))
    monkeypatch.setenv("KUBECONFIG", f"{config}:{tmp_path / 'none'}:{tmp_path / 'second'}")
    assert Connection(Access()).namespace == "team"
    assert Connection(Access(context="second")).namespace == "elsewhere"


def test_in_a_pod_its_service_account_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(UsageError, match="this pod has no service account"):
        Connection(Access())
    with pytest.raises(UsageError, match="--context names a context of a kubeconfig"):
        Connection(Access(context="prod"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    with pytest.raises(UsageError, match="There is no kubeconfig at ~"):
        Connection(Access())


def test_commands_of_a_store_do_without_the_package() -> None:
    program = (
        "import sys; sys.modules['kubernetes'] = sys.modules['yaml'] = None\n"
        "from elastic_runtime.cli.ctl.elasticctl import main\n"
        "sys.exit(main(['status', '--help']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
