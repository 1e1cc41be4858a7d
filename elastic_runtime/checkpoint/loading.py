"""One attempt of one rank to load one checkpoint: first verify everything, then read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_runtime.checkpoint import dcp
from elastic_runtime.checkpoint.manifest import CheckpointId, verification_shares
from elastic_runtime.checkpoint.storage import CheckpointDirectory, check_file
from elastic_runtime.errors import CheckpointError

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import Metadata

    from elastic_runtime.checkpoint.state import Entries, State


class Loading:
    """A load that all ranks do in two steps; between them they agree that nobody found damage."""

    def __init__(
        self, directory: CheckpointDirectory, which: CheckpointId, entries: Entries
    ) -> None:
        """Remembers what to load into which entries."""
        self._directory = directory
        self._which = which
        self._path = directory.path / which.name
        self._entries = entries
        self._ready: tuple[Metadata, State] | None = None

    def verify(self, rank: int, world: int) -> None:
        """Reads this rank's share of the files, and sees whether the content fits the entries.

        Raises:
            DamagedCheckpoint: something is not what was written.
            CheckpointError: it is whole, but of another program.
        """
        manifest = self._directory.read_manifest(self._which)
        if manifest is None:
            raise CheckpointError(
                f"rank {rank} does not see {self._path}; "
                "the directory must be on storage that all nodes share"
            )
        for file in verification_shares(manifest.files, world)[rank]:
            check_file(self._path / file.name, file)
        metadata = dcp.read_metadata(self._path, manifest.files)
        self._ready = metadata, self._entries.wanted(str(self._path), metadata)

    def read(self) -> None:
        """Loads what was verified into the entries.

        Raises:
            DamagedCheckpoint: an entry is refused, because loading it would run code.
        """
        if self._ready is None:
            raise RuntimeError("read() comes after verify()")
        metadata, state = self._ready
        dcp.load(state, self._path, metadata)
        self._entries.restore(state)
