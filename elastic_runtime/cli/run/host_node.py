"""A node of ``--hosts``: ``elastic-run`` that knows of the others by the command that started all.

``python -m elastic_runtime.cli.run.host_node INVOCATION ARGUMENTS…``; INVOCATION names that
command to the job, so that a node that comes late does not begin a job again that is over.

It ends with the code of a failed job only if its agent says that the job has failed: Python itself
ends with the same one where a package is broken.
"""

from __future__ import annotations

import sys
import traceback

from elastic_runtime.errors import EXIT_CRASHED


def main() -> int:
    """Runs the node."""
    invocation, *argv = sys.argv[1:]
    try:
        from elastic_runtime.cli.run.elastic_run import program

        return program(argv, invocation=invocation)
    except Exception:
        traceback.print_exc()
        return EXIT_CRASHED


if __name__ == "__main__":
    sys.exit(main())
