"""What ``prepare`` makes of a loader for evaluations: it is shared out in each world anew.

What accelerate prepares is made for the ranks of one world.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accelerate.state import GradientState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class EvaluationLoader:
    """A user's ``DataLoader``; nothing is trained from it."""

    def __init__(self, loader: Any, share_out: Callable[[Any], Any]) -> None:
        """Shares out nothing yet.

        Args:
            loader: the user's.
            share_out: makes accelerate's loader for the present ranks.
        """
        self._loader, self._share_out = loader, share_out
        self._shared: Any = None

    def __getattr__(self, name: str) -> Any:
        if name in ("_loader", "_share_out", "_shared"):  # while it is unpickled
            raise AttributeError(name)
        return getattr(self.of_rank(), name)

    def enter(self) -> None:
        """Other ranks are there from now on."""
        self._shared = None

    def __len__(self) -> int:
        """Batches of this rank."""
        return len(self.of_rank())

    def __iter__(self) -> Iterator[Any]:
        """Begins at the first one."""
        shared = self.of_rank()
        try:
            yield from shared
        finally:  # accelerate does so at the end only
            GradientState()._remove_dataloader(shared)

    def gives(self, loader: object) -> bool:
        """Whether this is what accelerate has made of it.

        Args:
            loader: that is iterated over.
        """
        return loader is not None and loader is self._shared

    def of_rank(self) -> Any:
        """What accelerate has made of it for the present ranks."""
        if self._shared is None:
            self._shared = self._share_out(self._loader)
        return self._shared
