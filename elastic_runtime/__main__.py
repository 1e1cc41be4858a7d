"""``python -m elastic_runtime`` is ``elastic-run``."""

from __future__ import annotations

import sys

from elastic_runtime.cli.run.elastic_run import program

if __name__ == "__main__":
    sys.exit(program())
