"""The fake API server as a process of its own: ``python -m tests.kube --kubeconfig FILE``.

Its kubelet runs every pod at once. ``/version`` answers when it is up.
"""

from __future__ import annotations

import resource

from tests.kube.cluster import FakeCluster, serve


def main() -> int:
    """Serves until it is told to end."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # one for each pod, and more
    return serve(__doc__ or "", FakeCluster)


if __name__ == "__main__":
    raise SystemExit(main())
