"""Kinds of objects, and the paths under which an API server keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote


@dataclass(frozen=True)
class Resource:
    """A kind of objects.

    Attributes:
        root: ``/api/v1`` or ``/apis/<group>/<version>``.
        plural: ``pods``.
    """

    root: str
    plural: str

    def path(self, namespace: str = "", name: str = "", sub: str = "") -> str:
        """The path of an object, of its subresource, or of all of a namespace or cluster."""
        inside = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
        parts = [f"{self.root}{inside}", self.plural, quote(name, safe=""), sub]
        return "/".join(part for part in parts if part)


PODS = Resource("/api/v1", "pods")
SERVICES = Resource("/api/v1", "services")
NODES = Resource("/api/v1", "nodes")
EVENTS = Resource("/api/v1", "events")
DISRUPTION_BUDGETS = Resource("/apis/policy/v1", "poddisruptionbudgets")
LEASES = Resource("/apis/coordination.k8s.io/v1", "leases")
