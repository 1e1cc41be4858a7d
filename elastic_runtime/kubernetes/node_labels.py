"""Labels of nodes: read when they are asked for, once for the many pods of one node."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_runtime.kubernetes.api_errors import ApiError
from elastic_runtime.kubernetes.api_resources import NODES
from elastic_runtime.limits import FORBIDDEN_TOPOLOGY_PAUSE, KNOWN_NODES, NODE_LABELS_AGE

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_runtime.kubernetes.api_client import ApiClient

_Asked = tuple[str, tuple[str, ...]]  # the node, and keys of its labels
_Values = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Known:
    values: _Values
    until: float


class NodeLabels:
    """Reads labels of nodes, and knows them for some minutes.

    There is no watch: a large cluster has thousands of nodes, which report every few seconds.

    Args:
        client: asks the API server.
        now: seconds of a clock that is never set back.
        most: how many answers are kept; the ones that were used last.
    """

    def __init__(
        self, client: ApiClient, now: Callable[[], float], most: int = KNOWN_NODES
    ) -> None:
        self._client, self._now, self._most = client, now, most
        self._known: OrderedDict[_Asked, _Known] = OrderedDict()
        self._asking: dict[_Asked, asyncio.Task[_Values | ApiError]] = {}
        self._refused: ApiError | None = None
        self._refused_until = 0.0

    async def read(self, node: str, labels: tuple[str, ...]) -> tuple[str, ...]:
        """The values of a node's labels, in the order of their keys.

        Args:
            node: its name.
            labels: the keys.

        Returns:
            A value for each; "" for one that the node does not have. A node that is gone has none.

        Raises:
            ApiError: nodes may not be read, which is asked once in a while only; or there was no
                answer.
        """
        asked = node, labels
        known = self._known.get(asked)
        if known and self._now() < known.until:
            self._known.move_to_end(asked)
            return known.values
        task = self._asking.get(asked)
        if task is None:
            task = self._asking[asked] = asyncio.create_task(self._ask(node, labels))
            task.add_done_callback(lambda _: self._asking.pop(asked, None))
        answer = await asyncio.shield(task)
        if isinstance(answer, ApiError):
            raise answer
        return answer

    async def _ask(self, node: str, labels: tuple[str, ...]) -> _Values | ApiError:
        if self._refused and self._now() < self._refused_until:
            return self._refused
        try:
            found = await self._client.get(NODES.path(name=node))
        except ApiError as error:
            if error.not_found:
                return ("",) * len(labels)  # not kept: another one may get its name
            if error.code == 403:
                self._refused = error
                self._refused_until = self._now() + FORBIDDEN_TOPOLOGY_PAUSE
            return error
        self._refused = None
        of_node = found["metadata"].get("labels") or {}
        values = tuple(str(of_node.get(key) or "") for key in labels)
        self._known[node, labels] = _Known(values, self._now() + NODE_LABELS_AGE)
        self._known.move_to_end((node, labels))
        while len(self._known) > self._most:
            self._known.popitem(last=False)
        return values
