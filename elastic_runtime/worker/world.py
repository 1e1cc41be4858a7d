"""What a script knows of the ranks that it trains with, until they change."""

from __future__ import annotations

import os
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from elastic_runtime.protocol.messages import ENV_ROUND

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_runtime.protocol.messages import Enter
    from elastic_runtime.worker.peers import GlooGroups


@dataclass(frozen=True, slots=True)
class World:
    """The ranks that train together, as one of them sees it.

    Attributes:
        rank: this rank, from 0.
        size: how many ranks there are.
        local_rank: this worker's number on its node, which is also that of its GPU.
        local_size: how many workers of this node take part.
        node_rank: the number of this node.
        nodes: how many nodes there are.
        round: grows with every change of the world; 0 without an agent.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    node_rank: int
    nodes: int
    round: int

    @classmethod
    def of_environment(cls, environ: Mapping[str, str]) -> World:
        """The world that a launcher describes; that of a single process if there is none."""

        def number(name: str, otherwise: int) -> int:
            return int(environ.get(name) or otherwise)

        return cls(
            rank=number("RANK", 0),
            size=number("WORLD_SIZE", 1),
            local_rank=number("LOCAL_RANK", 0),
            local_size=number("LOCAL_WORLD_SIZE", 1),
            node_rank=number("GROUP_RANK", 0),
            nodes=number("GROUP_WORLD_SIZE", 1),
            round=number(ENV_ROUND, 0),
        )

    @classmethod
    def of_order(cls, order: Enter) -> World:
        """The world that this process's agent has it enter."""
        return cls(
            rank=order.rank,
            size=order.world,
            local_rank=order.local_rank,
            local_size=order.local_world,
            node_rank=order.group_rank,
            nodes=order.group_world,
            round=order.round,
        )

    def publish(self) -> None:
        """Puts the present ranks where libraries look for them: into this process's environment."""
        os.environ.update(
            RANK=str(self.rank),
            WORLD_SIZE=str(self.size),
            LOCAL_WORLD_SIZE=str(self.local_size),
            GROUP_RANK=str(self.node_rank),
            GROUP_WORLD_SIZE=str(self.nodes),
        )


class FollowsWorld:
    """A part of the state that must know the world, such as a sampler.

    To be inherited from: a ``State`` may hold objects of other libraries, with methods of the same
    names that mean something else.
    """

    def enter(self, world: World) -> None:
        """Another world begins; ``elastic.run`` calls it.

        Args:
            world: the new one.
        """
        raise NotImplementedError

    def use_groups(self, gloo: GlooGroups) -> None:
        """Its ranks can tell each other something from now on; called after ``enter``.

        Args:
            gloo: groups of all ranks, valid until the next call.
        """


class TrainsAlone(FollowsWorld):
    """What lets each rank train alone from one commit to the next, such as ``DiLoCo``.

    Attributes:
        commits: it is committing itself, and nobody else may.
        saves: what a checkpoint needs beside the State, by name.
    """

    commits: bool = False
    saves: Mapping[str, object] = MappingProxyType({})

    def resume(self) -> None:
        """All ranks have the same commit, and ``train`` is about to be called; it may commit."""
        raise NotImplementedError

    def returned(self) -> None:
        """``train`` has returned on this rank."""
