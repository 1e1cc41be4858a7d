"""The name of the run, for torch's agent class, which asks a rendezvous for it."""

from __future__ import annotations

from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo


class RunName(RendezvousHandler):  # type: ignore[misc]
    """What torch's events want to know of a rendezvous: the names of the backend and of the run.

    The rendezvous itself is the participant's; torch's loop, which would call the rest of this
    interface, does not run here.
    """

    def __init__(self, backend: str, run_id: str) -> None:
        self._backend = backend
        self._run_id = run_id

    def get_backend(self) -> str:
        """The store's kind."""
        return self._backend

    def get_run_id(self) -> str:
        """The run's id."""
        return self._run_id

    def next_rendezvous(self) -> RendezvousInfo:
        """Never called: the agent gets its rounds as notices."""
        raise RuntimeError("rounds come from the participant")

    def is_closed(self) -> bool:
        """The rendezvous is open for as long as the agent runs."""
        return False

    def set_closed(self) -> None:
        """The end of a job is its outcome record."""

    def num_nodes_waiting(self) -> int:
        """Joiners come as notices."""
        return 0

    def shutdown(self) -> bool:
        """The agent ends its part itself."""
        return True
