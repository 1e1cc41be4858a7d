"""Removes an agent's directory in memory after an agent that was killed: a process of its own.

It waits for the lock that the agent holds on the directory, which the kernel releases when the
agent ends, however it does. An agent that ends well has removed the directory by then. The content
is not needed any longer: other nodes have read it through the agent, and the workers of this node
end soon after their agent; they are given some time for that.

It is run by its path, ``python -IS …/reaper.py DIRECTORY SECONDS``, and uses nothing but the
standard library: it is there for as long as the agent, and is to be small.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
import time

LOCK = "lock"


def main() -> None:
    """Waits for the end of the agent."""
    directory, seconds = sys.argv[1:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it follows its agent, and nothing else
    try:
        lock = os.open(os.path.join(directory, LOCK), os.O_RDWR)
    except OSError:
        return  # the agent has ended already
    fcntl.flock(lock, fcntl.LOCK_EX)
    if os.path.exists(directory):
        time.sleep(float(seconds))
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
