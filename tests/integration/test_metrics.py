"""Real jobs that are hurt, and what their agents say of it over HTTP."""

from __future__ import annotations

import json
import signal
import socket
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

from prometheus_client.parser import text_string_to_metric_families

from tests import processes
from tests.integration.in_place.job import Job
from tests.integration.snapshots.job import Job as SnapshotJob

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


_PATIENCE = 60.0
_LOCAL = "127.0.0.1"


class Agent:
    """What an agent says at its port."""

    def __init__(self, port: int) -> None:
        self.port = port

    def get(self, path: str) -> tuple[int, str]:
        """The status and the text for a path; 0: nothing answers."""
        try:
            with urllib.request.urlopen(f"http://{_LOCAL}:{self.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    @property
    def status(self) -> dict[str, Any]:
        """What the controller asks for."""
        code, text = self.get("/status")
        return json.loads(text) if code == 200 else {}

    def metrics(self) -> dict[str, float]:
        """All metrics: ``name{label="value",…}``, labels in order, to values."""
        code, text = self.get("/metrics")
        assert code == 200, text
        found = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = ",".join(
                    f'{name}="{sample.labels[name]}"' for name in sorted(sample.labels)
                )
                found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
        return found

    def recoveries(self, phase: str, why: str) -> float:
        """How often a phase of a recovery was measured."""
        labels = f'{{class="{why}",phase="{phase}"}}'
        return self.metrics().get(f"elastic_recovery_seconds_count{labels}", 0.0)


def ports(count: int) -> int:
    """The first of some ports that are free, one after the other."""
    for _ in range(100):
        with socket.create_server((_LOCAL, 0)) as line:
            first: int = line.getsockname()[1]
        try:
            for port in range(first, first + count):
                socket.create_server((_LOCAL, port)).close()
        except (OSError, OverflowError):
            continue
        return first
    raise AssertionError("no ports are free")


def wait(job: Job | SnapshotJob, happened: Callable[[], Any], what: str) -> Any:
    return processes.wait_for(happened, _PATIENCE, what, job.story, pause=0.05)


def test_a_worker_is_killed_in_place(tmp_path: Path) -> None:
    agent = Agent(ports(1))
    options = ("--nproc-per-node", "2", "--run-id", "watched", "--metrics-port", str(agent.port))
    with Job(tmp_path, "steps.py", *options, kind="saved") as job:
        before = job.ranks(2)[0]
        wait(job, lambda: agent.status.get("step", -1) >= before.step, "the step")
        assert agent.get("/healthz")[0] == agent.get("/readyz")[0] == 200
        status = agent.status
        assert status["restarts"] == {"failed": 0, "killed": 0, "lost": 0, "planned": 0}
        assert (status["run_id"], status["world"], status["ready"]) == ("watched", 2, True)
        wait(job, lambda: agent.status["step"] > status["step"], "a further step")
        wait(job, lambda: agent.status["checkpoint_step"] >= 10, "a checkpoint")

        job.kill(job.ranks(2)[1])
        # One rank goes on alone, and its replacement joins; or it is there in time.
        number = job.ranks(2, after=before.round)[0].round
        planned = number - before.round - 1
        wait(job, lambda: agent.recoveries("first_step", "killed"), "the recovery")
        wait(job, lambda: agent.recoveries("first_step", "planned") == planned, "the joining")
        for phase in ("detect", "rendezvous", "start", "restore", "first_step"):
            assert agent.recoveries(phase, "killed") == 1, phase
        metrics = agent.metrics()
        assert metrics['elastic_restarts_total{class="killed"}'] == 1
        assert metrics['elastic_restarts_total{class="failed"}'] == 0
        assert (metrics["elastic_world_size"], metrics["elastic_nodes"]) == (2, 1)
        assert metrics["elastic_round"] == number
        assert metrics["elastic_lost_steps_total"] == 0
        assert 0 < metrics["elastic_goodput_ratio"] < 1
        assert metrics["elastic_checkpoint_save_seconds_count"] >= 1
        assert metrics["elastic_checkpoint_size_bytes"] > 0
        job.finish()
    # The size of a checkpoint is that of all ranks' files.
    kept = {one.parent for one in tmp_path.glob("saved/**/*.distcp")}
    sizes = {sum(one.stat().st_size for one in where.glob("*.distcp")) for where in kept}
    assert job.events("checkpoint.saved")[-1]["bytes"] in sizes
    assert agent.get("/healthz") == (0, "")
    # What only the measurements need is in no log.
    assert not job.events("agent.turned")
    assert not job.events("round.trouble")


def test_steps_are_lost_where_the_workers_start_anew(tmp_path: Path) -> None:
    agent = Agent(ports(1))
    with SnapshotJob(tmp_path, "ddp", 1, "--metrics-port", str(agent.port), every=5) as job:
        job.go()
        job.event("checkpoint.saved", 2)
        held = job.hold(1)
        wait(job, lambda: agent.status["step"] == held[0].step, "the step")
        assert agent.metrics()["elastic_snapshot_size_bytes"] > 0
        job.kill(held)
        job.go()
        event = job.event("round.recovered")
        wait(job, lambda: agent.recoveries("first_step", "killed"), "the recovery")
        metrics = agent.metrics()
        # A snapshot is taken all four steps, and what was made since the last one is made again.
        assert metrics["elastic_lost_steps_total"] == held[0].step - event["step"] + 1
        assert agent.recoveries("restore", "killed") == agent.recoveries("start", "killed") == 1
        job.finish()


def test_each_local_node_has_its_own_port_and_a_node_that_is_lost_is_counted(
    tmp_path: Path,
) -> None:
    first = ports(2)
    agents = Agent(first), Agent(first + 1)
    options = ("--local-nodes", "2", "--min", "1", "--metrics-port", str(first))
    with Job(tmp_path, "steps.py", *options, kind="saved") as job:
        job.ranks(2)
        names = [agent.status["node"] for agent in agents]
        assert names == ["node0", "node1"]
        assert [agent.status["world"] for agent in agents] == [2, 2]
        # Whoever is asked knows of the last checkpoint.
        for agent in agents:
            wait(job, lambda agent=agent: agent.status["checkpoint_step"] >= 10, "a checkpoint")
        processes.send([job.nodes()["node1"]], signal.SIGKILL)
        job.ranks(1, after=1)
        wait(job, lambda: agents[0].recoveries("first_step", "lost"), "the recovery")
        metrics = agents[0].metrics()
        assert metrics['elastic_restarts_total{class="lost"}'] == 1
        assert (metrics["elastic_world_size"], metrics["elastic_nodes"]) == (1, 1)
        assert agents[1].get("/status") == (0, "")
        job.finish()
        assert not job.events("checkpoint.committed")


def test_a_port_that_is_taken_ends_nothing(tmp_path: Path) -> None:
    first = ports(2)
    with socket.create_server((_LOCAL, first + 1)):
        options = ("--local-nodes", "2", "--min", "2", "--metrics-port", str(first))
        with Job(tmp_path, "steps.py", *options) as job:
            event = job.event("metrics.off", node="node1")
            assert event["where"] == f"{_LOCAL}:{first + 1}"
            assert event["level"] == "warning"
            job.ranks(2)
            assert Agent(first).status["world"] == 2
            job.finish()


def test_a_script_that_fails_is_counted_and_reports_no_steps(tmp_path: Path) -> None:
    """A plain script, without this library: restarts and rounds are known of any job."""
    agent = Agent(ports(1))
    script = tmp_path / "plain.py"
    script.write_text(
        "import os, sys, time\n"
        "first = os.environ['ELASTIC_ROUND'] == '1'\n"
        "while not os.path.exists('fail' if first else 'enough'): time.sleep(0.02)\n"
        "sys.exit(3 if first else 0)\n"
    )
    options = ("--metrics-port", str(agent.port), "--cold")
    with Job(tmp_path, str(script), *options) as job:
        wait(job, lambda: agent.get("/readyz")[0] == 200, "the first round")
        assert agent.status["step"] == -1
        (tmp_path / "fail").touch()
        wait(job, lambda: agent.status.get("round") == 2, "the second round")
        metrics = agent.metrics()
        assert metrics['elastic_restarts_total{class="failed"}'] == 1
        assert "elastic_step" not in metrics
        assert "elastic_goodput_ratio" not in metrics
        job.enough()
        assert job.end() == 0
