"""Labels of nodes that pods are told, as an ElasticJob or the controller's settings name them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from elastic_runtime.controller.spec.field_reader import InvalidSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_runtime.controller.spec.field_reader import Section

# Networks have three or four levels; the CRD says the same number.
MOST_LEVELS = 8
# https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set
_LABEL_KEY = re.compile(
    r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)


def read_node_labels(spec: Section) -> tuple[str, ...] | None:
    """Reads ``spec.topology.nodeLabels``.

    Args:
        spec: the whole spec.

    Returns:
        The keys, far first and nearest last; None if the job leaves it to the controller.

    Raises:
        InvalidSpec: they are no keys of labels, or too many.
    """
    topology = spec.section("topology", needed=False)
    if topology.values.get("nodeLabels") is None:
        return None
    path, names = f"{topology.path}.nodeLabels", topology.items("nodeLabels")
    if len(names) > MOST_LEVELS:
        raise InvalidSpec(path, f"there are {len(names)}, and at most {MOST_LEVELS} are possible")
    for place, name in enumerate(names):
        if not isinstance(name, str) or not _LABEL_KEY.fullmatch(name):
            why = f"{name!r} is no key of a label, such as topology.kubernetes.io/zone"
            raise InvalidSpec(f"{path}[{place}]", why)
    return tuple(names)


def are_node_labels(names: Sequence[str]) -> bool:
    """Whether these can be the labels of ``--topology-labels``."""
    return len(names) <= MOST_LEVELS and all(map(_LABEL_KEY.fullmatch, names))
