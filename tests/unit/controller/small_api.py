"""An API server that does what the controller asks, unless a test has it refuse that."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elastic_runtime.kubernetes.api_errors import ApiError

KEY, UID = ("default", "digits"), "job-1"
_OWNER = {"kind": "ElasticJob", "name": KEY[1], "uid": UID, "controller": True}


class SmallApi:
    """Answers as ``ApiClient`` does.

    Attributes:
        refusals: what is refused, by verb.
        after: so many requests are answered well before that.
        owners: of what it makes.
        asked: all requests so far, as ``create digits-worker-0``.
        told: the metadata that pods were given, by name.
    """

    def __init__(self, *, after: int = 0, **refusals: ApiError) -> None:
        self.refusals, self.after = refusals, after
        self.owners = [_OWNER]
        self.asked: list[str] = []
        self.told: dict[str, Any] = {}

    def count(self, verb: str) -> int:
        """How often that was asked."""
        return sum(one.startswith(f"{verb} ") for one in self.asked)

    def _answer(
        self, verb: str, name: str, item: Any = None, version: str = "1", **own: Any
    ) -> Any:
        self.asked.append(f"{verb} {name}")
        if verb in self.refusals and len(self.asked) > self.after:
            raise self.refusals[verb]
        meta = {"namespace": KEY[0], "name": name, "uid": name, "resourceVersion": version, **own}
        return {**(item or {}), "metadata": {**meta, "ownerReferences": self.owners}}

    async def create(self, _: Any, __: str, item: Any, strict: bool = False) -> Any:
        return self._answer("create", item["metadata"]["name"], item)

    async def check(self, _: Any, __: str, item: Any) -> None:
        self._answer("check", item["metadata"]["name"])

    async def apply(self, _: Any, __: str, name: str, item: Any) -> Any:
        return self._answer("apply", name, item, "2")

    async def delete(self, _: Any, __: str, name: str, *more: Any) -> Any:
        return self._answer("delete", name)

    async def get(self, path: str) -> Any:
        name = path.rpartition("/")[2]
        await asyncio.sleep(0)
        self._answer("get", name)
        return {"metadata": {"labels": {"zone": "z", "rack": name}}}

    async def merge(self, _: Any, __: str, name: str, patch: Any) -> Any:
        labels = {"app.kubernetes.io/component": "worker"}
        made = self._answer("merge", name, None, "2", labels=labels, **patch["metadata"])
        self.told[name] = patch["metadata"]
        return made
