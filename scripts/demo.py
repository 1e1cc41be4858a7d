"""The quickstart's story: three nodes train on handwritten digits while things go wrong.

First from checkpoints, by restarts; then in place. Nothing of it depends on how fast
the machine is: the job trains for as long as the story goes on, and is then told how far to go.

Everything that is printed comes from the job itself (of the epochs, every fifth), except for the
lines that begin with ``▸``: they say what is done to it.
"""

from __future__ import annotations

import queue
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
ELASTIC_RUN = str(ROOT / ".venv/bin/elastic-run")
PATIENCE = 600.0
# Training ends when the story does; it needs so many epochs at least to be good.
FOR_EVER = 1_000_000
ENOUGH = 40


class Job:
    """The processes that the demo has started, and what they print."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[str]] = []
        self.lines: list[str] = []
        self._news: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def start(self, command: list[str]) -> subprocess.Popen[str]:
        """Starts a command; its output is shown as it comes."""
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
        )
        self.processes.append(process)
        threading.Thread(target=self._read, args=(process,), daemon=True).start()
        return process

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._news.put(line.rstrip("\n"))
        self._news.put(None)

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Waits for a line that matches; shows all lines on the way."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                line = self._news.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise SystemExit(f"▸ no line like {pattern!r} within {PATIENCE:.0f} s") from None
            if line is None:
                if all(process.poll() is not None for process in self.processes):
                    raise SystemExit(f"▸ the job ended before a line like {pattern!r} came")
                continue
            self.lines.append(line)
            epoch = re.search(r"epoch (\d+): ", line)
            if not epoch or int(epoch.group(1)) % 5 == 0:
                print(f"  {line}", flush=True)
            found = re.search(pattern, line)
            if found:
                return found

    def end(self) -> None:
        """Ends what is left."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def say(text: str) -> None:
    """Says what is done to the job."""
    print(f"▸ {text}", flush=True)


def agent_of(launcher: subprocess.Popen[str], node: str) -> psutil.Process:
    """The agent process of one of the launcher's local nodes."""
    for process in psutil.Process(launcher.pid).children(recursive=True):
        words = process.cmdline()
        if "--node-name" in words and words[words.index("--node-name") + 1] == node:
            return process
    raise SystemExit(f"▸ there is no agent of {node}")


def workers_of(agent: psutil.Process) -> list[psutil.Process]:
    """A node's workers: the children of its fork server."""
    return [worker for server in agent.children() for worker in server.children()]


def elastic_run(*arguments: str) -> list[str]:
    """The command that starts three nodes on this machine; a fourth may join."""
    nodes = "--min 1 --max 4 --local-nodes 3 --log-format console"
    digits = f"elastic_runtime/examples/digits.py --epochs {FOR_EVER} --step-ms 20"
    return [ELASTIC_RUN, *nodes.split(), *digits.split(), *arguments]


def finish(epochs: int, directory: str) -> list[str]:
    """The command that trains on from what is saved, on one node, to the end of so many epochs."""
    digits = f"elastic_runtime/examples/digits.py --epochs {epochs} --in-place --dir {directory}"
    return [ELASTIC_RUN, "--log-format", "console", *digits.split()]


def stop(job: Job) -> None:
    """Asks all that the job consists of to leave."""
    for process in job.processes:
        if process.poll() is None:
            process.terminate()
    for process in job.processes:
        process.wait(timeout=PATIENCE)


def leave_in_turn(job: Job, launcher: subprocess.Popen[str]) -> None:
    """Asks node after node to leave, each when those before it have left and the rest trains on."""
    late, first, last = job.processes[-1], agent_of(launcher, "node0"), launcher
    late.terminate()
    late.wait(timeout=PATIENCE)
    job.wait_for(r"from step \d+ on: 2 workers")
    first.terminate()
    job.wait_for(r"from step \d+ on: 1 worker")
    last.terminate()
    last.wait(timeout=PATIENCE)


