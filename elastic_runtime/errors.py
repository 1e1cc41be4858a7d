"""Everything that this package raises, as one tree, and the exit code that each ends with.

::

    ElasticError
    ├── UsageError              2   a flag, a file or a setting of the user's is wrong
    │   ├── JobConflict         2   another live job holds this run id with other settings
    │   ├── InvalidSpec         2   a field of an ElasticJob is wrong (controller.decide)
    │   ├── BrokenShard         2   a shard of the data is missing, or not what it should be
    │   └── CheckpointUsageError 2  what is asked of a checkpoint directory cannot be done
    │       └── DamagedCheckpoint   a checkpoint exists, but its bytes are not what was written
    │           └── UnknownFormat   … or a newer version of this package has written them
    ├── CheckpointError         –   the base of all errors about checkpoints, which is never raised
    │   ├── CheckpointUsageError 2  the user's: see above; no other try will do better
    │   ├── CheckpointFailed    1   the world's: a storage fails at present; a later try may do
    │   │   └── SaveOverdue     1   … and has done so for too long
    │   └── Superseded          1   this job has gone on elsewhere; from there it can be resumed
    ├── TrainingFailed          1   the user's code failed, and the failure budget is spent
    ├── NotEnoughNodes          3   fewer than --min nodes came together in time
    ├── StoreUnreachable        4   the rendezvous store cannot be reached
    ├── ClusterUnreachable      4   the Kubernetes API server cannot be reached, or refuses us
    ├── SlurmRefused            4   Slurm does not answer, or refuses us
    ├── LeftOnRequest           5   the node was asked to leave (SIGTERM, SIGINT) and did
    ├── AgentCrashed            6   a defect of this package ended the agent, and its node only
    ├── StoreUnavailable        –   one call to the store failed; the caller tries again
    └── RecordError             –   a record in the store is not ours, or corrupt

Each message says what happened, to what, and what to do about it: it is shown to the user as it
is, without a traceback.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterable

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NOT_ENOUGH_NODES = 3
EXIT_STORE_UNREACHABLE = 4
EXIT_LEFT = 5
EXIT_CRASHED = 6
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells say it


class ElasticError(Exception):
    """The root of the tree.

    Attributes:
        exit_code: the exit code of a command that ends with this error.
    """

    exit_code = EXIT_FAILED


class UsageError(ElasticError):
    """A flag, a file or a setting is wrong; nothing was started."""

    exit_code = EXIT_USAGE


class BrokenShard(UsageError):
    """A shard of the data is missing, or not what it should be."""


class JobConflict(UsageError):
    """A live job uses the same run id with another script or other world settings."""


class CheckpointError(ElasticError):
    """Anything about checkpoints that went wrong, for those who catch it; never raised itself.

    Whose fault it is decides what follows, so each error is of one of the classes below: what the
    user asked for cannot be done and ends the job, what the world did may pass and does not.
    """

    def __new__(cls, *args: object) -> Self:
        """Makes one of the classes below.

        Raises:
            TypeError: it is of none of them.
        """
        if cls is CheckpointError:
            raise TypeError("say whose fault it is: CheckpointUsageError or CheckpointFailed")
        return super().__new__(cls, *args)


class CheckpointUsageError(CheckpointError, UsageError):
    """A directory, an entry or a setting cannot be used as asked; trying again is of no use."""


class NoCheckpoint(CheckpointUsageError):
    """There is none, or none of the step that was asked for."""


class CheckpointFailed(CheckpointError):
    """A state could not be saved or loaded, for a reason that may pass. Nothing is lost by it.

    Args:
        text: for people.
        refused: the storage is there and says no: no right to write, not a directory. At the first
            look of a job that is a wrong setting.
    """

    def __init__(self, text: str, *, refused: bool = False) -> None:
        super().__init__(text)
        self.refused = refused

    def __new__(cls, text: str, *, refused: bool = False) -> Self:
        """Takes what ``__init__`` takes."""
        return super().__new__(cls, text)


class SaveOverdue(CheckpointFailed):
    """No save has succeeded for too long, and a restart may help."""


class Superseded(CheckpointError):
    """A newer round of the same job saves there; this process must not go on."""


class DamagedCheckpoint(CheckpointUsageError):
    """A checkpoint is there, but its bytes are not the ones that were written."""


class UnknownFormat(DamagedCheckpoint):
    """A checkpoint is whole, but of a format that this version cannot read.

    It is as little use as a damaged one, but nobody goes on from an older one because of it.
    """


class TrainingFailed(ElasticError):
    """The user's code failed, and the budget of the job does not allow another try."""


class NotEnoughNodes(ElasticError):
    """Fewer nodes than the minimum came together within the join time-out."""

    exit_code = EXIT_NOT_ENOUGH_NODES


class StoreUnreachable(ElasticError):
    """The rendezvous store did not answer for too long, or refused us."""

    exit_code = EXIT_STORE_UNREACHABLE


class ClusterUnreachable(ElasticError):
    """The API server of a Kubernetes cluster did not answer, or refused us."""

    exit_code = EXIT_STORE_UNREACHABLE


class LeftOnRequest(ElasticError):
    """The node was asked to leave and left; the rest of the job goes on."""

    exit_code = EXIT_LEFT


class AgentCrashed(ElasticError):
    """A defect of this package ended this node's agent; the rest of the job goes on."""

    exit_code = EXIT_CRASHED


class StoreUnavailable(ElasticError):
    """One call to the store failed and may be tried again; whether it took effect is unknown."""


class RecordError(ElasticError):
    """A record in the store is corrupt or foreign.

    Args:
        key: where it was found.
        why: what is wrong with it.
    """

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"the record {key!r} in the store cannot be used: {why}")
        self.key = key
        self.why = why


def did_you_mean(typed: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The end of a message about a name that is unknown: ``; did you mean '--min'?``, or "".

    Args:
        typed: what was written.
        known: what could have been.
        cutoff: how alike both have to be, from 0 to 1; see ``difflib.SequenceMatcher.ratio``.
    """
    close = difflib.get_close_matches(typed, list(known), n=1, cutoff=cutoff)
    return f"; did you mean {close[0]!r}?" if close else ""
