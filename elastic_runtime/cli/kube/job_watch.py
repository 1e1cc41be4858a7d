"""Looks at a job again and again, also while the API server does not answer."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

from elastic_runtime.cli.kube.job_client import JobClient, NotAllowed
from elastic_runtime.cli.kube.job_report import job_line
from elastic_runtime.errors import ClusterUnreachable
from elastic_runtime.limits import POLL_INTERVAL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from elastic_runtime.cli.kube.job_client import Object


_T = TypeVar("_T")


def until_over(client: JobClient, name: str) -> Iterator[Object | None]:
    """A job at each look until it has ended; None while the API server does not answer."""
    first = client.job(name)
    return poll(lambda: client.job(name), first, POLL_INTERVAL, lambda job: job_line(job).over)


def poll(
    look: Callable[[], _T],
    first: _T,
    interval: float,
    over: Callable[[_T], bool] = lambda now: False,
) -> Iterator[_T | None]:
    """Looks again and again.

    Args:
        look: reads what is to be seen.
        first: what the first look has read.
        interval: seconds between two looks.
        over: whether what was seen is the last.

    Returns:
        What each look has read; None for one that the API server did not answer.

    Raises:
        NotAllowed: the credentials no longer permit it.
    """
    pause, now = threading.Event(), first
    yield now
    while not over(now):
        pause.wait(interval)
        try:
            now = look()
        except NotAllowed:
            raise
        except ClusterUnreachable:
            yield None
        else:
            yield now
