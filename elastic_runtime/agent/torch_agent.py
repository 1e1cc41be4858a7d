"""torch's part of an agent: the metrics, events and results that torchrun's users know."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from torch.distributed.elastic.agent.server.api import (
    RunResult,
    SimpleElasticAgent,
    Worker,
    WorkerGroup,
    WorkerState,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.distributed.elastic.agent.server.api import WorkerSpec as TorchSpec
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    from elastic_runtime.agent.lifecycle.lifecycle_types import Finish
    from elastic_runtime.protocol.round_records import RoundRecord


class TorchAgent(SimpleElasticAgent):  # type: ignore[misc]
    """Records for torch what an ``ElasticAgent`` does.

    It is torch's class because ``run`` and what it records lie there and nowhere else; the class is
    abstract in three methods of its own loop, which never runs: ``loop`` does in its place.

    Args:
        spec: torch's description of the workers; its handler only names the run.
        loop: runs the agent to its end, and says how that was.
        close: ends what is left of it; may be called twice.
    """

    def __init__(
        self, spec: TorchSpec, loop: Callable[[], RunResult], close: Callable[[], None]
    ) -> None:
        super().__init__(spec)
        self._loop = loop
        self._close = close

    def form_group(self, last: RoundRecord, group_rank: int, local_ranks: Sequence[int]) -> None:
        """Describes the workers of a round.

        Args:
            last: the round.
            group_rank: this node's rank in it.
            local_ranks: its workers, in the order of their ranks.
        """
        group = self._worker_group
        first, world = last.first_worker(group_rank), last.world_size
        group.group_rank, group.group_world_size = group_rank, last.size
        group.master_addr, group.master_port = last.members[0].address, last.store_port
        group.workers = [
            Worker(local_rank, first + index, first + index, world, world)
            for index, local_rank in enumerate(local_ranks)
        ]
        group.state = WorkerState.HEALTHY

    def name_workers(self) -> None:
        """Gives each worker of the group the id under which its end is recorded."""
        for worker in self._worker_group.workers:
            worker.id = worker.global_rank

    def result(
        self,
        finish: Finish,
        failures: dict[int, ProcessFailure],
        value_of: Callable[[int], Any],
    ) -> RunResult:
        """What ``run`` returns.

        Args:
            finish: how the agent ended.
            failures: the workers that failed here, by global rank.
            value_of: what the function of a worker returned, by local rank.
        """
        if finish.outcome is None or not finish.outcome.succeeded:
            return RunResult(WorkerState.FAILED, failures=failures)
        workers = self._worker_group.workers
        values = {worker.global_rank: value_of(worker.local_rank) for worker in workers}
        return RunResult(WorkerState.SUCCEEDED, return_values=values)

    def _invoke_run(self, role: str = "default") -> RunResult:
        return self._loop()

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        self._close()

    def _never(self, worker_group: WorkerGroup) -> Any:
        raise AssertionError("torch's own loop does not run here")

    _start_workers = _stop_workers = _monitor_workers = _never
