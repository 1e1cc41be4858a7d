"""Jobs on the machines of a list, which real ssh reaches."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.errors import EXIT_LEFT
from tests import processes, zygote
from tests.integration.in_place.job import ELASTIC_RUN, Job

if TYPE_CHECKING:
    from pathlib import Path

    from tests.ssh_machines import SshMachines


class HostsJob(Job):
    """A job in place on machines that are listed in a file."""

    def __init__(self, machines: SshMachines, folder: Path, *hosts: str, program: str = "") -> None:
        self.folder, self.listing = folder, folder / "hosts.txt"
        self.list(*hosts)
        where = ("--discover", program) if program else ("--hosts", str(self.listing))
        options = (*where, "--ssh", machines.ssh, "--min", "1", "--log-format", "json")
        super().__init__(folder, "steps.py", *options, seconds=0.1)

    def list(self, *hosts: str) -> None:
        """Writes the list, as an editor does."""
        new = self.folder / "new"
        new.write_text("".join(f"{host}\n" for host in hosts))
        new.rename(self.listing)

    def wait_for_word(self, text: str) -> None:
        """Waits until it has said something."""
        self.wait(lambda: text in self.log, repr(text))


def test_hosts_come_and_go(machines: SshMachines, tmp_path: Path) -> None:
    with HostsJob(machines, tmp_path, "n0", "n1") as job:
        both = job.ranks(2)
        assert {note.node for note in both.values()} == {"n0", "n1"}
        # More than there ever were: the bound grows with the list.
        job.list("n0", "n1", "n2")
        three = job.ranks(3, after=both[0].round)
        job.list("n0", "n2")
        two = job.ranks(2, after=three[0].round)
        assert {note.node for note in two.values()} == {"n0", "n2"}
        job.wait_for_word("n1 has left")
        # Nobody was restarted for it, and no step was lost.
        stayed = {note.pid for note in both.values()} & {note.pid for note in two.values()}
        assert len(stayed) == 1
        assert job.events("round.sealed")[-1]["restarts"]["lost"] == 0
        job.finish()


@pytest.mark.golden("--hosts: a machine dies and comes back")
def test_a_machine_that_dies_is_taken_up_when_it_is_back(
    machines: SshMachines, tmp_path: Path
) -> None:
    with HostsJob(machines, tmp_path, "n0", "n1") as job:
        both = job.ranks(2)
        machines.kill("n1")
        one = job.ranks(1, after=both[0].round)
        assert one[0].node == "n0"
        job.wait_for_word("n1: ssh cannot reach it")
        machines.start("n1")
        job.ranks(2, after=one[0].round)
        job.finish()


def test_who_was_stopped_for_a_while_learns_how_the_job_has_ended(
    machines: SshMachines, tmp_path: Path
) -> None:
    """The nodes have moved the store to one of them by then, with which it ends."""
    with HostsJob(machines, tmp_path, "n0", "n1") as job:
        job.ranks(2)
        job.process.send_signal(signal.SIGSTOP)
        enough = job.step + 120  # of 0.1 s
        job.wait(lambda: job.step >= enough, "steps without it")
        job.process.send_signal(signal.SIGCONT)
        job.event("store.forgot")
        job.finish()


def test_a_program_that_hangs_ends_with_the_process_that_asks_it(tmp_path: Path) -> None:
    program = tmp_path / "discover.sh"
    program.write_text(f"#!/bin/sh\nsleep 1000 & touch {tmp_path}/asked; wait\n")
    program.chmod(0o755)
    mark = f"hosts-{tmp_path.name}"
    process = zygote.start(
        [*ELASTIC_RUN, "--discover", str(program), "train.py"],
        env={**os.environ, processes.MARKER: mark},
    )
    try:
        processes.wait_for((tmp_path / "asked").exists, 60, "the program")
        process.terminate()
        assert process.wait(60) == EXIT_LEFT
        processes.wait_for(lambda: not processes.marked(mark), 60, "the end of all")
    finally:
        processes.end(mark)
        process.wait()


def test_nothing_outlives_the_process_that_has_started_it(
    machines: SshMachines, tmp_path: Path
) -> None:
    with HostsJob(machines, tmp_path, "n0", "n1") as job:
        job.ranks(2)
        job.process.kill()
        processes.wait_for(lambda: not processes.marked(job.mark), 60, "the end of all", job.story)


def test_a_program_says_which_hosts_there_are_and_a_signal_has_all_save_and_leave(
    machines: SshMachines, tmp_path: Path
) -> None:
    program = tmp_path / "discover.sh"
    program.write_text(f"#!/bin/sh\ncat {tmp_path}/hosts.txt\n")
    program.chmod(0o755)
    with HostsJob(machines, tmp_path, "n0:2", "n1 slots=1", program=str(program)) as job:
        three = job.ranks(3)
        assert sorted(note.node for note in three.values()) == ["n0", "n0", "n1"]
        os.kill(job.process.pid, signal.SIGTERM)
        assert job.end() == EXIT_LEFT
        left = {event["node"] for event in job.events("node.leaving")}
        assert left == {"n0", "n1"}, job.story()
