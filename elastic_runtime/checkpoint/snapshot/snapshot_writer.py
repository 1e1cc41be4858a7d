"""One snapshot: from the state in the ranks' memory to files on all nodes.

::

    begin (rank 0) ─▶ write (each rank) ─▶ copy (each node) ─▶ describe (rank 0) ─▶ commit (each
    node) ─▶ remove the older ones

As in a save, all ranks take each step together and learn of each other's failures.
"""

from __future__ import annotations

import base64
import time
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import crc32c

from elastic_runtime.checkpoint.format.dcp_metadata import not_as_planned
from elastic_runtime.checkpoint.format.description import DescriptionFile
from elastic_runtime.checkpoint.format.manifest import CheckpointId, FileRecord, Manifest
from elastic_runtime.checkpoint.format.outline_file import file_name
from elastic_runtime.checkpoint.save.background_thread import failing_for_all
from elastic_runtime.checkpoint.save.file_writer import (
    write_description_file,
    write_file,
    written_by_all,
)
from elastic_runtime.checkpoint.snapshot.peer_reader import ConnectionPool, PeerFile
from elastic_runtime.checkpoint.storage.storage_contract import READ_SIZE
from elastic_runtime.errors import CheckpointError, CheckpointFailed, DamagedCheckpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elastic_runtime.checkpoint.format.description import Description
    from elastic_runtime.checkpoint.format.write_plan import WritePlan
    from elastic_runtime.checkpoint.save.rank_share import FileContent
    from elastic_runtime.checkpoint.save.save_term import SaveTerm
    from elastic_runtime.checkpoint.snapshot.buddies import Nodes
    from elastic_runtime.checkpoint.snapshot.snapshot_store import SnapshotStore
    from elastic_runtime.worker.peers import Peers


@dataclass(frozen=True, slots=True)
class SnapshotWriter:
    """One snapshot.

    Attributes:
        store: this node's memory.
        nodes: all nodes.
        save_term: gives the term, that of the storage; rank 0's counts.
        draft: what the manifest will say; term and files follow.
        plan: who writes what; rank 0 has it.
        description: says what is written beside the files of the ranks.
        advance: hears how many bytes more this rank is about to write; raises if the snapshot is
            not wanted any longer.
    """

    store: SnapshotStore
    nodes: Nodes
    save_term: SaveTerm
    draft: Manifest
    plan: WritePlan | None
    description: Description
    advance: Callable[[int], None]

    def run(self, peers: Peers, content: FileContent) -> tuple[CheckpointId, list[str]]:
        """Takes it.

        Args:
            peers: all ranks, which do the same.
            content: this rank's file.

        Returns:
            Which snapshot it has become, and why some nodes have no copy of their buddy's files.

        Raises:
            CheckpointError: a rank could not write; the same on every rank, and nothing is left.
            Exception: a peer is gone, or the snapshot is not wanted any longer.
        """
        which: CheckpointId | None = None
        committed = False

        def commit() -> None:
            nonlocal committed
            assert which is not None
            self.advance(0)
            if self.nodes.leads:
                self._commit(which, described)
            committed = True

        try:
            term = peers.on_first(
                failing_for_all(lambda: self.save_term.acquire(self.draft.entries))
            )
            which = new = CheckpointId(term, self.draft.step)
            self.save_term.about_to_save(new)
            peers.on_each(
                failing_for_all(lambda: self.store.create(new) if self.nodes.leads else None)
            )
            written = written_by_all(peers, lambda: self._write(new, peers.rank, content))
            problems = peers.on_each(failing_for_all(lambda: self._copy(new, written.files)))
            described = peers.on_first(
                failing_for_all(lambda: self._describe(new, written.records))
            )
            peers.on_each(failing_for_all(commit))
        except Exception as error:
            agreed = isinstance(error, CheckpointError)
            if peers.rank == 0 and not agreed:
                self.save_term.use_up()  # others may still be writing there
            # Unless all have agreed that it failed, the others may have it, and miss these files.
            if self.nodes.leads and which is not None and (agreed or not committed):
                self.store.storage.discard(which)
            raise
        if self.nodes.leads:
            self.store.keep_only(new)
        return new, [problem for problem in problems if problem]

    def _write(self, which: CheckpointId, rank: int, content: FileContent) -> FileRecord | None:
        if not content.size:
            return None
        file = (self.store.storage, which, file_name(rank), content.size, content.sources())
        return write_file(*file, alone=False, advance=self.advance)

    def _copy(self, which: CheckpointId, written: Sequence[FileRecord | None]) -> str:
        """Fetches the files of the buddy; why that was not possible, "" if it was."""
        buddy = self.nodes.buddy
        if buddy is None or not self.nodes.leads:
            return ""
        pool = ConnectionPool(buddy.memory, self.store.memory.directory)
        name = ""
        try:
            for rank in buddy.ranks:
                if file := written[rank]:
                    name = file.name
                    self._fetch(pool, which, file)
        except CheckpointError as error:
            # What is there of it is no copy.
            (self.store.storage.path / which.name / name).unlink(missing_ok=True)
            return str(error)
        finally:
            pool.close()
        return ""

    def _fetch(self, pool: ConnectionPool, which: CheckpointId, file: FileRecord) -> None:
        storage = self.store.storage
        where = f"the copy of {file.name} of {pool.memory.node}"
        source = PeerFile(pool, f"{self.store.key}/{which.name}/{file.name}", where)
        buffer = memoryview(bytearray(min(READ_SIZE, file.bytes)))
        crc = 0
        with closing(source), storage.writer(which, file.name, file.bytes) as out:
            source.expect(0, file.bytes)
            for begin in range(0, file.bytes, READ_SIZE):
                self.advance(0)
                piece = buffer[: min(READ_SIZE, file.bytes - begin)]
                source.readinto(begin, [piece])
                crc = crc32c.crc32c(piece, crc)
                out.write([piece])
        if crc != file.crc32c:
            raise DamagedCheckpoint(f"{where} is damaged: its checksum does not match")

    def _describe(
        self, which: CheckpointId, written: Sequence[FileRecord | None]
    ) -> dict[str, Any]:
        """What all nodes write beside the files of the ranks, the same everywhere."""
        assert self.plan is not None
        if (rank := not_as_planned(self.plan, written)) is not None:
            raise CheckpointFailed(f"what rank {rank} has written is not what was planned")
        described = self.description.describe(self.plan, written, for_dcp=False)
        files = (*described.files, *(one.record() for one in described.beside))
        whole = replace(self.draft, term=which.term, files=files, saved_at=time.time())
        beside = {
            one.name: base64.b64encode(b"".join(one.pieces)).decode() for one in described.beside
        }
        return {"beside": beside, "manifest": whole.encode().decode()}

    def _commit(self, which: CheckpointId, described: dict[str, Any]) -> None:
        storage = self.store.storage
        for name, content in described["beside"].items():
            write_description_file(
                storage, which, DescriptionFile(name, (base64.b64decode(content),))
            )
        where = storage.place(which)
        storage.commit(Manifest.decode(where, described["manifest"].encode()))
