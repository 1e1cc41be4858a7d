"""The manifests that kustomize and Helm make of what lies in ``deploy/``."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.processes import PROGRAM_TIMEOUT
from tests.unit.deploy.files import CHART, DEPLOY, Object, objects

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def kustomized(overlay: str) -> list[Object]:
    """What an overlay installs; skips the test where there is no kustomize."""
    return _kustomized(DEPLOY / "kustomize" / "overlays" / overlay)


def with_component(overlay: str, component: str, into: Path) -> list[Object]:
    """What an overlay of a user's installs that adds a component; skips as ``kustomized``.

    Args:
        overlay: ours, that it is made of.
        component: ours, too.
        into: an empty directory for it.
    """
    own = DEPLOY / "kustomize"
    content = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(own / "overlays" / overlay, into.resolve())],
        "components": [os.path.relpath(own / "components" / component, into.resolve())],
    }
    (into / "kustomization.yaml").write_text(yaml.safe_dump(content))
    return _kustomized(into)


def _kustomized(path: Path) -> list[Object]:
    for command in (["kubectl", "kustomize"], ["kustomize", "build"]):
        if shutil.which(command[0]):
            break
    else:
        pytest.skip("neither kubectl nor kustomize is installed")
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
