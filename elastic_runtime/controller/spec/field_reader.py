"""Fields of an object as users write it; whatever does not fit is named by its path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elastic_runtime.errors import UsageError

Json = Mapping[str, Any]


class InvalidSpec(UsageError):
    """A field of an ElasticJob says something that cannot be done.

    Args:
        field: its path, ``spec.minReplicas``.
        why: what is wrong, and what to write instead.
    """

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field}: {why}")
        self.field = field
        self.why = why


@dataclass(frozen=True, slots=True)
class Section:
    """An object within the job, and where it stands.

    A field that is null is one that is not there, as in Kubernetes.

    Attributes:
        path: ``spec.replicaSpecs.Worker``.
        values: what is there.
    """

    path: str
    values: Json

    @classmethod
    def checked(cls, value: Any, path: str) -> Section:
        """A section, if it is an object."""
        if not isinstance(value, Mapping):
            raise InvalidSpec(path, f"{value!r} is not an object")
        return cls(path, value)

    @classmethod
    def of(cls, parent: Json, name: str) -> Section:
        """A section at the top."""
        return cls("", parent).section(name)

    def section(self, name: str, needed: bool = True) -> Section:
        """The object in a field; an empty one if it may be missing."""
        value = self.values.get(name)
        if value is None and needed:
            raise InvalidSpec(self._path_of(name), "it is missing")
        return Section.checked({} if value is None else value, self._path_of(name))

    def whole(self, name: str, least: int = 0, most: int = 2**31 - 1) -> int | None:
        """A whole number; None if it is not given."""
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidSpec(self._path_of(name), f"{value!r} is not a whole number")
        if value < least:
            raise InvalidSpec(self._path_of(name), f"{value} is less than {least}")
        if value > most:
            raise InvalidSpec(self._path_of(name), f"{value} is more than {most}")
        return value

    def text(self, name: str) -> str:
        """A text; "" if it is not given."""
        value = self.values.get(name)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise InvalidSpec(self._path_of(name), f"{value!r} is not a text")
        return value

    def switch(self, name: str) -> bool:
        """True or false; false if it is not given."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, bool):
            raise InvalidSpec(self._path_of(name), f"{value!r} is neither true nor false")
        return bool(value)

    def choice(self, name: str, choices: Sequence[str], default: str | None = None) -> str:
        """One of several words."""
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        if value not in choices:
            raise InvalidSpec(
                self._path_of(name), f"{value!r} is not known: it is one of {', '.join(choices)}"
            )
        return str(value)

    def items(self, name: str) -> Sequence[Any]:
        """A list; an empty one if it is not given."""
        value = self.values.get(name)
        if value is None:
            return ()
        if not isinstance(value, list | tuple):
            raise InvalidSpec(self._path_of(name), f"{value!r} is not a list")
        return value

    def _path_of(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name
