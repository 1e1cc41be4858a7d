"""Nodes that say where they are: who gets which rank, and who keeps whose copy, when nodes go."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_runtime.cli.ctl.elasticctl import main as elasticctl
from tests import processes, zygote
from tests.integration.lost_errors import tell

if TYPE_CHECKING:
    from typing import Self

    import pytest

    from tests.etcd_server import EtcdServer


_SCRIPT = Path(__file__).with_name("script.py")
_PATIENCE = 60.0


class _Nodes:
    """Nodes of one job, each started by itself. At the end of ``with`` nothing of them is left.

    Args:
        folder: for notes, logs and checkpoints.
        endpoint: of the etcd.
    """

    def __init__(self, folder: Path, endpoint: str) -> None:
        self._folder = folder
        self._endpoint = f"etcd://{endpoint}/{folder.name}"
        self._mark = f"topology-{uuid.uuid4().hex}"
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        (folder / "notes").touch()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, *rest: object) -> None:
        processes.end(self._mark)
        for agent in self.agents.values():
            agent.wait()
        logs = (self._log(name).read_text(errors="replace") for name in self.agents)
        tell(error, "".join(logs), self._story())

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def start(self, name: str, *options: str) -> None:
        """Starts a node."""
        job = ("--rdzv-endpoint", self._endpoint, "--run-id", "x", "--min", "3", "--max", "4")
        times = ("--last-call", "10m", "--lease-ttl", "3", "--hang-timeout", "0")
        script = (str(_SCRIPT), "in_place", str(self._folder), "100000")
        with self._log(name).open("wb") as log:
            self.agents[name] = zygote.start(
                [
                    *(sys.executable, "-m", "elastic_runtime", *job, *times),
                    *("--node-name", name, "--log-format", "json", *options, *script),
                ],
                env={**os.environ, "OMP_NUM_THREADS": "1", processes.MARKER: self._mark},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=Path(__file__).parents[3],
            )

    def kill(self, name: str) -> None:
        """SIGKILL to an agent; its workers die with it."""
        processes.send([self.agents[name].pid], signal.SIGKILL)

    def finish(self, *names: str) -> None:
        """Has these nodes end well."""
        (self._folder / "enough").touch()
        for name in names:
            assert self.agents[name].wait(_PATIENCE) == 0, self._story()

    def events(self, name: str, event: str) -> list[dict[str, Any]]:
        """The events of this kind that this node has told."""
        lines = self._log(name).read_text(errors="replace").splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
        return [one for one in found if one["event"] == event]

    def wait(self, happened: Any, what: str) -> Any:
        """Waits until something is true; else fails with the logs."""
        return processes.wait_for(happened, _PATIENCE, what, self._story)

    def ranked(self, size: int, after: int = 0) -> tuple[int, str]:
        """The first round of so many nodes after this one, and its nodes by rank."""

        def sealed() -> tuple[int, str] | None:
            rounds: dict[int, dict[int, str]] = {}
            for name in self.agents:
                for event in self.events(name, "round.sealed"):
                    rounds.setdefault(event["round"], {})[event["group_rank"]] = name
            for number, names in sorted(rounds.items()):
                if number > after and sorted(names) == list(range(size)):
                    return number, "".join(names[rank] for rank in range(size))
            return None

        result: tuple[int, str] = self.wait(sealed, f"{size} nodes after round {after}")
        return result

    def copied(self, number: int, size: int) -> dict[int, int]:
        """Whose files each rank has beside its own, after a snapshot in this round."""

        def taken() -> bool:
            events = [one for name in self.agents for one in self.events(name, "snapshot.taken")]
            return any(one["round"] == number and one["copied"] for one in events)

        def held() -> list[tuple[int, Path]]:
            lines = [line.split() for line in (self._folder / "notes").read_text().splitlines()]
            return [(int(words[2]), Path(words[5])) for words in lines if words[0] == "held"]

        self.wait(taken, f"a snapshot in round {number}")
        hold, before = self._folder / "hold", len(held())
        hold.touch()
        self.wait(lambda: len(held()) == before + size, f"{size} ranks that stand still")
        memories = dict(held()[before:])

        def found() -> dict[int, int]:  # a snapshot may be under way
            kept: dict[int, int] = {}
            for rank, memory in memories.items():
                files = {file.name for file in memory.glob("*/step-*/rank-*.distcp")}
                others = [name for name in files if name != f"rank-{rank}.distcp"]
                if len(files) == 2 and len(others) == 1:
                    kept[rank] = int(others[0].removeprefix("rank-").split(".")[0])
            return kept if len(kept) == size else {}

        result: dict[int, int] = self.wait(found, f"copies of {size} ranks in round {number}")
        hold.unlink()
        return result

    def spare(self, name: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
        """Waits until a node could be taken in at once; what ``elasticctl status`` shows of it."""
        arguments = ["--rdzv-endpoint", self._endpoint, "--run-id", "x", "--format", "json"]

        def found() -> dict[str, Any] | None:
            assert elasticctl(["status", *arguments]) == 0
            nodes = json.loads(capsys.readouterr().out)["nodes"]
            lines = [line for line in nodes if line["name"] == name]
            return lines[0] if lines and lines[0]["workers"] else None

        result: dict[str, Any] = self.wait(found, f"{name} with a worker that is ready")
        return result

    def _story(self) -> str:
        return "\n".join(
            f"{name}: {self._log(name).read_text(errors='replace')[-3000:]}" for name in self.agents
        )


def test_near_nodes_are_neighbours_and_copies_go_far_away(
    etcd: EtcdServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = tmp_path / "where"
    where.write_text("z1/r1\n")
    with _Nodes(tmp_path, etcd.endpoint) as nodes:
        nodes.start("a", "--node-topology", "z2/r1")
        nodes.start("b", "--node-topology-file", str(where))
        nodes.start("c", "--node-topology", "z2/r1")
        nodes.start("d", "--node-topology", "z1/r1")
        first, names = nodes.ranked(4)
        # Whoever has come first is first among its neighbours.
        assert set(names[:2]) == {"b", "d"}
        assert set(names[2:]) == {"a", "c"}
        zones = dict.fromkeys("bdt", 1) | dict.fromkeys("acs", 2)
        for keeper, kept in nodes.copied(first, 4).items():
            assert zones[names[keeper]] != zones[names[kept]], names

        # Two nodes wait. The one that came first is in the other zone, and does not get the place.
        nodes.start("s", "--node-topology", "z2/r1")
        assert nodes.spare("s", capsys)["role"] == "spare"
        nodes.start("t", "--node-topology", "z1/r1")
        assert nodes.spare("t", capsys)["topology"] == "z1/r1"
        lost = names[1]
        nodes.kill(lost)
        second, after = nodes.ranked(4, first)
        assert after == names.replace(lost, "") + "t"
        for keeper, kept in nodes.copied(second, 4).items():
            assert zones[after[keeper]] != zones[after[kept]], after
        nodes.finish(*after)