def kill_worker(job: Job, launcher: subprocess.Popen[str]) -> None:
    """Kills one worker, and waits until the whole world trains again."""
    worker = workers_of(agent_of(launcher, "node1"))[0]
    say(f"kill -9 {worker.pid}: the worker of node1")
    worker.kill()
    job.wait_for(r"round \d+: 3 workers")
    job.wait_for(r"epoch \d+:")


def restart(job: Job, directory: str) -> None:
    """The first act: in the restart form a fault costs all workers a restart."""
    say("three nodes train, and restart from checkpoints; this takes a minute or two")
    launcher = job.start(elastic_run("--dir", directory))
    job.wait_for(r"round \d+: 3 workers")
    job.wait_for(r"epoch \d+:")
    kill_worker(job, launcher)
    say("SIGTERM: the whole job saves the step that it is at, and stops")
    stop(job)


def in_place(job: Job, directory: str) -> tuple[float, int]:
    """The second act: survivors keep their process, their memory and their step.

    Returns:
        The accuracy at the end and the exit code.
    """
    say("the same once more, in place: it goes on from there; a fourth node may join")
    launcher = job.start(elastic_run("--dir", directory, "--in-place"))
    job.wait_for(r"another node joins with")
    join = shlex.split(job.wait_for(r"--rdzv-endpoint").string)
    job.wait_for(r"round \d+: 3 workers")
    job.wait_for(r"epoch \d+:")
    kill_worker(job, launcher)

    agent = agent_of(launcher, "node2")
    tree = [agent, *agent.children(recursive=True)]
    say(f"kill -9 {' '.join(str(process.pid) for process in tree)}: all of node2")
    for process in tree:
        process.kill()
    job.wait_for(r"from step \d+ on: 2 workers")
    job.wait_for(r"epoch \d+:")

    say("another node joins, with the command that was printed above")
    flags = join.index("--min")
    job.start([*join[:flags], "--node-name", "late", *join[flags:]])
    job.wait_for(r"round \d+: 3 workers on 3 nodes")
    epoch = int(job.wait_for(r"epoch (\d+):").group(1))

    say("SIGTERM to one node after the other, and the last one saves; one goes on from there")
    leave_in_turn(job, launcher)
    last = job.start(finish(max(ENOUGH, epoch + 2), directory))
    accuracy = float(job.wait_for(r"test accuracy (\d\.\d+)").group(1))
    return accuracy, last.wait(timeout=PATIENCE)


def went_back(lines: list[str]) -> list[str]:
    """The lines that say that training goes on from a step before one that was done already."""
    highest, found = 0, []
    for line in lines:
        if done := re.search(r"epoch \d+: step (\d+)", line):
            highest = max(highest, int(done.group(1)))
        if (onward := re.search(r"from step (\d+) on", line)) and int(onward.group(1)) < highest:
            found.append(line)
    return found


def summary(lines: list[str], accuracy: float, code: int) -> None:
    """What happened in place, and whether it was what was promised."""
    print("\nwhat happened in place:")
    for line in lines:
        if re.search(r"^round \d+:|from step \d+ on", line):
            print(f"  {line}")
    back = went_back(lines)
    print(f"\nsteps were {'lost' if back else 'not lost'}, ", end="")
    print(f"test accuracy {accuracy:.3f}, exit code {code}")
    if code != 0 or accuracy < 0.97 or back:
        raise SystemExit("▸ that is not what should have happened")


def play(job: Job, directory: str) -> None:
    """Both acts."""
    restart(job, directory)
    first_act = len(job.lines)
    accuracy, code = in_place(job, directory)
    summary(job.lines[first_act:], accuracy, code)


def main() -> None:
    """Plays the story in a directory of its own, and leaves nothing behind."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    directory = tempfile.mkdtemp(prefix="elastic-quickstart-")
    job = Job()
    try:
        play(job, directory)
    finally:
        job.end()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
