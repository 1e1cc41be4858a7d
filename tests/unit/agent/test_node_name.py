"""Nodes that were given no name, on one host."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import ExitStack

from elastic_runtime.agent.node_name import own_name

HOST = socket.gethostname()


def test_one_node_has_the_name_of_its_host() -> None:
    with own_name("naming-one") as name:
        assert name == HOST


def test_several_nodes_of_a_run_are_told_apart() -> None:
    with ExitStack() as stack:
        names = [stack.enter_context(own_name("naming-several")) for _ in range(3)]
        other = stack.enter_context(own_name("naming-another"))
        assert names == [HOST, f"{HOST}#2", f"{HOST}#3"]
        assert other == HOST


def test_a_name_is_free_again_when_its_node_has_been_killed() -> None:
    program = """
import sys
from elastic_runtime.agent.node_name import own_name
with own_name("naming-killed") as name:
    print(name, flush=True)
    sys.stdin.read()
"""
    node = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert node.stdout is not None
    assert node.stdout.readline().strip() == HOST
    with own_name("naming-killed") as name:
        assert name == f"{HOST}#2"
    node.kill()
    node.communicate()
    with own_name("naming-killed") as name:
        assert name == HOST


def test_a_long_name_of_a_run() -> None:
    with own_name("r" * 500) as name:
        assert name == HOST
