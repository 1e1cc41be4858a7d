"""What tests that kill workers of a job in place cannot help: a lost error of gloo.

Where a killed peer resets the connection just while gloo sends on it, gloo forgets to tell the
thread that waits for the sending, about twice in a thousand deaths (``signalException`` of its TCP
pair passes over unbound buffers that are being sent). Nothing can release that worker; its agent
replaces it after some seconds, and says so. A test that counts on the memory of this worker then
fails. Once in each process of a test run that is an expected failure (``conftest.py``); more often,
or for more than one worker of a job, it is a defect.
"""

from __future__ import annotations

# The words of the agent (``hang_detection``).
SIGN = "it waits for ranks that are gone"
# The event that has them.
_EVENT = '"event": "worker.stuck"'
SEVERAL = "several workers of this job have waited so, which is no chance"


def tell(error: BaseException | None, log: str, story: str) -> None:
    """Adds to what a failed test says what its job has said.

    Such a loss is seen by what a job says, and most comparisons that fail because of it, as those
    of processes before and after, do not say it.

    Args:
        error: what has ended the test, if anything has.
        log: all that the job has printed.
        story: the part of it that people want to see.
    """
    if error is None or story in str(error):
        return
    lost = [line for line in log.splitlines() if _EVENT in line and SIGN in line]
    several = [SEVERAL] if len(lost) > 1 else []
    unseen = [line for line in lost if line not in story]
    error.add_note("\n".join(["What its job has said:", *several, *unseen, story]))
