"""How the ranks of a world are laid out for torchtitan (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from elastic_runtime.errors import UsageError


@dataclass(frozen=True, slots=True)
class Degrees:
    """Of the parallelism that a config asks for.

    Attributes:
        model: tensor, context and pipeline parallelism together: so many ranks hold one batch.
        shard: of data parallelism; -1: what is left.
        replicate: of data parallelism.
    """

    model: int
    shard: int
    replicate: int

    def fitted(self, world: int) -> Degrees:
        """The same in a world of another size.

        With ``shard`` at -1 the shards take up what is left. Otherwise there are as many replicas
        as fit (HSDP), whatever the config says.

        Args:
            world: how many ranks there are.

        Raises:
            UsageError: the world cannot be laid out so.
        """
        if self.shard < 0:
            unit, replicate = self.model * self.replicate, self.replicate
        else:
            unit, replicate = self.model * self.shard, world // (self.model * self.shard)
        if world < unit or world % unit:
            raise UsageError(
                f"a world of {world} ranks cannot be laid out in groups of {unit} "
                f"({self._unit()}); let each node have a multiple of {unit} workers "
                "(--nproc-per-node), or choose smaller degrees of --parallelism"
            )
        return Degrees(self.model, self.shard, replicate)

    def data_ranks(self, world: int) -> int:
        """How many data-parallel ranks the largest layout has that fits into so many ranks."""
        unit = self.model * (self.replicate if self.shard < 0 else self.shard)
        return max(1, world // unit) * (unit // self.model)

    def _unit(self) -> str:
        other = f"replicas {self.replicate}" if self.shard < 0 else f"shards {self.shard}"
        return f"tensor x context x pipeline {self.model}, {other}"
