"""Whether a trainer's package is one of those that its adapter was run with."""

from __future__ import annotations

import re
from importlib import metadata
from typing import NamedTuple

from elastic_runtime.errors import UsageError


class AdapterVersions(NamedTuple):
    """Of one package.

    Attributes:
        package: its name, which is also that of the adapter and of the extra that installs it.
        oldest, newest: the first two numbers of versions.
        otherwise: what may be different in others.
    """

    package: str
    oldest: tuple[int, int]
    newest: tuple[int, int]
    otherwise: str

    def check(self, lacking: str) -> None:
        """Refuses what was never run.

        Args:
            lacking: what to say if the package is not there.

        Raises:
            UsageError: it is not there, or older or newer.
        """
        try:
            found = metadata.version(self.package)
        except metadata.PackageNotFoundError:
            raise self.missing(lacking) from None
        numbers = tuple(int(part) for part in re.findall(r"\d+", found)[:2])
        if not self.oldest <= numbers <= self.newest:
            raise UsageError(
                f"elastic_runtime.{self.package} was run with {self}, and this is {found}, "
                f"{self.otherwise}; {self._remedy}"
            )

    def missing(self, lacking: str) -> UsageError:
        """The error for something that is not installed.

        Args:
            lacking: what to say of it.
        """
        return UsageError(f"elastic_runtime.{self.package} needs {self}{lacking}; {self._remedy}")

    @property
    def _remedy(self) -> str:
        return f"pip install 'elastic-runtime[{self.package}]'"

    def __str__(self) -> str:
        oldest, newest = (".".join(map(str, one)) for one in (self.oldest, self.newest))
        return f"{self.package} {oldest} to {newest}"
