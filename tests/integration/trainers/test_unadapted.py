"""A trainer without its adapter is noticed, and so is a job whose ranks train each for itself."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests import processes, zygote
from tests.integration.in_place.job import ELASTIC_RUN, ENVIRONMENT

SCRIPT = Path(__file__).with_name("scripts") / "unadapted.py"
TWO_NODES, ONE_NODE = "--local-nodes 2 --min 1", "--nproc-per-node 2"


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (f"lightning {TWO_NODES}", {"trainer": "ElasticStrategy", "alone": "num_nodes="}),
        (f"accelerate {TWO_NODES}", {"trainer": "fresh_accelerator", "alone": "cpu=True"}),
        (f"accelerate {ONE_NODE} --cold", {"trainer": "fresh_accelerator", "alone": "cpu=True"}),
        (f"transformers {TWO_NODES}", {"trainer": "ElasticTrainer"}),
        (f"none {TWO_NODES}", {}),
    ],
)
def test_it_is_said_once_what_goes_wrong_and_what_mends_it(
    tmp_path: Path, kind: str, said: dict[str, str]
) -> None:
    kind, *options = kind.split()
    done = zygote.run(
        [*ELASTIC_RUN, *options, "--log-format", "json", str(SCRIPT), kind],
        cwd=tmp_path,
        env={**os.environ, **ENVIRONMENT},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=processes.PROGRAM_TIMEOUT,
    )
    assert done.returncode == 0, done.stdout
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"')]
    hints = [event for event in map(json.loads, lines) if event["event"] == "hint"]
    assert {hint["about"]: 1 for hint in hints} == dict.fromkeys(said, 1), done.stdout
    assert len(hints) == len(said)
    for hint in hints:
        assert said[hint["about"]] in hint["text"]
