#!/usr/bin/env python3
"""How long N rendezvous handlers need to form one round: torch's backends beside ours.

The handlers live in threads of a few processes, and are made by torch's own registry. Time counts
from before the first of them is constructed until ``next_rendezvous`` has returned to the last one;
torch is imported before. How much of it went by until the last one was constructed is told as well,
and the CPU time of the handlers' processes, which says more than a clock on a machine that others
use, too. A round that has not formed at the deadline is a result, not an error.

    scripts/bench/rendezvous.py --nodes 50 200 400 --repeat 3 --json /tmp/rendezvous.json

Each TCPStore connection asks for its peer's name; where a resolver is slow, or drops some of so
many queries at once, that is all that would be measured. So, as root, all runs see an /etc/hosts
that knows 127.0.0.1 in its IPv6 form; without root, or with ``--ask-resolver``, a lookup may take
1 s. The report says which it was.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.etcd_server import EtcdProcess, free_port

if TYPE_CHECKING:
    from collections.abc import Sequence

CONTENDERS = ("c10d", "etcd-v2", "elastic-c10d", "etcd-v3")
_OVER_ETCD = ("etcd-v2", "etcd-v3")
_TORCH = "torch.distributed.elastic.rendezvous"
_OURS = "elastic_runtime.rendezvous"
_IMPORTED = {
    "c10d": (f"{_TORCH}.c10d_rendezvous_backend",),
    "etcd-v2": (f"{_TORCH}.etcd_rendezvous_backend",),
    "elastic-c10d": (
        f"{_OURS}.torchrun.torch_handler",
        f"{_OURS}.stores.embedded.embedded_adapter",
    ),
    "etcd-v3": (f"{_OURS}.torchrun.torch_handler", f"{_OURS}.stores.etcd.etcd_adapter"),
}
_IN_NAMESPACE = "ELASTIC_BENCH_HOSTS"
_READY = 60.0


@dataclass(frozen=True)
class Result:
    """One round, or the attempt.

    Attributes:
        contender: the backend's name, as torchrun knows it.
        nodes: how many handlers.
        seconds: until the last one was in the round; None: not within the deadline.
        why: what went wrong, if anything did.
        built: seconds until the last one was constructed.
        cpu: seconds of CPU time in the handlers' processes.
    """

    contender: str
    nodes: int
    seconds: float | None
    why: str = ""
    built: float = 0.0
    cpu: float = 0.0


# ---------------------------------------------------------------- one process of handlers


def form(backend: str, endpoint: str, run_id: str, count: int, total: int) -> None:
    """Waits for a word on stdin, makes ``count`` handlers, and prints when they were in."""
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)  # one process stands for a hundred
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    for module in _IMPORTED[backend]:  # imports are not what is measured
        importlib.import_module(module)
    ranks: list[int] = []
    built: list[float] = []
    ends: list[float] = []
    errors: list[str] = []
    kept: list[Any] = []

    def enter() -> None:
        try:
            params = RendezvousParameters(backend, endpoint, run_id, total, total, "127.0.0.1")
            handler = get_rendezvous_handler(params)
            built.append(time.monotonic())
            info = handler.next_rendezvous()
            ends.append(time.monotonic())
            assert info.world_size == total, f"a world of {info.world_size}"
            ranks.append(info.rank)
            kept.append((handler, info))
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}"[:300])

    threads = [threading.Thread(target=enter, daemon=True) for _ in range(count)]
    print("ready", flush=True)
    sys.stdin.readline()
    begun, cpu = time.monotonic(), time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answer = {
        "begun": begun,
        "built": max(built, default=0.0),
        "ended": max(ends, default=0.0),
        "cpu": time.process_time() - cpu,
        "ranks": ranks,
        "errors": errors,
    }
    print(json.dumps(answer), flush=True)
    sys.stdin.readline()  # a host of a store must not leave before the others are through
    os._exit(0)


# ---------------------------------------------------------------- the parent


def attempt(contender: str, endpoint: str, nodes: int, processes: int, deadline: float) -> Result:
    """Lets one round form."""
    run_id = uuid.uuid4().hex
    shares = [nodes // processes + (i < nodes % processes) for i in range(processes)]
    with ExitStack() as stack:
        workers = []
        for share in shares:
            arguments = [contender, endpoint, run_id, str(share), str(nodes)]
            workers.append(stack.enter_context(_Worker(arguments)))
        for worker in workers:
            if worker.line(_READY) != "ready":
                return Result(contender, nodes, None, "a process did not start")
        for worker in workers:
            worker.go()
        limit = time.monotonic() + deadline
        lines = [worker.line(limit - time.monotonic()) for worker in workers]
    if not all(lines):
        return Result(contender, nodes, None, f"not formed in {deadline:g} s")
    answers = [json.loads(line) for line in lines]
    errors = [error for answer in answers for error in answer["errors"]]
    if errors:
        return Result(contender, nodes, None, f"{len(errors)} failed: {errors[0]}")
    ranks = sorted(rank for answer in answers for rank in answer["ranks"])
    if ranks != list(range(nodes)):
        return Result(contender, nodes, None, "the ranks are not those of one round")
    begun = min(answer["begun"] for answer in answers)
    return Result(
        contender,
        nodes,
        max(answer["ended"] for answer in answers) - begun,
        built=max(answer["built"] for answer in answers) - begun,
        cpu=sum(answer["cpu"] for answer in answers),
    )


class _Worker:
    """One process of handlers; killed at the end of the block."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._arguments = arguments

    def __enter__(self) -> _Worker:
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--form", *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=sys.path[0],
            text=True,
        )
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()

    def line(self, patience: float) -> str:
        """The next line it prints; "" if there is none in time."""
        assert self._process.stdout is not None
        timer = threading.Timer(max(0.0, patience), self._process.kill)
        timer.start()
        try:
            return self._process.stdout.readline().strip()
        finally:
            timer.cancel()

    def go(self) -> None:
        """Says the word."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()


def table(results: Sequence[Result]) -> str:
    """The medians, as text."""
    sizes = sorted({result.nodes for result in results})
    names = [name for name in CONTENDERS if any(r.contender == name for r in results)]
    lines = [f"{'seconds, median':16}" + "".join(f"{size:>14}" for size in sizes)]
    for name in names:
        cells = []
        for size in sizes:
            tries = [r for r in results if (r.contender, r.nodes) == (name, size)]
            good = [r.seconds for r in tries if r.seconds is not None]
            cell = f"{statistics.median(good):.2f}" if good else "–"
            missed = len(tries) - len(good)
            cells.append(f"{cell} ({missed} not)" if missed and good else cell)
        lines.append(f"{name:16}" + "".join(f"{cell:>14}" for cell in cells))
    return "\n".join(lines) + "\n– : not formed within the deadline"


def main() -> int:
    """Runs the benchmark."""
    if sys.argv[1:2] == ["--form"]:
        backend, endpoint, run_id, count, total = sys.argv[2:]
        form(backend, endpoint, run_id, int(count), int(total))
    args = _arguments()
    lookups = _settle_lookups(args.ask_resolver)
    results: list[Result] = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with ExitStack() as stack:
        etcd = EtcdProcess("--enable-v2") if set(args.contenders) & set(_OVER_ETCD) else None
        if etcd is not None:
            stack.callback(etcd.close)
        for nodes in args.nodes:
            for _ in range(args.repeat):
                for contender in args.contenders:
                    local = f"127.0.0.1:{free_port()}"
                    endpoint = etcd.endpoint if etcd and contender in _OVER_ETCD else local
                    result = attempt(contender, endpoint, nodes, args.processes, args.deadline)
                    results.append(result)
                    told = result.why
                    if result.seconds is not None:
                        told = f"{result.seconds:.2f} s, built in {result.built:.2f} s"
                        told += f", CPU {result.cpu:.2f} s"
                    print(f"{contender:14} {nodes:5} nodes  {told}", flush=True)
    print(table(results))
    if args.json:
        report = {
            "machine": {"cores": os.cpu_count(), "system": platform.platform()},
            "processes": args.processes,
            "deadline": args.deadline,
            "lookups": lookups,
            "results": [asdict(result) for result in results],
        }
        Path(args.json).write_text(json.dumps(report, indent=1) + "\n")
    return 0


def _settle_lookups(ask: bool) -> str:
    """Keeps look-ups of our own name out of the figures, unless they are wanted; says how."""
    if file := os.environ.get(_IN_NAMESPACE):
        Path(file).unlink(missing_ok=True)  # the mount keeps it
        return "/etc/hosts knows ::ffff:127.0.0.1"
    with tempfile.NamedTemporaryFile("w", suffix="-hosts", delete=False) as hosts:
        hosts.write("127.0.0.1 localhost\n::ffff:127.0.0.1 localhost\n")
    os.chmod(hosts.name, 0o644)
    # In a mount namespace of our own, so that nobody else sees it.
    enter = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"']
    probe = subprocess.run([*enter, hosts.name, "true"], capture_output=True, check=False)
    if probe.returncode == 0 and not ask:
        os.environ[_IN_NAMESPACE] = hosts.name
        command = [*enter, hosts.name, sys.executable, *sys.argv]
        os.execvp(command[0], command)
    os.unlink(hosts.name)
    os.environ["RES_OPTIONS"] = "timeout:1 attempts:1"
    return "a look-up may take 1 s"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[200, 400])
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--deadline", type=float, default=60.0, help="seconds for one round")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--ask-resolver", action="store_true", help="measure look-ups as well")
    parser.add_argument("--json", help="where the figures are written")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
