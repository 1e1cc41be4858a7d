"""What a node leaves behind when its process ends, for whoever has started it: its last words.

On Kubernetes that is a container's termination message: a file of at most 4 KiB whose text becomes
a part of the pod's status (https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/).
Its first lines are for people; the last one is the report that ``/status`` gives, as JSON, so that
what happened between the last question and the end is not lost.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

# Names the file.
ENV_LAST_WORDS = "ELASTIC_TERMINATION_LOG"
# Bytes that the kubelet reads.
_MOST = 4096
# How a report begins; other programs end with lines of JSON, too.
_REPORT = '{"run_id": '


def last_words(message: str, report: Mapping[str, Any] | None = None) -> bytes:
    """What is to be written.

    Args:
        message: for people.
        report: as the agent's ``/status``, with ``run_id`` first; None: there was no agent yet.
    """
    told = b"" if report is None else _encoded(json.dumps(report, ensure_ascii=False)) + b"\n"
    said = _encoded(message.strip())
    if len(told) > _MOST // 2:
        told = b""  # with names that long; words say more
    return said[: _MOST - len(told) - 1].decode(errors="ignore").encode() + b"\n" + told


def _encoded(text: str) -> bytes:
    """A path may have bytes that are no text."""
    return text.encode(errors="replace")


def read_last_words(text: str) -> tuple[str, str]:
    """What was left behind, by an agent or by any other program.

    Args:
        text: of a file that an agent has written, or the last lines of a log.

    Returns:
        The words for people, on one line, and the report; "" for what there is not.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if lines and lines[-1].startswith(_REPORT):
        *said, report = lines
        return " ".join(said), report
    # Of a log, the last line with an error tells most.
    told = [line for line in lines if "rror" in line] or lines
    return (told[-1] if told else ""), ""
