"""What answers at the addresses of worker pods that run: an agent, as the controller asks it."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from elastic_runtime.system.listening import stop_listening
from tests.kube.kinds import POD

if TYPE_CHECKING:
    from tests.kube.store import Change, Object, Store

_PORT = 9404
_WORKERS = "app.kubernetes.io/component=worker"


class Agents:
    """The agents of all workers: a job's are always in a round, with all that run.

    Attributes:
        answer: whether they answer at all; for pods that begin to run from now on.
        say: what they say otherwise than that, by job; fields are merged into the answer.
        asked: how often they have answered, by job.
        count_rounds: a round is one more whenever other pods run than before; else it is always 1.
    """

    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        self.answer = True
        self.say: dict[str, Any] = {}
        self.asked: Counter[str] = Counter()
        self.count_rounds = False
        self._rounds: dict[str, tuple[int, list[str]]] = {}
        self._store, self._loop = store, loop
        self._servers: dict[str, asyncio.Server] = {}
        self._turn = asyncio.Lock()  # a pod may change again while its server starts
        self._closed = False
        store.listeners.append(self._on_change)

    async def close(self) -> None:
        """Nobody answers any more."""
        async with self._turn:
            self._closed = True
            for server in self._servers.values():
                await stop_listening(server)

    def _on_change(self, change: Change) -> None:
        pod = change.item
        if change.kind != POD or pod["metadata"].get("labels", {}).get("replica-type") != "worker":
            return
        address = pod["status"].get("podIP")
        runs = change.type != "DELETED" and pod["status"]["phase"] == "Running"
        if str(address).startswith("127.") and not self._loop.is_closed():
            work = self._open(address, pod) if runs and self.answer else self._shut(address)
            asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _open(self, address: str, pod: Object) -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await reader.readuntil(b"\r\n\r\n")
                body = json.dumps(self._report(pod)).encode()
                head = (
                    f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                )
                writer.write(head.encode() + body)
                await writer.drain()
            except (asyncio.IncompleteReadError, ConnectionError):
                pass
            finally:
                writer.close()

        async with self._turn:
            if address not in self._servers and not self._closed:
                self._servers[address] = await asyncio.start_server(answer, address, _PORT)

    async def _shut(self, address: str) -> None:
        async with self._turn:
            if server := self._servers.pop(address, None):
                await stop_listening(server)

    def _report(self, pod: Object) -> Any:
        job = pod["metadata"]["labels"]["job-name"]
        environment = pod["spec"]["containers"][0].get("env") or ()
        ids = [one.get("value") for one in environment if one["name"] == "PET_RDZV_ID"]
        workers = self._store.list(POD, pod["metadata"]["namespace"], f"job-name={job},{_WORKERS}")
        running = [one for one in workers if one["status"]["phase"] == "Running"]
        said = {
            "run_id": ids[0] if ids else "",
            "node": pod["metadata"]["name"],
            "round": self._round(job, running),
            "world": len(running),
            "nodes": len(running),
            "step": -1,
            "checkpoint_step": -1,
            "ready": True,
            "restarts": {},
        }
        self.asked[job] += 1
        other = self.say.get(job, {})
        return {**said, **other} if isinstance(other, dict) else other

    def _round(self, job: str, running: list[Object]) -> int:
        uids = sorted(pod["metadata"]["uid"] for pod in running)
        number, before = self._rounds.get(job, (1, uids))
        if self.count_rounds and uids != before:
            number += 1
        self._rounds[job] = number, uids
        return number
