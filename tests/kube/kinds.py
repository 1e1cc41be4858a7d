"""The kinds of objects that the fake server knows, and the documents by which clients find them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]


@dataclass(frozen=True)
class Kind:
    """A kind of objects.

    Attributes:
        group: "" for the core.
        version: such as ``v1``.
        plural: as in paths.
        name: as in ``kind:``.
        namespaced: whether its objects live in namespaces.
        subresources: of ``status``, ``scale``, ``log`` and ``eviction``.
        counted: whether a change of the spec makes a new generation.
    """

    group: str
    version: str
    plural: str
    name: str
    namespaced: bool = True
    subresources: tuple[str, ...] = ()
    counted: bool = False

    @property
    def api_version(self) -> str:
        """As in ``apiVersion:``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def root(self) -> str:
        """The path under which its API version is served."""
        return f"/apis/{self.api_version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str = "", name: str = "") -> str:
        """The path of an object, or of all of them."""
        inside = f"/namespaces/{namespace}" if namespace and self.namespaced else ""
        return f"{self.root}{inside}/{self.plural}" + (f"/{name}" if name else "")


def _core(plural: str, name: str, **more: Any) -> Kind:
    return Kind("", "v1", plural, name, **more)


_STATUS = ("status",)
_COUNTED: dict[str, Any] = {"subresources": _STATUS, "counted": True}
_SCALED: dict[str, Any] = {"subresources": ("status", "scale"), "counted": True}

POD = _core("pods", "Pod", subresources=("status", "log", "eviction"))
SERVICE = _core("services", "Service", subresources=_STATUS)
EVENT = _core("events", "Event")
NAMESPACE = _core("namespaces", "Namespace", namespaced=False, subresources=_STATUS)
LEASE = Kind("coordination.k8s.io", "v1", "leases", "Lease")
BUDGET = Kind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", **_COUNTED)
JOB = Kind("elastic.pytorch.org", "v1alpha1", "elasticjobs", "ElasticJob", **_SCALED)
CRD = Kind(
    *("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition"),
    **_COUNTED,
    namespaced=False,
)

KINDS: tuple[Kind, ...] = (
    POD,
    SERVICE,
    EVENT,
    _core("secrets", "Secret"),
    NAMESPACE,
    _core("persistentvolumeclaims", "PersistentVolumeClaim"),
    _core("configmaps", "ConfigMap"),
    _core("nodes", "Node", namespaced=False, subresources=_STATUS),
    _core("serviceaccounts", "ServiceAccount"),
    _core("resourcequotas", "ResourceQuota", subresources=_STATUS),
    LEASE,
    BUDGET,
    JOB,
    CRD,
    Kind("apps", "v1", "deployments", "Deployment", **_COUNTED),
    Kind("apps", "v1", "statefulsets", "StatefulSet", **_COUNTED),
)


@dataclass
class Catalogue:
    """The kinds that are served at present: a test may take one away, as before an installation."""

    kinds: list[Kind] = field(default_factory=lambda: list(KINDS))

    def find(self, group: str, version: str, plural: str) -> Kind | None:
        """The kind behind a path."""
        for kind in self.kinds:
            if (kind.group, kind.version, kind.plural) == (group, version, plural):
                return kind
        return None

    def groups(self) -> dict[str, Any]:
        """``/apis``."""
        found = sorted({(kind.group, kind.version) for kind in self.kinds if kind.group})
        return {
            "kind": "APIGroupList",
            "apiVersion": "v1",
            "groups": [self._group(group, version) for group, version in found],
        }

    def group(self, name: str) -> dict[str, Any] | None:
        """``/apis/<group>``."""
        for group in self.groups()["groups"]:
            if group["name"] == name:
                return {"kind": "APIGroup", "apiVersion": "v1", **group}
        return None

    def resources(self, group: str, version: str) -> dict[str, Any] | None:
        """``/api/v1`` or ``/apis/<group>/<version>``."""
        kinds = [kind for kind in self.kinds if (kind.group, kind.version) == (group, version)]
        if not kinds:
            return None
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": kinds[0].api_version,
            "resources": [entry for kind in kinds for entry in self._entries(kind)],
        }

    @staticmethod
    def _group(name: str, version: str) -> dict[str, Any]:
        served = {"groupVersion": f"{name}/{version}", "version": version}
        return {"name": name, "versions": [served], "preferredVersion": served}

    @staticmethod
    def _entries(kind: Kind) -> list[dict[str, Any]]:
        own = {
            "name": kind.plural,
            "singularName": kind.name.lower(),
            "namespaced": kind.namespaced,
            "kind": kind.name,
            "verbs": _VERBS,
        }
        below = [
            {**own, "name": f"{kind.plural}/{one}", "verbs": ["get", "patch", "update"]}
            for one in kind.subresources
        ]
        return [own, *below]
