"""One node of ``--local-nodes``: ``elastic-run`` that never outlives the process that started it.

``python -m elastic_runtime.cli.run.local_node PARENT_PID HOSTED INVOCATION NODES WORD ARGUMENTS…``:
HOSTED is 1 if that process hosts the store, INVOCATION names it to the job, NODES are the names of
all its nodes as JSON, and WORD is ``Siblings.report_token``.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys

from elastic_runtime.reporting.console import open_missing

_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Ties this process to its parent, then runs the node."""
    open_missing()
    parent, hosted, invocation, nodes, word, *argv = sys.argv[1:]
    os.set_inheritable(int(word), False)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):  # it died before the line above took effect
        return 128 + signal.SIGKILL
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing is to be tidied up for a while
    # The parent takes its signals with sigwait and has them blocked; masks are inherited.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    from elastic_runtime.cli.run.elastic_run import program
    from elastic_runtime.config import Siblings

    siblings = Siblings(tuple(json.loads(nodes)), int(word))
    return program(argv, invocation=invocation, siblings=siblings, hosted_here=hosted == "1")


if __name__ == "__main__":
    sys.exit(main())
