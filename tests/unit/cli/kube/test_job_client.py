"""The way to an API server: credentials, pages, answers that are none; and the logs of pods."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from elastic_runtime.cli.kube.job_client import JobClient, NotAllowed
from elastic_runtime.cli.kube.pod_logs import (
    LogFilter,
    LogFollower,
    LogLine,
    _PodStream,
    parse_line,
    role_of,
)
from elastic_runtime.errors import ClusterUnreachable
from elastic_runtime.kubernetes.cluster_access import ClusterRef
from tests.kube.cluster import kubeconfig
from tests.unit.programs import python

if TYPE_CHECKING:
    from pathlib import Path


PATIENCE = 60.0

Answer = Callable[[BaseHTTPRequestHandler], tuple[int, bytes]]


class Server(ThreadingHTTPServer):
    """A server that answers as it is told, and remembers what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.answer: Answer = lambda asked: (200, b"{}")
        self.content = "application/json"
        self.asked: list[BaseHTTPRequestHandler] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class Request(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append(self)
        code, body = self.server.answer(self)
        self.send_response(code)
        self.send_header("Content-Type", self.server.content)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """One that the kubeconfig names."""
    path = tmp_path / "kubeconfig"
    monkeypatch.setenv("KUBECONFIG", str(path))
    with Server() as server:
        path.write_text(json.dumps(kubeconfig(server.url, "team", "the token")))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def client(server: Server) -> Iterator[JobClient]:
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


_NO_SERVER = "is no API server of Kubernetes: "


@pytest.mark.parametrize(
    ("code", "body", "said"),
    [
        (200, b"<html>log in</html>", f"{_NO_SERVER}its answer is no JSON"),
        (200, b"", ""),
        (302, b"", ""),
        (404, b"<html>", f"{_NO_SERVER}it answers with a web page and HTTP 404"),
        (502, b"bad gateway", ""),
    ],
)
def test_what_is_no_answer_of_an_api_server_is_told_as_such(
    server: Server, client: JobClient, code: int, body: bytes, said: str
) -> None:
    server.answer = lambda asked: (code, body)
    if code == 404:
        server.content = "text/html;charset=utf-8"
    with pytest.raises(ClusterUnreachable, match=f"{server.url} ?.*{said}") as error:
        client.jobs()
    assert not isinstance(error.value, NotAllowed)


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


def test_a_namespace_of_the_command_line_wins(server: Server) -> None:
    with JobClient(ClusterRef(namespace="other")) as client:
        client.pods("one")
    assert server.asked[0].path.startswith("/api/v1/namespaces/other/pods?labelSelector=")


def test_who_waits_for_a_cluster_that_is_closed_is_told(server: Server) -> None:
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
    done = python("-c", program)
    assert (done.returncode, done.stderr) == (0, "")


def _line(at: int, text: str = "") -> LogLine:
    return LogLine("worker-0", at, text.encode())


def _pod(name: str, index: str | None) -> dict[str, Any]:
    labels = {} if index is None else {"replica-index": index}
    return {"metadata": {"name": name, "labels": labels}}


PODS = [_pod("one-worker-10", "10"), _pod("one-etcd", None), _pod("one-worker-1", "1")]


@pytest.mark.parametrize(
    ("line", "at", "text"),
    [
        (b"1970-01-01T00:00:02.000000003Z [default0]: a  b", 2_000_000_003, b"[default0]: a  b"),
        (b"1970-01-01T01:00:02.5+01:00 x", 2_500_000_000, b"x"),
        (b"1970-01-01T00:00:02Z ", 2_000_000_000, b""),
        (b"1970-01-01T00:00:02Z", 2_000_000_000, b""),
        (b"no time at all", 7, b"no time at all"),
        (b"", 7, b""),
    ],
)
def test_a_line_is_a_time_and_a_text(line: bytes, at: int, text: bytes) -> None:
    assert parse_line("p", line, 7) == LogLine("p", at, text)


@pytest.mark.parametrize(
    ("pod", "names"),
    [
        ("", ["one-worker-1", "one-worker-10"]),
        ("1", ["one-worker-1"]),
        ("worker-10", ["one-worker-10"]),
        ("one-worker-10", ["one-worker-10"]),
        ("etcd", ["one-etcd"]),
        ("worker-2", []),
    ],
)
def test_a_pod_is_meant_by_any_of_its_names(pod: str, names: list[str]) -> None:
    queued = _pod("one-worker-3-mwzc2aoc", "3")
    for name in ("3", "worker-3", "worker-3-mwzc2aoc", "one-worker-3-mwzc2aoc"):
        assert list(LogFilter(pod=name).pods("one", [*PODS, queued])) == [queued]
    found = LogFilter(pod=pod).pods("one", PODS)
    assert [one["metadata"]["name"] for one in found] == names


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("[default1]:x", True),
        ("[default11]:x", False),
        ("[default0]:[default1]:x", False),
        ("x", False),
        ('{"event": "worker.line", "rank": 1, "line": "x"}', True),
        ('{"event": "worker.line", "rank": 11, "line": "x"}', False),
        ('{"event": "worker.failed", "rank": 1}', False),
        ('{"event": "worker.line", "ra', False),
    ],
)
def test_a_rank_is_known_by_what_elastic_run_puts_in_front(text: str, taken: bool) -> None:
    assert LogFilter(rank=1).matches(_line(1, text)) is taken
    assert LogFilter().matches(_line(1, text))


def test_a_role_that_ends_in_a_digit_is_not_taken_for_a_rank() -> None:
    assert not LogFilter(rank=3, role="default").matches(_line(1, "[trainer23]:x"))
    assert LogFilter(rank=3, role="trainer2").matches(_line(1, "[trainer23]:x"))


@pytest.mark.parametrize(
    ("container", "role"),
    [
        ({}, "default"),
        ({"args": ["--role", "a", "train.py"]}, "a"),
        ({"args": ["--max-restarts", "3", "--role=a", "train.py"]}, "a"),
        ({"args": ["train.py", "--role", "teacher"]}, "default"),
        ({"env": [{"name": "PET_ROLE", "value": "b"}]}, "b"),
        ({"args": ["--role=a"], "env": [{"name": "ELASTIC_ROLE", "value": "b"}]}, "a"),
    ],
)
def test_the_role_is_what_the_pods_were_told(container: dict[str, Any], role: str) -> None:
    template = {"spec": {"containers": [{"name": "elasticjob-worker", **container}]}}
    assert role_of({"spec": {"replicaSpecs": {"Worker": {"template": template}}}}) == role


def test_what_a_new_stream_repeats_is_not_shown_again() -> None:
    stream = _PodStream({})
    assert stream.since() is None
    first = [_line(1, "a"), _line(2, "b"), _line(2, "c")]
    assert list(stream.new(first)) == first
    # The second stream begins in the middle, and has more of the last moment; the third goes on.
    second = [_line(2, "b"), _line(2, "c"), _line(2, "d")]
    assert [line.text for line in stream.new(second)] == [b"d"]
    assert [line.text for line in stream.new([*second, _line(3, "e")])] == [b"e"]
    assert list(stream.new([_line(2, "d"), _line(3, "e")])) == []
    assert [line.text for line in stream.new([_line(3, "e"), _line(4, "f")])] == [b"f"]
    assert list(stream.new([_line(86_400 * 10**9 + 5)]))
    assert stream.since() == "1970-01-02T00:00:00Z"
