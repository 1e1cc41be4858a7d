"""The fake API server as a process of its own: ``python -m tests.kube --kubeconfig FILE``.

Its kubelet runs every pod at once. ``/version`` answers when it is up.
"""

from __future__ import annotations

import argparse
import json
import resource
import signal
import threading
from pathlib import Path

from tests.kube.cluster import FakeCluster


def main() -> int:
    """Serves until it is told to end."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kubeconfig", type=Path, required=True, help="is written when it is up")
    args = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # one for each pod, and more
    cluster = FakeCluster()
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    cluster.kubeconfig(args.kubeconfig)
    print(json.dumps({"url": cluster.url}), flush=True)
    ended.wait()
    cluster.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
