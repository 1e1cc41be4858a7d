"""What an event is, and how one that came as a name with fields is read.

Events leave the program by an ``Emit``: ``reporting.log`` shows them as lines for people or as
JSON, and the agent keeps the important ones in the store for ``elasticctl``. A worker sends its
events to its agent by name, in a ``Note``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from importlib import import_module
from typing import Any, ClassVar

from elastic_runtime.reporting.wording import Shown

SUBJECTS = (
    "checkpoint_events",
    "controller_events",
    "job_events",
    "log_events",
    "node_events",
    "round_events",
    "snapshot_events",
    "state_events",
    "store_events",
    "worker_events",
)

DEBUG, INFO, WARNING, ERROR = "debug", "info", "warning", "error"

_KINDS: dict[str, type | tuple[type, ...]] = {
    "None": type(None),
    "bool": bool,
    "int": int,
    "float": (int, float),
    "str": str,
    "Sequence": (list, tuple),
    "Mapping": Mapping,
}
_BY_NAME: dict[str, type[Event]] = {}


@dataclass(frozen=True)
class Event:
    """Something that happened. Each subclass is one event, and its docstring says when it happens.

    A field whose value is None is left out of the log.

    Attributes:
        name: dotted, as in the log and on the wire; it never changes.
        level: in the log in JSON.
        sentence: for people; its fields are filled in. An event whose sentence needs more than
            that overrides ``message``.
        whole_job: the same on all nodes, so that only the console of group rank 0 shows it.
        shown: on consoles.
        kept: in the store, for ``elasticctl events``, if it is shown.
        logged: in the log in JSON; what is not is only for other parts of the package.
        extra: what another version of the package says besides.
    """

    name: ClassVar[str] = ""
    level: ClassVar[str] = INFO
    sentence: ClassVar[str] = ""
    whole_job: ClassVar[bool] = True
    shown: ClassVar[bool] = True
    kept: ClassVar[bool] = True
    logged: ClassVar[bool] = True

    extra: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    def __init_subclass__(cls) -> None:
        """Makes the event known by its name."""
        if vars(cls).get("name"):
            _BY_NAME[cls.name] = cls

    def fields(self) -> dict[str, Any]:
        """What is known of it, as plain values, for the log and for the wire."""
        known = {name: value for name, value in vars(self).items() if value is not None}
        return {**known.pop("extra"), **known}

    def message(self) -> str:
        """One line for people; "": there is nothing to say."""
        return self.sentence.format_map(self._words())

    def kept_message(self) -> str:
        """What ``elasticctl events`` says of it later; "" if it is not worth keeping."""
        return self.message() if self.shown and self.kept else ""

    def _words(self) -> Shown:
        return Shown(vars(self))


@dataclass(frozen=True)
class NotedEvent(Event):
    """An event of a worker, which its agent passes on.

    Attributes:
        rank: of the worker, as its agent knows it; None before it is sent.
        round: in which the worker was then; likewise.
    """

    rank: int | None = field(default=None, kw_only=True)
    round: int | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class ForeignEvent(Event):
    """An event that this version does not know, or whose fields are not as this version has them.

    It is logged as it came, and not shown to people.
    """

    shown = False

    # Of each one, where other events have the same for all.
    name: str = ""  # type: ignore[misc]
    level: str = DEBUG  # type: ignore[misc]

    def fields(self) -> dict[str, Any]:
        """As they came."""
        return dict(self.extra)


# Where events go.
Emit = Callable[[Event], None]


def silent(event: Event, /) -> None:
    """An ``Emit`` that drops everything."""


def known_events() -> dict[str, type[Event]]:
    """All events of this version, by name."""
    for subject in SUBJECTS:
        import_module(f"elastic_runtime.events.{subject}")
    return dict(_BY_NAME)


def read(name: str, given: Mapping[str, Any], among: type[Event] = Event) -> Event:
    """The event of a name and fields that came from somewhere else, such as a worker.

    Args:
        name: the event's name.
        among: only events of this class may come from there.
        given: its fields; those that this version does not know are passed on in ``extra``.

    Returns:
        The event, or a ``ForeignEvent``; nothing that comes in makes this fail.
    """
    kind = _BY_NAME.get(name) or known_events().get(name)
    if kind is None or not issubclass(kind, among):
        return ForeignEvent(name, extra=given)
    known = {one.name: one for one in fields(kind) if one.name != "extra"}
    lacks = any(_is_needed(one) and one.name not in given for one in known.values())
    strange = any(
        not _fits(given[one.name], one.type) for one in known.values() if one.name in given
    )
    if lacks or strange:
        return ForeignEvent(name, kind.level, extra=given)
    extra = {one: value for one, value in given.items() if one not in known}
    return kind(**{one: given[one] for one in given.keys() & known.keys()}, extra=extra)


def _is_needed(one: Any) -> bool:
    return one.default is MISSING and one.default_factory is MISSING


def _fits(value: object, annotation: Any) -> bool:
    """Whether a value is of a type such as ``int | None``; the items of a sequence may be any."""
    names = [one.partition("[")[0] for one in str(annotation).split(" | ")]
    return any(isinstance(value, _KINDS[name]) for name in names)
