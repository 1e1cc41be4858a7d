"""One snapshot is written by all ranks, or given up by all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elastic_runtime.checkpoint.format.description import Description
from elastic_runtime.checkpoint.format.manifest import Manifest
from elastic_runtime.checkpoint.save.rank_share import FileContent
from elastic_runtime.checkpoint.save.save_term import SaveTerm
from elastic_runtime.checkpoint.snapshot.buddies import Nodes
from elastic_runtime.checkpoint.snapshot.snapshot_store import SnapshotStore
from elastic_runtime.checkpoint.snapshot.snapshot_writer import SnapshotWriter
from elastic_runtime.checkpoint.storage.local_storage import LocalStorage
from elastic_runtime.worker import context as contexts
from elastic_runtime.worker.peers import Peers
from tests import small_checkpoints
from tests.checkpoints import plan_of
from tests.unit.checkpoint.snapshot.memories import memory_of


class _Dying(Peers):
    """Another rank dies at one of the exchanges, after all have done their part."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self._left = at

    def gather(self, value: Any) -> list[Any]:
        self._left -= 1
        if self._left == 0:
            raise RuntimeError("Connection closed by peer")
        return super().gather(value)


@pytest.mark.parametrize(("exchange", "stays"), [(5, False), (6, True)])
def test_what_others_may_have_by_now_is_kept(tmp_path: Path, exchange: int, stays: bool) -> None:
    memory = memory_of(tmp_path / "memory")
    Path(memory.directory).mkdir()
    store = SnapshotStore(memory, "runs")
    store.storage.prepare()
    small_checkpoints.put(store.storage, 1)
    here = contexts.WorkerContext({})
    writer = SnapshotWriter(
        store=store,
        nodes=Nodes.seen_by(0, [memory]),
        save_term=SaveTerm(LocalStorage(tmp_path / "runs"), here),
        draft=Manifest(step=5, term=0, world=1),
        plan=plan_of([[]]),
        description=Description(),
        advance=lambda count: None,
    )
    # term, create, write, copy, describe, commit
    with pytest.raises(RuntimeError, match="closed by peer"):
        writer.run(_Dying(exchange), FileContent(0, lambda: iter(())))
    names = {path.name for path in store.storage.path.iterdir()}
    assert names == ({"step-1.term-1", "step-5.term-1"} if stays else {"step-1.term-1"})
