"""What is asked of Slurm, through its own commands.

Only what its environment does not say: a command needs the controller to answer, which it may not.
"""

from __future__ import annotations

import re
import socket
import subprocess

from elastic_runtime.errors import EXIT_STORE_UNREACHABLE, ElasticError

# Seconds; Slurm's own commands give up after some.
_LONGEST_CALL = 30.0


class SlurmRefused(ElasticError):
    """Slurm does not answer, or says no."""

    exit_code = EXIT_STORE_UNREACHABLE


class SlurmSilent(SlurmRefused):
    """Slurm does not answer: it may do so later."""


# What its commands say then.
_SILENT = re.compile(r"timed? ?out|unable to contact|connection refused|zero bytes", re.IGNORECASE)


def call_slurm(*command: str, stdin: str = "") -> str:
    """What a command of Slurm's prints.

    Args:
        *command: its words.
        stdin: what it reads.

    Raises:
        SlurmRefused: there is no such command, or it fails.
        SlurmSilent: it does not answer.
    """
    try:
        done = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LONGEST_CALL,
            check=False,
        )
    except OSError as error:
        raise SlurmRefused(f"{command[0]} cannot be run: {error.strerror or error}") from None
    except subprocess.TimeoutExpired:
        why = f"{command[0]} has not answered for {_LONGEST_CALL:g} s"
        raise SlurmSilent(why) from None
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        kind = SlurmSilent if _SILENT.search(said) else SlurmRefused
        raise kind(f"{' '.join(command)}: {said}")
    return done.stdout


def host_of(node: str) -> str:
    """Where a node is reached: its name, if that is one of a host; else what Slurm knows.

    Nodes of a cloud often have no name in DNS.
    """
    try:
        socket.getaddrinfo(node, None)
        return node
    except OSError:
        pass
    try:
        words = call_slurm("scontrol", "--oneliner", "show", "node", node).split()
    except SlurmRefused:
        return node
    known = dict(word.split("=", 1) for word in words if "=" in word)
    return known.get("NodeAddr") or node
