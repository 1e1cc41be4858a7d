"""The manifests that kustomize and Helm make of what lies in ``deploy/``."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.processes import PROGRAM_TIMEOUT
from tests.unit.deploy.files import CHART, DEPLOY, Object, objects

if TYPE_CHECKING:
    from collections.abc import Mapping


def kustomized(overlay: str) -> list[Object]:
    """What an overlay installs; skips the test where there is no kustomize."""
    for command in (["kubectl", "kustomize"], ["kustomize", "build"]):
        if shutil.which(command[0]):
            break
    else:
        pytest.skip("neither kubectl nor kustomize is installed")
    path = DEPLOY / "kustomize" / "overlays" / overlay
    ran = subprocess.run(
        [*command, str(path)], capture_output=True, text=True, timeout=PROGRAM_TIMEOUT
    )
    assert ran.returncode == 0, ran.stderr
    return objects(ran.stdout)


def charted(namespace: str = "elastic-job", **values: Any) -> list[Object]:
    """What the chart installs, its definitions aside, rendered by Helm itself."""
    from helm_python import Chart

    with Chart.load(CHART) as chart:
        chart.validate_schema(values)
        rendered: Mapping[str, str] = chart.render(values, name="release", namespace=namespace)
    texts = [text for name, text in sorted(rendered.items()) if name.endswith(".yaml")]
    return [each for text in texts for each in objects(text)]
