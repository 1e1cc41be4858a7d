"""Probes: a node that lives says so, whatever happens to one answer."""

from __future__ import annotations

from typing import Any

from elastic_runtime.rendezvous.probe import ProbeServer, probe
from elastic_runtime.rendezvous.state import ALIVE, OTHER, REFUSED, SILENT

LOCAL = "127.0.0.1"
PATIENCE = 10.0


def test_a_node_answers_until_it_ends() -> None:
    server = ProbeServer(LOCAL, lambda: {"node": "a"})
    assert probe("a", LOCAL, server.port, PATIENCE) == ALIVE
    assert probe("b", LOCAL, server.port, PATIENCE) == OTHER
    server.close()
    assert probe("a", LOCAL, server.port, PATIENCE) == REFUSED


def test_an_answer_that_cannot_be_given_proves_nothing_and_is_not_the_last_one() -> None:
    answers = iter([{"node": "a"}])
    broken = [True]

    def answer() -> dict[str, Any]:
        if broken:
            broken.pop()
            raise ValueError("the workers are just being replaced")
        return next(answers)

    server = ProbeServer(LOCAL, answer)
    try:
        assert probe("a", LOCAL, server.port, PATIENCE) == SILENT
        assert probe("a", LOCAL, server.port, PATIENCE) == ALIVE
    finally:
        server.close()
