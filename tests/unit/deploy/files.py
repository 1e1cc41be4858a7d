"""The manifests of ``deploy/``, read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
SAMPLES = DEPLOY / "samples"
CHART = DEPLOY / "helm" / "elastic-runtime"

Object = dict[str, Any]


class _Strict(yaml.CSafeLoader):
    """Refuses what says a thing twice: the last one would silently win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Object:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            raise ValueError(f"twice: {', '.join(sorted(twice))}{node.start_mark}")
        return super().construct_mapping(node, deep)


def objects(source: Path | str) -> list[Object]:
    """All objects of a file, or of text.

    Args:
        source: a path, or YAML with any number of documents.
    """
    text = source.read_text() if isinstance(source, Path) else source
    return [each for each in yaml.load_all(text, _Strict) if each]


def jobs(source: Path) -> list[Object]:
    """The ElasticJobs of a file."""
    return [each for each in objects(source) if each["kind"] == "ElasticJob"]


def identity(manifest: Object) -> tuple[str, str, str]:
    """Kind, namespace ("" if none) and name."""
    metadata = manifest["metadata"]
    return manifest["kind"], metadata.get("namespace", ""), metadata["name"]
