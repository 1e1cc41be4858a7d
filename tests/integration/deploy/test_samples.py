"""The scripts that samples bring along, run by ``elastic-run`` on two worlds of different sizes."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from tests import zygote
from tests.unit.deploy.files import SAMPLES, objects

if TYPE_CHECKING:
    from pathlib import Path


def test_a_sharded_model_goes_on_in_another_world(tmp_path: Path) -> None:
    [config] = [each for each in objects(SAMPLES / "fsdp.yaml") if each["kind"] == "ConfigMap"]
    script = tmp_path / "train.py"
    script.write_text(config["data"]["train.py"])
    said = []
    for workers, steps in ((2, 101), (1, 201)):
        ran = zygote.run(
            [sys.executable, "-m", "elastic_runtime", f"--nproc-per-node={workers}", str(script)],
            env={
                **os.environ,
                "PYTHONPATH": os.getcwd(),
                "OMP_NUM_THREADS": "1",
                "ELASTIC_CHECKPOINT": str(tmp_path / "checkpoints"),
                "WIDTH": "16",
                "STEPS": str(steps),
            },
            stdout=subprocess.PIPE,
            text=True,
            timeout=100,
        )
        assert ran.returncode == 0, ran.stdout
        said.append(ran.stdout)
    first, second = said
    assert "step 0: " in first and "step 100: " in first and "2 ranks" in first
    assert "step 100: " not in second and "step 200: " in second and "1 ranks" in second
