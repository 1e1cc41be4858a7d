"""What can happen to a job: one frozen dataclass for each event, which knows its name and sentence.

Every part of the package may make events and hands them to an ``Emit``; this folder imports no
other part but errors and wording, does no I/O, and is quick to import. Begin with ``event``; the
other files hold the events by subject, and ``docs/events.md`` lists them all.
"""

from elastic_runtime.events.event import Emit, Event, silent

__all__ = ["Emit", "Event", "silent"]
