"""The docker engine, as tests use it: whether it answers, and nothing of ours left in it."""

from __future__ import annotations

import contextlib
import gc
import os
import warnings
from pathlib import Path
from typing import Any

# Whatever a test makes in docker carries this, with the pid of the test's process.
LABEL = "elastic-runtime.test-pid"


def connect() -> tuple[Any, str]:
    """A client of docker's API; or None, and why there is none."""
    try:
        from docker import DockerClient, errors
    except ImportError:
        return None, "the Python package docker is not installed"
    with warnings.catch_warnings():
        # docker leaves its socket open when nobody answers.
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            return DockerClient.from_env(timeout=60), ""
        except errors.DockerException as error:
            reason = str(error).splitlines()[0]
        gc.collect()
    return None, f"docker does not answer ({reason})"


def remove_leftovers() -> None:
    """Removes the containers and networks of test processes that are gone, if docker answers."""
    client, _ = connect()
    if client is not None:
        with contextlib.closing(client):
            sweep(client)


def sweep(client: Any) -> None:
    """Does that with a client that is there already."""
    from docker import errors

    marked = {"label": LABEL}
    for container in client.containers.list(all=True, filters=marked, ignore_removed=True):
        if not Path(f"/proc/{container.labels[LABEL]}").exists():
            # Processes that run tests beside this one do the same, and may be quicker.
            with contextlib.suppress(errors.APIError):
                container.remove(force=True, v=True)
    for network in client.networks.list(filters=marked):
        if not Path(f"/proc/{network.attrs['Labels'][LABEL]}").exists():
            with contextlib.suppress(errors.APIError):
                network.remove()


def testcontainers() -> Any:
    """testcontainers' core, set up to want no reaper image and to guess no address."""
    os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")
    os.environ.setdefault("TESTCONTAINERS_CONNECTION_MODE", "docker_host")
    os.environ.setdefault("TESTCONTAINERS_HOST_OVERRIDE", "127.0.0.1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from testcontainers.core import container

    return container
