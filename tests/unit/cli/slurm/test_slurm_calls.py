"""What is asked of Slurm, and what people read when it does not answer."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from elastic_runtime.cli.slurm import slurm_calls
from elastic_runtime.cli.slurm.slurm_calls import SlurmRefused, call_slurm, host_of

if TYPE_CHECKING:
    from tests.unit.cli.stand_ins import StandIns


def test_a_command_that_is_not_there() -> None:
    with pytest.raises(SlurmRefused, match="no-scontrol cannot be run: No such file"):
        call_slurm("no-scontrol", "show")


def test_the_last_line_of_a_refusal_is_the_reason(stand_ins: StandIns) -> None:
    stand_ins.put("scontrol", "echo a warning >&2; echo 'Access/permission denied' >&2; exit 1")
    with pytest.raises(SlurmRefused) as caught:
        call_slurm("scontrol", "requeue", "17")
    assert str(caught.value) == "scontrol requeue 17: Access/permission denied"


def test_a_refusal_without_a_word(stand_ins: StandIns) -> None:
    stand_ins.put("sbatch", "exit 3")
    with pytest.raises(SlurmRefused, match="sbatch: exit code 3"):
        call_slurm("sbatch", stdin="#!/bin/sh\n")


def test_a_controller_that_does_not_answer(
    stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_calls, "_LONGEST_CALL", 0.1)
    stand_ins.put("squeue", "exec sleep 60")
    with pytest.raises(SlurmRefused, match="squeue has not answered"):
        call_slurm("squeue")


def test_a_node_without_a_name_in_dns_is_where_slurm_says(
    stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: object) -> None:
        raise socket.gaierror

    stand_ins.put("scontrol", "echo 'NodeName=n0 Arch=x86_64 NodeAddr=10.0.0.7 OS=Linux 6 x'")
    assert host_of("localhost") == "localhost"
    assert not stand_ins.calls()
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert host_of("n0") == "10.0.0.7"
    stand_ins.put("scontrol", "exit 1")
    assert host_of("n0") == "n0"
