"""How many steps each optimizer has made since the last commit, and whether all are done."""

from __future__ import annotations

from collections import Counter


class OptimizerSteps:
    """Counts the steps of all optimizers of one ``State``.

    Attributes:
        usual: the most that each optimizer has made from one commit to the next.
    """

    def __init__(self) -> None:
        """None is made yet."""
        self.usual: dict[str, int] = {}
        self._running = 0  # optimizers inside their step
        self._finished: Counter[str] = Counter()

    def begin(self) -> bool:
        """An optimizer begins a step; whether it is the first one since the last commit."""
        first = not self._running and not self._finished
        self._running += 1
        return first

    def end(self, name: str) -> None:
        """An optimizer has finished a step."""
        self._running -= 1
        self._finished[name] += 1

    @property
    def may_be_all(self) -> bool:
        """No optimizer is inside a step, and nothing is known of how many steps are usual."""
        return not (self.usual or self._running)

    @property
    def are_as_usual(self) -> bool:
        """Whether as many steps are done as any commit has ever waited for.

        Adopting too little would count a half-done step; so a step that differs, as in a GAN with
        a ratio, or the very first one, is not taken as finished before it is committed.
        """
        return (
            bool(self.usual)
            and not self._running
            and all(self._finished[name] >= count for name, count in self.usual.items())
        )

    def commit(self) -> bool:
        """Remembers what was usual; whether any optimizer has made a step."""
        for name, count in self._finished.items():
            self.usual[name] = max(count, self.usual.get(name, 0))
        return bool(self._finished)

    def clear(self) -> None:
        """Starts to count from zero."""
        self._finished.clear()
        self._running = 0
